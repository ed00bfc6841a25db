package rulebook

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"lowtide/rules"
)

// changes tells what becomes of each rule when one pack follows another, a line each, sorted by the ids: `+` it comes, `-` it goes, `~` it is
// judged in another way, and in which.
func changes(before, after *rules.Pack) (out []string) {
	ids := map[string]bool{}
	for _, p := range []*rules.Pack{before, after} {
		for _, r := range p.Rules {
			ids[r.ID] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		a, b := before.Rule(id), after.Rule(id)
		switch {
		case a == nil:
			out = append(out, fmt.Sprintf("+ %s: class %s, scope %s%s", id, b.Class, b.Scope, standingOf(b)))
		case b == nil:
			out = append(out, fmt.Sprintf("- %s: class %s, scope %s%s", id, a.Class, a.Scope, standingOf(a)))
		case a.Fingerprint() != b.Fingerprint():
			out = append(out, "~ "+id+": "+strings.Join(differences(a, b), ", "))
		}
	}
	return out
}

// standingOf says what is special about a rule.
func standingOf(r *rules.Rule) string {
	switch {
	case !r.Enabled:
		return ", disabled"
	case r.Shadow:
		return ", in shadow"
	}
	return ""
}

func differences(a, b *rules.Rule) (out []string) {
	say := func(what string, from, to any) {
		if from != to {
			out = append(out, fmt.Sprintf("%s %v → %v", what, from, to))
		}
	}
	say("enabled", a.Enabled, b.Enabled)
	say("shadow", a.Shadow, b.Shadow)
	say("class", a.Class, b.Class)
	say("scope", a.Scope, b.Scope)
	say("severity alone", a.Alone, b.Alone)
	say("severity with a symptom", a.With, b.With)
	say("pair", a.Pair, b.Pair)
	say("keep", a.Keep, b.Keep)
	names := maps.Clone(a.Thresholds)
	if names == nil {
		names = map[string]float64{}
	}
	maps.Copy(names, b.Thresholds)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		say("threshold "+name, threshold(a, name), threshold(b, name))
	}
	if !slices.Equal(a.Advice, b.Advice) {
		out = append(out, "its advice")
	}
	if !slices.Equal(a.Explains, b.Explains) {
		out = append(out, "what it explains")
	}
	if len(out) == 0 {
		out = append(out, "its text")
	}
	return out
}

func threshold(r *rules.Rule, name string) string {
	v, known := r.Thresholds[name]
	if !known {
		return "none"
	}
	text := strconv.FormatFloat(v, 'f', -1, 64)
	for _, unit := range []struct {
		size float64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if v != 0 && math.Mod(v, unit.size) == 0 {
			return text + " (" + strconv.FormatFloat(v/unit.size, 'f', -1, 64) + " " + unit.name + ")"
		}
	}
	return text
}
