package worker

import (
	"testing"
	"time"

	"lowtide/event"
)

// The accounts of failed allocations as they come, and how many failures they are.
func TestOneFailureOfManyAccounts(t *testing.T) {
	const mib = 1 << 20
	observer := &event.Oom{Kind: "cuda", RequestedBytes: event.Ptr(uint64(256*mib + 512)), FreeBytes: event.Ptr(uint64(9 * mib))}
	text := &event.Oom{Kind: "cuda", RequestedBytes: event.Ptr(uint64(256 * mib)), AllocatedBytes: event.Ptr(uint64(900 * mib)), Text: "CUDA out of memory. Tried …"}
	other := &event.Oom{Kind: "cuda", RequestedBytes: event.Ptr(uint64(512 * mib)), AllocatedBytes: event.Ptr(uint64(900 * mib)), Text: "CUDA out of memory. Tried more"}
	kill := &event.Oom{Kind: "engine", Text: "KV cache pool is full"}
	type account struct {
		second  int
		event   *event.Oom
		counter uint64 // without an event: what ooms_total says
	}
	for name, test := range map[string]struct {
		accounts []account
		want     int
	}{
		"observer, exception, log":      {[]account{{0, nil, 0}, {1, observer, 0}, {1, text, 0}, {2, text, 0}, {5, nil, 1}}, 1},
		"counter first":                 {[]account{{0, nil, 0}, {5, nil, 1}, {6, observer, 0}, {6, text, 0}, {10, nil, 1}}, 1},
		"log first":                     {[]account{{1, text, 0}, {1, observer, 0}}, 1},
		"two, of which one has no text": {[]account{{1, observer, 0}, {1, text, 0}, {3, observer, 0}}, 2},
		"two, of different sizes":       {[]account{{1, observer, 0}, {2, other, 0}}, 2},
		"two observed":                  {[]account{{1, observer, 0}, {2, observer, 0}}, 2},
		"two texts":                     {[]account{{1, text, 0}, {2, other, 0}}, 2},
		"the same again, a minute on":   {[]account{{1, text, 0}, {61, text, 0}}, 2},
		"the counter alone, twice":      {[]account{{0, nil, 3}, {5, nil, 4}, {10, nil, 5}}, 2},
		"a kill that no counter shows":  {[]account{{0, nil, 0}, {1, kill, 0}, {60, nil, 0}, {120, nil, 1}}, 2},
		"seen before the first reading": {[]account{{1, observer, 0}, {5, nil, 1}, {60, nil, 2}}, 2},
		"seen and not seen":             {[]account{{0, nil, 0}, {1, observer, 0}, {5, nil, 2}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var o ooms
			origin := time.Unix(1_790_000_000, 0)
			for _, a := range test.accounts {
				at := origin.Add(time.Duration(a.second) * time.Second)
				if a.event != nil {
					o.event(at, a.event)
				} else {
					o.counter(at, &a.counter)
				}
			}
			if len(o.times) != test.want {
				t.Errorf("%d failures, want %d", len(o.times), test.want)
			}
		})
	}
	var o ooms
	o.event(time.Unix(1, 0), observer)
	o.event(time.Unix(2, 0), text)
	if got := o.last; got.GetRequestedBytes() != 256*mib || got.GetFreeBytes() != 9*mib || got.GetAllocatedBytes() != 900*mib || got.Text == "" || observer.Text != "" {
		t.Errorf("joined account %v", got)
	}
}
