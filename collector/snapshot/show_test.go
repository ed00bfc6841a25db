package snapshot

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

var updatePages = flag.Bool("update", false, "write the golden files")

// pageOf is the page about a snapshot.
func pageOf(t *testing.T, name string, s *Snapshot, style Style, known Known) string {
	t.Helper()
	var out bytes.Buffer
	p := &page{style: style}
	(&shown{name: name, s: s, cards: cards(s), known: known, top: 10}).write(p)
	if err := p.flush(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "pages", name+".txt")
	if *updatePages {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is not what is printed now; look at it, then -update:\n%s", path, got)
	}
}

func TestPages(t *testing.T) {
	golden(t, "frag", pageOf(t, "frag.pickle.gz", recordedFile(t, "frag"), Style{Width: 100},
		Known{WeightsBytes: gib(4), KVPoolBytes: gib(4), DeviceTotalBytes: gib(80), DeviceUsedBytes: gib(35), ProcessUsedBytes: gib(14)}))
	golden(t, "leak-oom", pageOf(t, "leak-oom.pickle.gz", recordedFile(t, "leak-oom"), Style{Width: 120}, Known{}))
	golden(t, "graphs-ascii", pageOf(t, "graphs.pickle.gz", recordedFile(t, "graphs"), Style{Width: 80, ASCII: true}, Known{}))
	golden(t, "stream_await", pageOf(t, "stream_await.pickle.gz", recordedFile(t, "stream_await"), Style{Width: 100}, Known{}))
	golden(t, "nothing", pageOf(t, "nothing.pickle", &Snapshot{Bytes: 60, Protocol: 4}, Style{Width: 100}, Known{}))
	var out bytes.Buffer
	for _, pair := range [][2]*Snapshot{{leaking(2), leaking(12)}, {recordedFile(t, "leak-oom"), recordedFile(t, "graphs")}} {
		d := differ(pair[0], pair[1])
		d.Before.File, d.After.File = "before.pickle", "after.pickle"
		p := &page{style: Style{Width: 100}}
		d.write(p, 5)
		if err := p.flush(&out); err != nil {
			t.Fatal(err)
		}
		out.WriteString(strings.Repeat("=", 40) + "\n")
	}
	golden(t, "diff", out.String())
}

// No line is wider than the terminal, and with ASCII every byte is printable; nothing steers the terminal.
func TestPagesFit(t *testing.T) {
	s := recordedFile(t, "graphs")
	s.Frames[len(s.Frames)-1].Name = "\x1b[2Jclear\x07" + strings.Repeat("x", 300)
	for _, name := range append([]string{"hostile name"}, recorded...) {
		if name != "hostile name" {
			s = recordedFile(t, name)
		}
		for _, style := range []Style{{Width: 80}, {Width: 100}, {Width: 120}, {Width: 80, ASCII: true}} {
			for i, line := range strings.Split(pageOf(t, name, s, style, Known{}), "\n") {
				wide := utf8.RuneCountInString(line)
				if style.ASCII { // an arrow becomes two characters
					wide -= strings.Count(line, "<-") + 2*strings.Count(line, "...")
				}
				if wide > style.Width {
					t.Errorf("%s at %d columns: line %d has %d: %s", name, style.Width, i+1, wide, line)
				}
				for _, r := range line {
					if r < ' ' || r == 0x7f || style.ASCII && r >= 0x7f {
						t.Fatalf("%s: line %d has the character %q: %s", name, i+1, r, line)
					}
				}
			}
		}
	}
}

// What an engineer is told about a failed request follows from its own numbers.
func TestOOMSentence(t *testing.T) {
	for _, c := range []struct {
		name, want, not string
		o               oom
	}{
		{"room in pieces", "Room in total, not in one piece: fragmentation.", "",
			oom{known: true, requested: 3 << 30, deviceFree: 1 << 30, room: room{4 << 30, 90, 1 << 30, 1 << 30}, live: 10 << 30, reserved: 14 << 30}},
		{"a full card with small holes is no fragmentation", "98 % of what was reserved was live", "fragmentation",
			oom{known: true, requested: 256 << 20, deviceFree: 0, room: room{276 << 20, 54, 70 << 20, 70 << 20}, live: 14503641088, reserved: 14793310208}},
		{"not even together", "Not enough even in one piece: 1 GiB short. CUDA had 512 MiB free on the card.", "fragmentation",
			oom{known: true, requested: 3 << 30, deviceFree: 512 << 20, room: room{2 << 30, 9, 1 << 30, 1 << 30}, live: 10 << 30, reserved: 12 << 30}},
		{"a limit", "not the card but a limit of the process, under 15 GiB", "",
			oom{known: true, requested: 3 << 30, deviceFree: 40 << 30, room: room{2 << 30, 9, 1 << 30, 1 << 30}, live: 10 << 30, reserved: 12 << 30}},
		{"another pool", "in a private pool or on another stream", "fragmentation",
			oom{known: true, requested: 1 << 30, room: room{4 << 30, 9, 2 << 30, 1 << 20}, live: 10 << 30, reserved: 14 << 30}},
		{"from a private pool", "the request came from a private pool", "fragmentation",
			oom{known: true, requested: 1 << 30, room: room{4 << 30, 9, 2 << 30, 2 << 30}, live: 10 << 30, reserved: 14 << 30}},
		{"contradictions", "what the allocator had then is not known. CUDA had 1 GiB free.", "largest", oom{requested: 1 << 30, deviceFree: 1 << 30, room: room{4 << 30, 9, 2 << 30, 2 << 30}}},
	} {
		if got := c.o.sentence(); !strings.Contains(got, c.want) || c.not != "" && strings.Contains(got, c.not) {
			t.Errorf("%s: %q, want %q, not %q", c.name, got, c.want, c.not)
		}
	}
}

func TestMapHidesNoHole(t *testing.T) {
	g := &Segment{Address: 0, Total: 128 << 20, Blocks: []Block{{Address: 0, Size: 63 << 20, State: Live}, {Address: 63 << 20, Size: 1 << 20, State: Free},
		{Address: 64 << 20, Size: 32 << 20, State: Free}, {Address: 96 << 20, Size: 16 << 20, State: Pending}, {Address: 112 << 20, Size: 1 << 20, State: Live}, {Address: 113 << 20, Size: 15 << 20, State: Free}}}
	p := &pool{parts: []*Segment{g}}
	if got := p.cells(16 << 20); got != "███▓··▒░" {
		t.Errorf("%s: three full cells, one with a hole, two free, one pending, one with little in it", got)
	}
	p = &pool{parts: []*Segment{{Total: 64 << 20, Blocks: []Block{{Size: 12 << 20, State: Live}, {Address: 12 << 20, Size: 52 << 20, State: Pending}}}}}
	if got := p.cells(16 << 20); got != "▓▒▒▒" {
		t.Errorf("%s: what is not all live is not drawn as live", got)
	}
	small := func(state State) *Segment {
		return &Segment{Total: 2 << 20, Blocks: []Block{{Size: 2 << 20, State: state}}}
	}
	p = &pool{parts: []*Segment{g, small(Live), small(Free), small(Free), g}}
	if got := p.cells(32 << 20); got != "█▓·▒│░│█▓·▒" {
		t.Errorf("%s: small segments share a cell between the large ones", got)
	}
}

func TestStyle(t *testing.T) {
	for _, c := range []struct {
		ascii   bool
		columns int
		env     map[string]string
		want    Style
	}{
		{false, 0, map[string]string{"LANG": "en_US.UTF-8"}, Style{false, 100}},
		{false, 200, map[string]string{"LC_ALL": "C.utf8", "LANG": "C"}, Style{false, 120}},
		{false, 60, map[string]string{"LANG": "C"}, Style{true, 80}},
		{false, 110, nil, Style{true, 110}},
		{true, 110, map[string]string{"LANG": "C.UTF-8"}, Style{true, 110}},
		{false, 0, map[string]string{"LANG": "C.UTF-8", "NO_COLOR": "1"}, Style{true, 100}},
	} {
		if got := StyleOf(c.ascii, func(name string) string { return c.env[name] }, c.columns); got != c.want {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}
