package ownership

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The published vectors of FNV-1a (64 bit) and of SplitMix64 with seed 0, and the owners that a Python version of the same formula gives:
// processors of different versions must agree.
func TestOwnersAreWhatTheFormulaSays(t *testing.T) {
	if hash("a") != 0xaf63dc4c8601ec8c || hash("foobar") != 0x85944171f73967e8 || mix(0) != 0xe220a8397b1dcdaf {
		t.Errorf("hash %x, %x, mix %x", hash("a"), hash("foobar"), mix(0))
	}
	names := []string{"processor-1", "processor-0", "processor-2"} // in any order
	for role, want := range map[string]string{
		"judge":    "2112200001122210021202201021120011210202000201012101021200002120",
		"store":    "000200112",
		"notifier": "2",
	} {
		var got strings.Builder
		for seat := range len(want) {
			got.WriteString(strings.TrimPrefix(owner(names, role, seat), "processor-"))
		}
		if got.String() != want {
			t.Errorf("%s: %s, want %s", role, got.String(), want)
		}
	}
	if got := owner(nil, "judge", 0); got != "" {
		t.Errorf("nobody has seat %q", got)
	}
}

func TestOnlyWhatMustMoveMoves(t *testing.T) {
	var names []string
	for i := range 12 {
		names = append(names, fmt.Sprintf("p%d", i))
		fewer := names[:i]
		for seat := range 64 {
			with := owner(names, "judge", seat)
			if without := owner(fewer, "judge", seat); with != names[i] && with != without {
				t.Errorf("seat %d moved from %s to %s when %s came", seat, without, with, names[i])
			}
			for _, gone := range names {
				rest := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == gone })
				if after := owner(rest, "judge", seat); gone != with && after != with {
					t.Errorf("seat %d moved from %s to %s when %s went", seat, with, after, gone)
				}
			}
		}
	}
}

// 64 seats among 4: a binomial with mean 16 and a deviation of 3.5; five of them are beyond any luck.
func TestSeatsAreShared(t *testing.T) {
	var names []string
	for i := range 4 {
		names = append(names, fmt.Sprintf("lowtide-processor-%d", i))
	}
	count := make(map[string]int)
	for seat := range 64 {
		count[owner(names, "judge", seat)]++
	}
	for _, name := range names {
		if n := count[name]; n < 1 || n > 33 {
			t.Errorf("%s has %d of 64", name, n)
		}
	}
}

// All seats anew among ten, as when one comes or goes.
func BenchmarkShare(b *testing.B) {
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprintf("lowtide-processor-%d", i))
	}
	for b.Loop() {
		for seat := range 64 {
			owner(names, "judge", seat)
		}
	}
}
