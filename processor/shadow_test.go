package processor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lowtide/event"
	"lowtide/rules"
)

// shadowed is the shipped pack, with a copy of each rule beside it that is tried out.
func shadowed(t testing.TB) *rules.Pack {
	t.Helper()
	pack, err := rules.LoadSources(copies(t))
	if err != nil {
		t.Fatal(err)
	}
	return pack
}

// copies are the shipped files again, with every rule named otherwise and in shadow.
func copies(t testing.TB) (all []rules.Source) {
	t.Helper()
	for _, path := range matching(t, "../rules/builtin/*.yaml") {
		if strings.HasSuffix(path, "_test.yaml") {
			continue
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(content), "  - id: ", "  - shadow: true\n    id: shadow_")
		all = append(all, rules.Source{Name: filepath.Base(path), Content: []byte(text)})
	}
	return all
}

// What real rules say is the same, byte by byte, with a copy of each in shadow; and the copies say what they would say alone.
func TestRulesInShadowChangeNothing(t *testing.T) {
	pack := shadowed(t)
	if plain := builtin(t); len(pack.Rules) != 2*len(plain.Rules) {
		t.Fatalf("%d rules, want twice %d", len(pack.Rules), len(plain.Rules))
	}
	told := 0
	for _, path := range matching(t, "testdata/*.ndjson.gz") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			all := recorded(t, path)
			plain, beside := newTrial(t, builtin(t)), newTrial(t, pack)
			for _, r := range []*trial{plain, beside} {
				r.play(all, false)
				r.judge.Flush()
			}
			real, shadows := apart(t, beside.found)
			if !slices.Equal(real, plain.found) {
				t.Errorf("found\n%s\nwant\n%s", strings.Join(real, "\n"), strings.Join(plain.found, "\n"))
			}
			told += len(shadows)
			seen := map[string]bool{}
			for _, f := range shadows {
				seen[f.Rule] = true
				if !strings.HasPrefix(f.Rule, "shadow_") || !strings.HasPrefix(event.FindingSubject(f), "lowtide.shadow.") {
					t.Errorf("rule %s on %s is told as shadow", f.Rule, event.FindingSubject(f))
				}
			}
			for _, text := range plain.found {
				f, err := event.UnmarshalFinding([]byte(text))
				if err != nil {
					t.Fatal(err)
				}
				if !seen["shadow_"+f.Rule] {
					t.Errorf("%s was told, and nothing of its copy", f.Rule)
				}
			}
		})
	}
	if told == 0 {
		t.Error("nothing was told in shadow")
	}
}

// The same where chance plays, and the judge is saved and restored again and again.
func TestRulesInShadowChangeNothingByChance(t *testing.T) {
	pack := shadowed(t)
	for seed := range uint64(3) {
		plain, beside, whole := newTrial(t, builtin(t)), newTrial(t, pack), newTrial(t, pack)
		plain.play(newChaos(seed, 3000), true)
		whole.play(newChaos(seed, 3000), true)
		beside.play(newChaos(seed, 3000), true, 500, 501, 1500, 2000)
		real, _ := apart(t, beside.found)
		if !slices.Equal(real, plain.found) {
			t.Errorf("seed %d: %d findings, want %d, or others", seed, len(real), len(plain.found))
		}
		if !slices.Equal(beside.found, whole.found) {
			t.Errorf("seed %d: a restored judge tells other things in shadow", seed)
		}
	}
}

func matching(t testing.TB, pattern string) []string {
	t.Helper()
	all, err := filepath.Glob(pattern)
	if err != nil || len(all) == 0 {
		t.Fatalf("%d files are %s: %v", len(all), pattern, err)
	}
	return all
}

func apart(t testing.TB, found []string) (real []string, shadows []*event.Finding) {
	t.Helper()
	for _, text := range found {
		f, err := event.UnmarshalFinding([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if f.Shadow {
			shadows = append(shadows, f)
			continue
		}
		real = append(real, text)
	}
	return real, shadows
}
