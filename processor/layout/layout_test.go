package layout

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/event"
)

type town struct {
	name   string
	roads  []*town
	mayor  *town
	people map[street]int
	at     time.Time
	levels [2]float64
	small  uint8
	none   *int
	zero   *int
	who    *event.Worker
	rumour string // not kept
}

type street struct {
	name string
	part uint16
}

func (t *town) Parts() []any {
	return []any{&t.name, &t.roads, &t.mayor, &t.people, &t.at, &t.levels, &t.small, &t.none, &t.zero, &t.who}
}

func towns() (*Layout, *town) {
	a, b := &town{name: "a", levels: [2]float64{math.NaN(), -0.1}, small: 255, zero: new(int), rumour: "?"}, &town{name: "b", at: time.Unix(-5, 7).UTC()}
	a.roads, b.roads, b.mayor = []*town{b, a, b}, []*town{a}, b
	a.people = map[street]int{{"x", 2}: -1, {"x", 1}: 1 << 40, {"", 9}: 0}
	a.at, a.who = time.Unix(1_790_000_000, 0).UTC(), &event.Worker{Pid: 7, Unit: "u"}
	return New(Options{Magic: "T", Version: 1, Most: 1 << 20, Nodes: []Node{{new(town), 10}}}, new(*town)), a
}

// What refers to itself and to each other comes back in the same shape; absent is not zero.
func TestAGraphGoesRound(t *testing.T) {
	l, a := towns()
	parts, err := l.Write(&a)
	if err != nil {
		t.Fatal(err)
	}
	open, err := l.Open(l.Seal(parts))
	if err != nil || !bytes.Equal(open, parts) {
		t.Fatalf("sealed and opened it differs: %v", err)
	}
	var got *town
	graph, err := l.Read(parts, &got)
	if err != nil {
		t.Fatal(err)
	}
	all := All[town](graph)
	if len(all) != 2 || all[0] != got || !slices.Equal(got.roads, []*town{all[1], got, all[1]}) || all[1].roads[0] != got || all[1].mayor != all[1] || got.mayor != nil {
		t.Fatalf("another graph: %+v", got)
	}
	if got.name != "a" || got.levels[0] == got.levels[0] || got.levels[1] != -0.1 || got.small != 255 || got.none != nil || got.zero == nil || *got.zero != 0 || got.rumour != "" {
		t.Errorf("other values: %+v", got)
	}
	if len(got.people) != 3 || got.people[street{"x", 1}] != 1<<40 || got.people[street{"x", 2}] != -1 || all[1].people == nil || len(all[1].people) != 0 {
		t.Errorf("other people: %v, %v", got.people, all[1].people)
	}
	if !got.at.Equal(a.at) || !all[1].at.Equal(time.Unix(-5, 7)) || got.who.Pid != 7 || got.who.Unit != "u" || got.who.StartTicks != nil {
		t.Errorf("other times or processes: %v, %v, %v", got.at, all[1].at, got.who)
	}
	if again, err := l.Write(&got); err != nil || !bytes.Equal(again, parts) {
		t.Errorf("written again it differs: %v", err)
	}
	if names := l.Unkept(); !slices.Equal(names, []string{"town.rumour"}) {
		t.Errorf("not kept are %v", names)
	}
}

func TestWhatNoGraphIsIsRefused(t *testing.T) {
	l, _ := towns()
	for name, test := range map[string]struct {
		parts []byte
		says  string
	}{
		"nothing":            {nil, "too early"},
		"nobody is known":    {[]byte{2}, "nobody"},
		"more than there is": {append([]byte{0}, 0), "more than"},
		"a list of nobody":   {[]byte{1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "names nobody"},
		"a long list":        {[]byte{1, 0, 0xff, 0xff, 0x3f}, "too early"},
		"keys out of order":  {append([]byte{1, 0, 0, 0, 2, 1, 'b', 0, 0, 1, 'a', 0, 0}, make([]byte, 9)...), "not in order"},
		"not a bool":         {append([]byte{1, 0, 0, 0, 0, 2}, make([]byte, 9)...), "too large"},
	} {
		var got *town
		if _, err := l.Read(test.parts, &got); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	many := &town{}
	for range 10 {
		many.roads = append(many.roads, &town{})
	}
	if _, err := l.Write(&many); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "more than 10") {
		t.Errorf("eleven towns: %v", err)
	}
}

// A field that comes, goes or moves makes another layout.
func TestAnotherLayoutIsAnotherVersion(t *testing.T) {
	type one struct{ A, B int }
	type moved struct{ B, A int }
	type more struct{ A, B, C int }
	type wider struct{ A, B uint64 }
	write := New(Options{Magic: "T", Version: 1, Most: 100}, new(one))
	parts, err := write.Write(&one{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range []any{new(moved), new(more), new(wider), new([]one)} {
		if _, err := New(Options{Magic: "T", Version: 1, Most: 100}, root).Open(write.Seal(parts)); !errors.Is(err, ErrVersion) {
			t.Errorf("%T: %v", root, err)
		}
	}
	if _, err := New(Options{Magic: "T", Version: 1, Most: 100}, new(one)).Open(write.Seal(parts)); err != nil {
		t.Error(err)
	}
}

// What s2 makes so small of that it would not be believed is kept as it is.
func TestNothingBecomesTooSmall(t *testing.T) {
	l := New(Options{Magic: "T", Version: 1, Most: 1 << 27}, new([]byte))
	parts := make([]byte, 40<<20)
	sealed := l.Seal(parts)
	open, err := l.Open(sealed)
	if err != nil || !bytes.Equal(open, parts) {
		t.Fatalf("%d bytes of %d: %v", len(open), len(sealed), err)
	}
	if l := New(Options{Magic: "T", Version: 1, Most: 1 << 20}, new([]byte)); l != nil {
		if _, err := l.Open(sealed); !errors.Is(err, ErrState) {
			t.Errorf("more than it may have: %v", err)
		}
	}
}
