package variable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"strings"
	"testing"
)

// filled is a sample with a value of each kind, and what must not be mixed up with having none.
func filled() *Sample {
	s := NewSample()
	s.SetNumber(Must("live.growth"), -0.1)
	s.SetNumber(Must("live.growth_low"), 0)
	s.SetNumber(Must("live.growth_high"), math.MaxFloat64)
	s.SetNumber(Must("oom.requested_bytes"), 1<<61)
	s.SetBool(Must("symptom.oom"), true)
	s.SetBool(Must("symptom.slo"), false)
	s.SetString(Must("model"), "llama-70b")
	s.SetString(Must("release"), "")
	s.SetLabels(Must("labels"), map[string]string{"team": "search", "tier": ""})
	s.SetNumber(Must("kv.now"), 0.5)
	s.Unset(Must("kv.now"))
	return s
}

func TestASampleComesBackAsItWas(t *testing.T) {
	want := filled()
	want.Settle()
	want.SetNumber(Must("live.growth"), -0.1) // the same
	want.SetNumber(Must("live.growth_low"), 1)
	want.SetNumber(Must("live.growth_low"), 0)
	want.SetNumber(Must("kv.now"), 0.5)
	want.Unset(Must("kv.now"))
	got := restored(t, saved(t, want))
	for id, v := range All() {
		at := ID(id)
		if got.Known(at) != want.Known(at) {
			t.Errorf("%s is known: %v", v.Name, got.Known(at))
		}
		low, now := v.Name == "live.growth_low", v.Name == "kv.now"
		if got.Changed(at) != (low || now) || got.Flipped(at) != now {
			t.Errorf("%s is touched: %v, flipped: %v", v.Name, got.Changed(at), got.Flipped(at))
		}
	}
	for name, want := range map[string]float64{"live.growth": -0.1, "live.growth_low": 0, "live.growth_high": math.MaxFloat64, "oom.requested_bytes": 1 << 61} {
		if v, known := got.Number(Must(name)); v != want || !known {
			t.Errorf("%s is %v", name, v)
		}
	}
	oom, _ := got.Bool(Must("symptom.oom"))
	slo, known := got.Bool(Must("symptom.slo"))
	if !oom || slo || !known {
		t.Errorf("bools are %v and %v", oom, slo)
	}
	model, _ := got.Text(Must("model"))
	release, known := got.Text(Must("release"))
	if model != "llama-70b" || release != "" || !known {
		t.Errorf("strings are %q and %q", model, release)
	}
	if labels, _ := got.Labels(Must("labels")); !maps.Equal(labels, map[string]string{"team": "search", "tier": ""}) {
		t.Errorf("labels are %v", labels)
	}
	if !bytes.Equal(saved(t, got), saved(t, want)) {
		t.Error("the same sample is saved differently")
	}
	if empty := restored(t, saved(t, NewSample())); empty.Touched(NewSet(ID(0), ID(len(All())-1))) {
		t.Error("nothing came back as something")
	}
}

func saved(t testing.TB, s *Sample) []byte {
	t.Helper()
	state, err := s.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func restored(t testing.TB, state []byte) *Sample {
	t.Helper()
	s := new(Sample)
	if err := s.UnmarshalBinary(state); err != nil {
		t.Fatal(err)
	}
	return s
}

// entry is one variable that is known as it is saved, written by hand.
func entry(name string, kind Kind, value ...byte) []byte {
	return append(append(append([]byte{0, byte(len(name))}, name...), byte(kind)|16), value...)
}

func TestANameThatIsGoneIsLeftOut(t *testing.T) {
	half := binary.LittleEndian.AppendUint64(nil, math.Float64bits(0.5))
	state := append(append([]byte{2}, entry("gone.forever", Number, half...)...), entry("kv.now", Number, half...)...)
	if v, known := restored(t, state).Number(Must("kv.now")); v != 0.5 || !known {
		t.Errorf("kv.now is %v", v)
	}
}

func TestADamagedSampleIsRefused(t *testing.T) {
	whole := saved(t, filled())
	none := binary.LittleEndian.AppendUint64(nil, math.Float64bits(math.NaN()))
	for _, of := range []struct {
		name  string
		state []byte
		says  string
	}{
		{"nothing", nil, "length"},
		{"half", whole[:len(whole)/2], ""},
		{"more", append(bytes.Clone(whole), 0), "more than it should hold"},
		{"another kind", append([]byte{1}, entry("kv.now", Bool, 1)...), "kv.now is a number and was saved as a bool"},
		{"twice", append(append([]byte{2}, entry("symptom.oom", Bool, 1)...), entry("symptom.oom", Bool, 0)...), "symptom.oom comes twice"},
		{"no bool", append([]byte{1}, entry("symptom.oom", Bool, 2)...), "neither true nor false"},
		{"a known NaN", append([]byte{1}, entry("kv.now", Number, none...)...), "is none"},
		{"no mark", []byte{1, 0, 6, 'k', 'v', '.', 'n', 'o', 'w', byte(Number)}, "marked"},
		{"flipped and not touched", []byte{1, 0, 6, 'k', 'v', '.', 'n', 'o', 'w', byte(Number) | 64}, "marked"},
		{"no kind", append([]byte{1}, entry("gone", 9)...), "kind"},
		{"a giant", binary.AppendUvarint(nil, math.MaxUint64), "length"},
		{"shares what is not there", []byte{1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "length"},
	} {
		if err := new(Sample).UnmarshalBinary(of.state); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), of.says) {
			t.Errorf("%s: %v", of.name, err)
		}
	}
}

func FuzzRestore(f *testing.F) {
	f.Add(saved(f, filled()))
	f.Add(saved(f, NewSample()))
	f.Fuzz(func(t *testing.T, state []byte) {
		s := new(Sample)
		if err := s.UnmarshalBinary(state); err != nil {
			if !errors.Is(err, ErrState) {
				t.Fatal(err)
			}
			return
		}
		if again := restored(t, saved(t, s)); !bytes.Equal(saved(t, again), saved(t, s)) {
			t.Fatal("what was read is written differently")
		}
	})
}
