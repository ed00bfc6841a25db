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
	got, err := Restore(want.Save())
	if err != nil {
		t.Fatal(err)
	}
	for id, v := range All() {
		at := ID(id)
		if got.Known(at) != want.Known(at) {
			t.Errorf("%s is known: %v", v.Name, got.Known(at))
		}
		if got.Touched(NewSet(at)) != want.Known(at) {
			t.Errorf("%s is touched: %v", v.Name, got.Touched(NewSet(at)))
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
	if !bytes.Equal(got.Save(), want.Save()) {
		t.Error("the same sample is saved differently")
	}
	empty, err := Restore(NewSample().Save())
	if err != nil || empty.Touched(NewSet(ID(0), ID(len(All())-1))) {
		t.Errorf("nothing came back as something: %v", err)
	}
}

// entry is one variable as it is saved, written by hand.
func entry(name string, kind Kind, value ...byte) []byte {
	return append(append(append([]byte{0, byte(len(name))}, name...), byte(kind)), value...)
}

func TestANameThatIsGoneIsLeftOut(t *testing.T) {
	half := binary.LittleEndian.AppendUint64(nil, math.Float64bits(0.5))
	state := append(append([]byte{2}, entry("gone.forever", Number, half...)...), entry("kv.now", Number, half...)...)
	s, err := Restore(state)
	if err != nil {
		t.Fatal(err)
	}
	if v, known := s.Number(Must("kv.now")); v != 0.5 || !known {
		t.Errorf("kv.now is %v", v)
	}
}

func TestADamagedSampleIsRefused(t *testing.T) {
	whole := filled().Save()
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
		{"no kind", append([]byte{1}, entry("gone", 9)...), "kind"},
		{"a giant", binary.AppendUvarint(nil, math.MaxUint64), "length"},
		{"shares what is not there", []byte{1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "length"},
	} {
		if s, err := Restore(of.state); s != nil || !errors.Is(err, ErrState) || !strings.Contains(err.Error(), of.says) {
			t.Errorf("%s: %v", of.name, err)
		}
	}
}

func FuzzRestore(f *testing.F) {
	f.Add(filled().Save())
	f.Add(NewSample().Save())
	f.Fuzz(func(t *testing.T, state []byte) {
		s, err := Restore(state)
		if err != nil {
			if !errors.Is(err, ErrState) {
				t.Fatal(err)
			}
			return
		}
		again, err := Restore(s.Save())
		if err != nil || !bytes.Equal(again.Save(), s.Save()) {
			t.Fatalf("what was read cannot be written: %v", err)
		}
	})
}
