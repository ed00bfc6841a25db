package event

import "testing"

func TestNearest(t *testing.T) {
	names := []string{"live.growth", "live.growth_low", "kv.quiet", "workers", "worker_samples"}
	for name, want := range map[string]string{"live.grwth": "live.growth", "kv.queit": "kv.quiet", "wokers": "workers", "worker": "workers", "worker_smaples": "worker_samples", "zebra": "", "nothing_like_it": "", "": ""} {
		if got := Nearest(name, names); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	if d := distance("kitten", "sitting"); d != 3 {
		t.Errorf("kitten and sitting are %d apart, want 3", d)
	}
}
