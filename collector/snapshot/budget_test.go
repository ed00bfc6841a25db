package snapshot

import (
	"fmt"
	"strings"
	"testing"
)

// cardOf has so much reserved, live and free, in GiB; and of it in private pools.
func cardOf(reserved, live, pending, private, privateLive uint64) *card {
	c := &card{}
	c.reserved, c.live, c.pending, c.free = reserved<<30, live<<30, pending<<30, (reserved-live-pending)<<30
	c.private.reserved, c.private.live, c.private.free = private<<30, privateLive<<30, (private-privateLive)<<30
	return c
}

func gib(v uint64) *uint64 { v <<= 30; return &v }

// The first row is the first lesson's example: a card of 80 GiB, 66 used, 60 reserved, 42 live: 18 cached, 6 outside, 14 free.
func TestBudget(t *testing.T) {
	for _, c := range []struct {
		name          string
		card          *card
		known         Known
		want, lacking string
	}{
		{"the lesson's", cardOf(60, 42, 0, 0, 0), Known{DeviceTotalBytes: gib(80), DeviceUsedBytes: gib(66), ProcessUsedBytes: gib(66)},
			"runtime 6 cached 18 free 14 graphs 0 outside 6", "weights, KV pool or activations is not known"},
		{"all is known", cardOf(60, 42, 3, 4, 1), Known{gib(17), gib(20), gib(80), gib(70), gib(66)},
			"weights 17 kv 20 activations 4 runtime 10 cached 15 free 10 graphs 4 outside 6", ""},
		{"nothing is known", cardOf(10, 8, 0, 0, 0), Known{}, "cached 2 graphs 0", "is not in a snapshot"},
		{"weights only", cardOf(10, 8, 0, 0, 0), Known{WeightsBytes: gib(3)}, "weights 3 cached 2 graphs 0", "KV pool and which activations is not known"},
		{"KV pool only", cardOf(10, 8, 0, 0, 0), Known{KVPoolBytes: gib(3)}, "kv 3 cached 2 graphs 0", "Which blocks are weights and which activations"},
		{"more than is live", cardOf(10, 8, 0, 0, 0), Known{WeightsBytes: gib(6), KVPoolBytes: gib(6)}, "weights 6 kv 6 cached 2 graphs 0", "said to be 12 GiB, and 8 GiB are live"},
		{"weights in a MemPool", cardOf(20, 18, 0, 16, 16), Known{gib(6), gib(10), nil, nil, gib(22)}, "weights 6 kv 10 cached 2 outside 2", "said to be 16 GiB, and 2 GiB are live"},
		{"broken accounting", cardOf(10, 8, 0, 0, 0), Known{ProcessUsedBytes: gib(9), DeviceTotalBytes: gib(8), DeviceUsedBytes: gib(9)}, "cached 2 graphs 0", "the driver gives it 9 GiB and PyTorch has reserved 10 GiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, lacking := c.card.budget(c.known)
			var got []string
			for _, part := range []struct {
				name  string
				bytes *uint64
			}{{"weights", b.Weights}, {"kv", b.KvPool}, {"activations", b.Activations}, {"runtime", b.Runtime}, {"cached", b.Cached}, {"free", b.Free}, {"graphs", b.Graphs}, {"outside", b.Outside}} {
				if part.bytes != nil {
					got = append(got, fmt.Sprint(part.name, " ", *part.bytes>>30))
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%s, want %s", strings.Join(got, " "), c.want)
			}
			said := strings.Join(lacking, "\n")
			if c.lacking == "" && said != "" || !strings.Contains(said, c.lacking) {
				t.Errorf("lacking %q, want %q", said, c.lacking)
			}
		})
	}
}
