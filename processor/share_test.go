package processor

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

func posting(board *Board, peers map[string]peer) *Judge {
	j := &Judge{board: board, seat: board.join()}
	for life, p := range peers {
		p.from = j.seat
		board.report(peerGroup{"c", "m", "worker"}, life, p)
	}
	return j
}

func shared(t testing.TB, j *Judge) []byte {
	t.Helper()
	share, err := j.Share()
	if err != nil {
		t.Fatal(err)
	}
	return share
}

func word(release string, level uint16, after time.Duration) peer {
	return peer{release: release, rate: 1000, rated: true, points: 6, level: level, at: peersAt.Add(after)}
}

// What a partition of another process knows proves something here: the old release does not grow.
func TestPeersOfOtherProcessesProve(t *testing.T) {
	there, here := NewBoard(), NewBoard()
	theirs := posting(there, map[string]peer{"c/h1/b/1/1": word("old", 1<<live, 0)})
	posting(there, map[string]peer{"c/h2/b/1/1": word("other", 1<<live, 0)})
	if err := here.Take(shared(t, theirs)); err != nil {
		t.Fatal(err)
	}
	self := word("new", 0, 0)
	self.called = 1 << live
	if got := here.compare(peerGroup{"c", "m", "worker"}, "c/h9/b/1/1", self)[live]; !got.proof || got.other != 1 {
		t.Errorf("they say %+v, and only those of one judge were shared", got)
	}
}

// Of the words about one life that of its own judge stands, whoever else has one; else the newest.
func TestWhoseWordStands(t *testing.T) {
	of := peerGroup{"c", "m", "worker"}
	own := func(board *Board) peer { return board.groups[of]["life"] }
	board, other := NewBoard(), NewBoard()
	take := func(after time.Duration, release string) {
		t.Helper()
		if err := board.Take(shared(t, posting(other, map[string]peer{"life": word(release, 0, after)}))); err != nil {
			t.Fatal(err)
		}
	}
	mine := posting(board, map[string]peer{"life": word("mine", 0, 0)})
	take(time.Hour, "theirs")
	if own(board).release != "mine" {
		t.Error("another one's word about its own worker was believed")
	}
	mine.Leave()
	take(-time.Hour, "old")
	if own(board).release != "mine" {
		t.Error("an older word was believed")
	}
	take(time.Hour, "theirs")
	if own(board).release != "theirs" || own(board).from != 0 {
		t.Errorf("once it has left, the newer word counts: %+v", own(board))
	}
	posting(board, map[string]peer{"life": word("mine again", 0, -time.Hour)})
	if own(board).release != "mine again" {
		t.Error("its judge came back and is not believed")
	}
}

func TestAShareIsBounded(t *testing.T) {
	board, many := NewBoard(), map[string]peer{}
	j := &Judge{board: board, seat: board.join()}
	for i := range 3 * maxPeers {
		p := word(fmt.Sprintf("release %x", i*7919), 0, -time.Duration(i)*time.Second)
		p.from = j.seat
		life := fmt.Sprintf("c/h%d/%032x/%d/%d", i, i*104729*104729, i, i*31)
		board.report(peerGroup{"c", fmt.Sprint("m", i%3), "worker"}, life, p)
		many[life] = p
	}
	board.report(peerGroup{"c", "m0", "worker"}, "of last week", peer{release: "r", points: 6, at: peersAt.Add(-8 * 24 * time.Hour), from: j.seat})
	share := shared(t, j)
	if len(share) > maxShare {
		t.Errorf("%d bytes", len(share))
	}
	all, err := readShare(share)
	if err != nil || len(all) != maxPeersOf {
		t.Fatalf("%d peers: %v", len(all), err)
	}
	for i, one := range all {
		if i > 0 && one.Word.at.After(all[i-1].Word.at) || many[one.Life].release != one.Word.release {
			t.Fatalf("entry %d is %+v", i, one)
		}
	}
	if empty := shared(t, posting(NewBoard(), nil)); NewBoard().Take(empty) != nil {
		t.Error("a share without peers is refused")
	}
	if !slices.Equal(share, shared(t, j)) {
		t.Error("the same peers are shared in other bytes")
	}
}

func TestAShareThatNobodyWroteIsRefused(t *testing.T) {
	of := peerGroup{"c", "m", "worker"}
	seal := func(one posted) []byte {
		parts, err := shareLayout().Write(&[]posted{one})
		if err != nil {
			t.Fatal(err)
		}
		return shareLayout().Seal(parts)
	}
	good := word("r", 0, 0)
	bad := func(change func(*posted)) []byte {
		one := posted{of, "life", good}
		change(&one)
		return seal(one)
	}
	version := bad(func(*posted) {})
	version[3]++
	board := NewBoard()
	for name, share := range map[string][]byte{
		"empty": nil, "large": make([]byte, maxShare+1), "text": []byte("it does not begin as one does"),
		"a name":        bad(func(p *posted) { p.Life = "" }),
		"a long name":   bad(func(p *posted) { p.Word.release = strings.Repeat("r", maxWord+1) }),
		"no model":      bad(func(p *posted) { p.Group.model = "" }),
		"few points":    bad(func(p *posted) { p.Word.points = 3 }),
		"another grows": bad(func(p *posted) { p.Word.called = 1 << len(growers) }),
		"a rate":        bad(func(p *posted) { p.Word.rate = -1 }),
	} {
		if err := board.Take(share); !errors.Is(err, ErrState) || !strings.HasPrefix(err.Error(), "take peers: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := board.Take(version); !errors.Is(err, ErrStateVersion) {
		t.Errorf("another version: %v", err)
	}
	if len(board.groups) > 0 {
		t.Errorf("taken was %v", slices.Collect(maps.Keys(board.groups)))
	}
}

func FuzzTakePeers(f *testing.F) {
	share := shared(f, posting(NewBoard(), map[string]peer{"a": word("r", 1, 0), "b": word("s", 0, time.Hour)}))
	f.Add(share, false)
	parts, err := shareLayout().Open(share)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(parts, true) // behind the checksum
	f.Fuzz(func(t *testing.T, share []byte, bare bool) {
		if len(share) > 1<<20 {
			return
		}
		if bare {
			share = shareLayout().Seal(share)
		}
		board := NewBoard()
		if err := board.Take(share); err != nil {
			if !errors.Is(err, ErrState) && !errors.Is(err, ErrStateVersion) {
				t.Fatal(err)
			}
			return
		}
		if n := len(board.groups); n > maxGroups {
			t.Fatalf("%d groups", n)
		}
		for of, group := range board.groups {
			if len(group) > maxPeers {
				t.Fatalf("%d peers of %v", len(group), of)
			}
			board.compare(of, "self", word("new", 0, 0))
		}
	})
}
