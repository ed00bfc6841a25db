package rules

import (
	"slices"
	"testing"

	"lowtide/rules/variable"
)

func TestClausesOfACondition(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"live.early", []string{"live.early"}},
		{"(live.early || (live.steady && live.growth_low > t.floor)) && !live.filling", []string{"live.early", "live.steady", "live.growth_low > t.floor", "!live.filling"}},
		{"a && b || c", []string{"a", "b", "c"}},
		{"!(a && b) && known(c)", []string{"!(a && b)", "known(c)"}},
		{"a ? b && c : d", []string{"a ? b && c : d"}},
		{`model == "a && b" || engine == 'c||d'`, []string{`model == "a && b"`, `engine == 'c||d'`}},
		{"// why && how\nlive.early && // or\n  fds.now > 1", []string{"live.early", "fds.now > 1"}},
		{`labels.exists(k, k == "a" && true) && live.early`, []string{`labels.exists(k, k == "a" && true)`, "live.early"}},
		{"(a) + (b) > 1 && c", []string{"(a) + (b) > 1", "c"}},
		{"", []string{""}},
		{")(", []string{")("}},
	} {
		var got []string
		for _, one := range clausesOf(c.text) {
			got = append(got, one.text)
			if c.text[one.offset:one.offset+len(one.text)] != one.text {
				t.Errorf("%q: %q is not at %d", c.text, one.text, one.offset)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}

func TestAWatchedPackCountsItsClauses(t *testing.T) {
	const text = `rules:
  - id: mine
    class: capacity
    scope: worker
    severity: {alone: info}
    summary: s
    when: |
      kv.now > 0.9
      && (live.early || fds.now > 5)
`
	pack, coverage, err := LoadWatched([]Source{{Name: "mine.yaml", Content: []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	rule, sample := pack.Rule("mine"), variable.NewSample()
	for _, v := range []struct{ kv, fds float64 }{{0.5, 9}, {0.95, 1}, {0.95, 9}} {
		sample.SetNumber(variable.Must("kv.now"), v.kv)
		sample.SetNumber(variable.Must("fds.now"), v.fds)
		rule.Evaluate(sample)
	}
	if coverage.Asked["mine"] != 3 || coverage.Met["mine"] != 1 {
		t.Errorf("asked %d, met %d", coverage.Asked["mine"], coverage.Met["mine"])
	}
	var got []Clause
	for _, c := range coverage.Clauses {
		if c.Rule == "mine" {
			got = append(got, *c)
		}
	}
	want := []Clause{
		{"mine", "when", "mine.yaml", 8, 7, "kv.now > 0.9", 2, 1, 0},
		{"mine", "when", "mine.yaml", 9, 11, "live.early", 0, 0, 3},
		{"mine", "when", "mine.yaml", 9, 25, "fds.now > 5", 2, 1, 0},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

// Of the shipped rules every condition has its clauses, and every clause compiles by itself.
func TestClausesOfTheShippedRules(t *testing.T) {
	pack, coverage, err := LoadWatched(nil)
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]int{}
	for _, c := range coverage.Clauses {
		if c.Condition == "when" {
			has[c.Rule]++
		}
	}
	for _, r := range pack.Rules {
		if has[r.ID] == 0 {
			t.Errorf("rule %s has no clause", r.ID)
		}
	}
	if has["retention"] != 4 {
		t.Errorf("retention has %d clauses, and early, steady, growth_low and filling are written", has["retention"])
	}
}

func FuzzClauses(f *testing.F) {
	f.Add("(a || b) && !c")
	f.Add(`"a\" && b" || // c`)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > maxExpressionBytes {
			return
		}
		for _, one := range clausesOf(text) {
			if text[one.offset:one.offset+len(one.text)] != one.text {
				t.Fatalf("%q is not at %d", one.text, one.offset)
			}
		}
	})
}
