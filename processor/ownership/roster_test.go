package ownership

import (
	"slices"
	"testing"
	"time"
)

const second = time.Second

func voice(session string) member {
	return member{Session: session, Roles: map[string]int{"judge": 64}}
}

// candidates are asked for a seat that every voice knows.
func candidates(r *roster) []string { return r.candidates("judge", 5) }

func TestSilenceIsDeathAfterSixSecondsOfTheObserver(t *testing.T) {
	r := newRoster("a", false, 6*second)
	r.see("a", 1, voice("sa"), 0)
	r.see("b", 2, voice("sb"), 0)
	r.see("c", 3, voice("sc"), 0)
	r.see("b", 4, voice("sb"), 5*second)
	r.see("c", 3, voice("sc"), 5*second) // read once more: nothing new
	if died := r.pass(5999 * time.Millisecond); died != nil {
		t.Errorf("died too soon: %v", died)
	}
	if died := r.pass(6 * second); !slices.Equal(died, []string{"c"}) {
		t.Errorf("died %v, want c", died)
	}
	if got := candidates(r); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("candidates %v", got)
	}
	if r.holds(lease{Member: "c", Session: "sc"}, 6*second) || !r.holds(lease{Member: "b", Session: "sb"}, 6*second) {
		t.Error("the lease of the dead c holds, or that of the living b does not")
	}
	if died := r.pass(100 * second); !slices.Equal(died, []string{"b"}) {
		t.Errorf("died %v: one does not die of one's own silence", died)
	}
}

func TestNobodyDiesWhileNobodyIsHeard(t *testing.T) {
	r := newRoster("a", false, 6*second)
	r.see("b", 2, voice("sb"), 0)
	r.blink(20 * second)
	if died := r.pass(25 * second); died != nil {
		t.Errorf("died %v", died)
	}
	if died := r.pass(26 * second); !slices.Equal(died, []string{"b"}) {
		t.Errorf("died %v, want b", died)
	}
}

// One that comes back after it was given up gets no seats until it has been steady for three more heartbeats, but its leases hold.
func TestReturnedMemberIsOnTrial(t *testing.T) {
	r := newRoster("a", false, 6*second)
	r.see("a", 1, voice("sa"), 0)
	r.see("b", 2, voice("sb"), 0)
	r.pass(6 * second)
	for revision := uint64(3); revision <= 5; revision++ {
		r.see("b", revision, voice("sb"), 7*second)
		if got := candidates(r); !slices.Equal(got, []string{"a"}) {
			t.Fatalf("after revision %d candidates %v", revision, got)
		}
		if !r.holds(lease{Member: "b", Session: "sb"}, 7*second) {
			t.Fatal("the lease of a living member does not hold")
		}
	}
	if changed := r.see("b", 6, voice("sb"), 8*second); !changed {
		t.Error("the end of the trial changes nothing")
	}
	if got := candidates(r); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("candidates %v", got)
	}
	r.pass(20 * second)
	r.see("b", 7, voice("another"), 20*second) // a new start is not a bad line
	if got := candidates(r); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("candidates after a new start %v", got)
	}
}

func TestLeavingMemberHoldsWhatItHasUntilItSaysGoodbye(t *testing.T) {
	r := newRoster("a", false, 6*second)
	r.see("a", 1, voice("sa"), 0)
	r.see("b", 2, voice("sb"), 0)
	leaving := voice("sb")
	leaving.Leaving = true
	r.see("b", 3, leaving, second)
	if got := candidates(r); !slices.Equal(got, []string{"a"}) || !r.holds(lease{Member: "b", Session: "sb"}, second) {
		t.Errorf("candidates %v", got)
	}
	r.left("b", 2) // read late
	if !r.holds(lease{Member: "b", Session: "sb"}, second) {
		t.Error("an old goodbye counted")
	}
	r.left("b", 4)
	if r.holds(lease{Member: "b", Session: "sb"}, second) {
		t.Error("the lease of one that left holds")
	}
}

func TestUnknownHolderHasTheBenefitOfTheDoubt(t *testing.T) {
	r := newRoster("a", false, 6*second)
	r.see("b", 2, voice("new"), 0)
	for _, l := range []lease{{Member: "ghost", Session: "s"}, {Member: "b", Session: "old"}} {
		if !r.holds(l, 10*second) || !r.holds(l, 15*second) || r.holds(l, 16*second) {
			t.Errorf("%+v does not hold for six seconds from when it is first missed", l)
		}
	}
	if r.holds(lease{Member: "a", Session: "earlier"}, 0) {
		t.Error("our own earlier session is at work")
	}
	alone := newRoster("a", true, 6*second)
	alone.see("a", 1, voice("sa"), 0)
	alone.see("b", 2, voice("sb"), 0)
	if alone.holds(lease{Member: "b", Session: "sb"}, 0) || !slices.Equal(candidates(alone), []string{"a"}) || alone.living() != 1 {
		t.Error("one that is alone minds others")
	}
}

// A member of a version that knows fewer seats is not given those that it does not know.
func TestSeatsThatAMemberDoesNotKnowAreNotItsOwn(t *testing.T) {
	r := newRoster("a", false, 6*second)
	r.see("a", 1, member{Session: "s", Roles: map[string]int{"judge": 64, "store": 9}}, 0)
	r.see("b", 2, member{Session: "s", Roles: map[string]int{"store": 8}}, 0)
	for _, c := range []struct {
		role string
		seat int
		want []string
	}{{"judge", 0, []string{"a"}}, {"store", 7, []string{"a", "b"}}, {"store", 8, []string{"a"}}, {"notifier", 0, nil}} {
		if got := r.candidates(c.role, c.seat); !slices.Equal(got, c.want) {
			t.Errorf("%s %d: %v, want %v", c.role, c.seat, got, c.want)
		}
	}
}

func TestTheDeadAreForgotten(t *testing.T) {
	r := newRoster("a", false, 6*second)
	r.see("b", 2, voice("sb"), 0)
	r.holds(lease{Member: "ghost", Session: "s"}, 0)
	r.pass(6 * second)
	r.pass(5 * time.Minute)
	if len(r.seen) != 0 || len(r.absent) != 0 {
		t.Errorf("still known: %v, %v", r.seen, r.absent)
	}
}
