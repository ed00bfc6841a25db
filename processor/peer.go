package processor

import (
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	peerPoints = 4                  // as many points say something about a peer
	peerLoad   = 2.0                // a like load is within this factor
	peerKept   = 7 * 24 * time.Hour // how long one that has ended still is a control
	peerHeard  = 2 * time.Hour      // one of the same release that has not reported for so long is gone
	maxPeers   = 2000               // of one model in one role
	maxGroups  = 2000
)

// Board is what the workers of a model tell each other: which series grow, in which release, at what load. What has ended stays for
// a week, as the release that was good. It may be shared by judges in several goroutines.
type Board struct {
	mu     sync.Mutex
	groups map[peerGroup]map[string]peer // by process life
	judges uint64                        // that have joined
}

type peerGroup struct{ cluster, model, role string }

// peer is one process life as its last report tells it. Called and level have a bit for each of growers.
type peer struct {
	release       string
	rate          float64 // requests an hour
	rated         bool
	points        int
	called, level uint16
	at            time.Time
	from          uint64 // the judge whose word it is; zero for one of another process
}

// NewBoard returns an empty board.
func NewBoard() *Board { return &Board{groups: make(map[peerGroup]map[string]peer)} }

// join returns the number by which the board knows the words of one judge.
func (b *Board) join() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.judges++
	return b.judges
}

// report takes the newest word of a life. Without enough points it says nothing and takes no room.
func (b *Board) report(of peerGroup, life string, p peer) {
	if of.model == "" || p.points < peerPoints {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.put(of, life, p)
}

// put is report where mu is held.
func (b *Board) put(of peerGroup, life string, p peer) {
	group := b.groups[of]
	if group == nil {
		if len(b.groups) >= maxGroups {
			b.dropGroup()
		}
		group = make(map[string]peer)
		b.groups[of] = group
	}
	if _, known := group[life]; !known && len(group) >= maxPeers {
		dropOldest(group)
	}
	group[life] = p
}

// dropOldest makes room for one: the one that was heard least recently, and among those the first by name.
func dropOldest(group map[string]peer) {
	oldest := ""
	for life, p := range group {
		if oldest == "" || p.at.Before(group[oldest].at) || p.at.Equal(group[oldest].at) && life < oldest {
			oldest = life
		}
	}
	delete(group, oldest)
}

// dropGroup makes room for a group: that of which nobody was heard for the longest time.
func (b *Board) dropGroup() {
	var oldest peerGroup
	var heard time.Time
	found := false
	order := func(a, b peerGroup) int {
		return strings.Compare(a.cluster+"\x00"+a.model+"\x00"+a.role, b.cluster+"\x00"+b.model+"\x00"+b.role)
	}
	for of, group := range b.groups {
		var newest time.Time
		for _, p := range group {
			if p.at.After(newest) {
				newest = p.at
			}
		}
		if !found || newest.Before(heard) || newest.Equal(heard) && order(of, oldest) < 0 {
			oldest, heard, found = of, newest, true
		}
	}
	delete(b.groups, oldest)
}

// comparison is what the peers say about one series.
type comparison struct {
	same, sameGrowing   int
	other, otherGrowing int
	proof, comparable   bool // comparable: a release at a like load was there to compare with
}

// compare asks the others of a group about each of the series in called. A proof is a release other than its own of which none
// grows and at least one, at a like load, is proven level: what differs is the release, not the traffic.
func (b *Board) compare(of peerGroup, life string, self peer) (all [len(growers)]comparison) {
	b.mu.Lock()
	defer b.mu.Unlock()
	group := b.groups[of]
	type control struct {
		release string
		// a bit for each of growers
		level, growing uint16
	}
	var releases []control // a handful
	for other, p := range group {
		switch {
		case other == life:
			continue
		case self.at.Sub(p.at) > peerKept:
			continue // not dropped: this one's clock may be ahead
		case p.release == "" || self.release == "":
			continue // nobody knows whether it is the same
		}
		if p.release == self.release {
			if self.at.Sub(p.at) > peerHeard {
				continue // an earlier life, perhaps of this very slot
			}
			for i := range all {
				all[i].same++
				all[i].sameGrowing += bit(p.called, i)
			}
			continue
		}
		at := slices.IndexFunc(releases, func(c control) bool { return c.release == p.release })
		if at < 0 {
			at = len(releases)
			releases = append(releases, control{release: p.release})
		}
		releases[at].growing |= p.called
		if !like(self, p) {
			continue
		}
		releases[at].level |= p.level
		for i := range all {
			all[i].other++
			all[i].otherGrowing += bit(p.called, i)
		}
	}
	for i := range all {
		all[i].comparable = all[i].other > 0
		for _, c := range releases {
			all[i].proof = all[i].proof || bit(c.level, i) == 1 && bit(c.growing, i) == 0
		}
	}
	return all
}

// replicas counts the lives of a release that were heard of late, this one included, and those without a call of the series in mask.
// Both are zero where nobody else is known: then nobody can say.
func (b *Board) replicas(of peerGroup, life, release string, at time.Time, mask uint16) (healthy, total int) {
	if release == "" {
		return 0, 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for other, p := range b.groups[of] {
		if other == life || p.release != release || at.Sub(p.at) > peerHeard {
			continue
		}
		total++
		if p.called&mask == 0 {
			healthy++
		}
	}
	if total == 0 {
		return 0, 0
	}
	return healthy, total + 1
}

func bit(of uint16, i int) int { return int(of >> i & 1) }

// like compares loads. One that is not known is like no other.
func like(a, b peer) bool {
	if !a.rated || !b.rated {
		return false
	}
	low, high := min(a.rate, b.rate), max(a.rate, b.rate)
	return high <= peerLoad*low || high < 1 // both idle
}
