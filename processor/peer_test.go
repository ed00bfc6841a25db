package processor

import (
	"fmt"
	"testing"
	"time"
)

var peersAt = time.Unix(1_790_000_000, 0).UTC()

const (
	live    = 0
	outside = 1
)

// What the others say about a worker of release new in which live memory grows, at 1000 requests an hour.
func TestWhatPeersProve(t *testing.T) {
	level, grows := peer{level: 1 << live}, peer{called: 1 << live}
	with := func(p peer, release string, rate float64) peer {
		p.release, p.rate, p.rated, p.points, p.at = release, rate, rate >= 0, 6, peersAt
		return p
	}
	for name, test := range map[string]struct {
		others                              []peer
		proof, comparable                   bool
		same, sameGrowing, other, otherGrow int
	}{
		"the old release is level at a like load":     {[]peer{with(level, "old", 1900)}, true, true, 0, 0, 1, 0},
		"at a third of the load":                      {[]peer{with(level, "old", 333)}, false, false, 0, 0, 0, 0},
		"at a load that is not known":                 {[]peer{with(level, "old", -1)}, false, false, 0, 0, 0, 0},
		"the old release grows too":                   {[]peer{with(level, "old", 1000), with(grows, "old", 1000)}, false, true, 0, 0, 2, 1},
		"the old release grows elsewhere":             {[]peer{with(level, "old", 1000), with(grows, "old", 9000)}, false, true, 0, 0, 1, 0},
		"one of two other releases is level":          {[]peer{with(grows, "old", 1000), with(level, "older", 1000)}, true, true, 0, 0, 2, 1},
		"neither grows nor is proven level":           {[]peer{with(peer{}, "old", 1000)}, false, true, 0, 0, 1, 0},
		"peers of the same release are counted":       {[]peer{with(level, "new", 1), with(grows, "new", 9)}, false, false, 2, 1, 0, 0},
		"too few points":                              {[]peer{{release: "old", rate: 1000, rated: true, points: 3, level: 1, at: peersAt}}, false, false, 0, 0, 0, 0},
		"a release that nobody knows":                 {[]peer{with(level, "", 1000)}, false, false, 0, 0, 0, 0},
		"another series of the old release is level":  {[]peer{with(peer{level: 1 << outside}, "old", 1000)}, false, true, 0, 0, 1, 0},
		"the good release ended six days ago":         {[]peer{aged(with(level, "old", 1000), 6*24*time.Hour)}, true, true, 0, 0, 1, 0},
		"the good release ended eight days ago":       {[]peer{aged(with(level, "old", 1000), 8*24*time.Hour)}, false, false, 0, 0, 0, 0},
		"an earlier life of the same release is none": {[]peer{aged(with(grows, "new", 1000), 5*time.Hour)}, false, false, 0, 0, 0, 0},
	} {
		b := NewBoard()
		of := peerGroup{"c", "m", "worker"}
		for i, p := range test.others {
			b.report(of, fmt.Sprint("peer", i), p)
		}
		b.report(peerGroup{"c", "another", "worker"}, "x", with(level, "old", 1000))
		self := with(grows, "new", 1000)
		b.report(of, "self", self)
		got := b.compare(of, "self", self)[live]
		if want := (comparison{test.same, test.sameGrowing, test.other, test.otherGrow, test.proof, test.comparable}); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

func aged(p peer, by time.Duration) peer {
	p.at = p.at.Add(-by)
	return p
}

// A crash loop of a thousand lives does not push the good release out, and the board stays bounded.
func TestTheBoardIsBounded(t *testing.T) {
	b := NewBoard()
	of := peerGroup{"c", "m", "worker"}
	for i := range 3 * maxPeers {
		b.report(of, fmt.Sprint("life", i), peer{release: "new", points: 1, at: peersAt.Add(time.Duration(i) * time.Minute)})
	}
	if n := len(b.groups[of]); n != 0 {
		t.Errorf("%d lives without points are held", n)
	}
	for i := range maxPeers + 10 {
		b.report(of, fmt.Sprint("life", i), peer{release: "new", points: 4, at: peersAt.Add(time.Duration(i) * time.Minute)})
	}
	if _, held := b.groups[of]["life9"]; held || len(b.groups[of]) != maxPeers {
		t.Errorf("%d are held, the oldest among them: %v", len(b.groups[of]), held)
	}
	for i := range maxGroups + 5 {
		b.report(peerGroup{"c", fmt.Sprint("model", i), "worker"}, "x", peer{points: 4, at: peersAt.Add(time.Duration(i) * time.Second)})
	}
	if len(b.groups) != maxGroups {
		t.Errorf("%d groups are held", len(b.groups))
	}
}

// A worker whose clock is two weeks ahead asks; the others still have their control.
func TestAClockThatIsAheadDropsNoPeers(t *testing.T) {
	b, of := NewBoard(), peerGroup{"c", "m", "worker"}
	b.report(of, "good", peer{release: "old", rate: 1000, rated: true, points: 6, level: 1 << live, at: peersAt})
	self := peer{release: "new", rate: 1000, rated: true, points: 6, called: 1 << live, at: peersAt.Add(14 * 24 * time.Hour)}
	if b.compare(of, "ahead", self)[live].comparable {
		t.Error("what ended two weeks ago by its own clock is a control")
	}
	self.at = peersAt
	if !b.compare(of, "self", self)[live].proof {
		t.Error("the good release is gone")
	}
}
