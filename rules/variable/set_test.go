package variable

import "testing"

func TestSampleSaysWhatWasTouched(t *testing.T) {
	s := NewSample()
	live, oom, last := Must("live.growth"), Must("symptom.oom"), ID(len(All())-1)
	growth, other := NewSet(live), NewSet(oom, last)
	if s.Touched(growth) || s.Touched(other) {
		t.Fatal("a new sample was touched")
	}
	for _, step := range []struct {
		name          string
		do            func()
		growth, other bool
	}{
		{"a first value", func() { s.SetNumber(live, 1) }, true, false},
		{"the same value", func() { s.SetNumber(live, 1) }, false, false},
		{"another value", func() { s.SetNumber(live, 2) }, true, false},
		{"a bool", func() { s.SetBool(oom, false) }, false, true},
		{"the value is gone", func() { s.Unset(live) }, true, false},
		{"it was gone", func() { s.Unset(live) }, false, false},
		{"the last variable", func() { s.SetLabels(last, map[string]string{"team": "a"}) }, false, true},
	} {
		step.do()
		if g, o := s.Touched(growth), s.Touched(other); g != step.growth || o != step.other {
			t.Errorf("%s: touched %v and %v", step.name, g, o)
		}
		s.Settle()
	}
	growth.Join(other)
	if s.SetBool(oom, true); !s.Touched(growth) {
		t.Error("a set does not hold what was joined")
	}
}
