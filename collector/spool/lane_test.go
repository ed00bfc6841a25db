package spool

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lowtide/event"
)

func open(t testing.TB, o Options) *Spool {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closeIt(t testing.TB, s *Spool) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func fill(t testing.TB, l *Lane, from, to uint64, size int) {
	t.Helper()
	for n := from; n <= to; n++ {
		if err := l.Append(numbered(n, size)); err != nil {
			t.Fatalf("record %d: %v", n, err)
		}
	}
}

// take returns the number of the oldest record, after comparing all of it, and takes it out; 0 when there is none.
func take(t testing.TB, l *Lane) uint64 {
	t.Helper()
	r, err := l.Head()
	if err != nil {
		t.Fatal(err)
	}
	if r == nil {
		return 0
	}
	var n uint64
	if _, err := fmt.Sscanf(r.ID, "lab/h1/p/samples/%d", &n); err != nil {
		t.Fatalf("id %q: %v", r.ID, err)
	}
	if want := numbered(n, len(r.Data)); !r.At.Equal(want.At) || r.Events != 2 || r.Subject != want.Subject || !bytes.Equal(r.Data, want.Data) {
		t.Fatalf("record %d came back as another", n)
	}
	if err := l.Pop(); err != nil {
		t.Fatal(err)
	}
	return n
}

// runs takes everything out and says which numbers came, as "1-5 9-10".
func runs(t testing.TB, l *Lane) string {
	t.Helper()
	var out []string
	first, last := uint64(0), uint64(0)
	flush := func() {
		if first > 0 {
			out = append(out, fmt.Sprintf("%d-%d", first, last))
		}
	}
	for n := take(t, l); n != 0; n = take(t, l) {
		if first == 0 || n != last+1 {
			flush()
			first = n
		}
		last = n
	}
	flush()
	return strings.Join(out, " ")
}

// crash returns the folder as a killed collector leaves it: what is on disk at this moment, without an end in order.
func crash(t testing.TB, folder string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	return to
}

func segments(t testing.TB, folder, lane string) (paths []string) {
	t.Helper()
	numbers, err := listSegments(filepath.Join(folder, lane))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range numbers {
		paths = append(paths, segmentPath(filepath.Join(folder, lane), n))
	}
	return paths
}

func TestFirstInFirstOutOverRestarts(t *testing.T) {
	o := Options{Folder: t.TempDir(), MaxBytes: 8 << 20}
	s := open(t, o)
	l := s.Lane(event.LaneSamples)
	fill(t, l, 1, 1000, 500)
	for want := uint64(1); want <= 300; want++ {
		if got := take(t, l); got != want {
			t.Fatalf("record %d, want %d", got, want)
		}
	}
	if r, err := l.Head(); err != nil || r.ID != "lab/h1/p/samples/301" {
		t.Fatalf("head %v, %v", r, err)
	} // it is being sent when the end comes: the next collector sends it again
	closeIt(t, s)
	for round := range 2 {
		if round == 1 {
			o.Folder = crash(t, o.Folder)
		}
		s = open(t, o)
		l = s.Lane(event.LaneSamples)
		if got := l.Stats(); got.Messages != 700 || got.Events != 1400 || !got.Oldest.Equal(time.Unix(1_800_000_301, 0)) {
			t.Errorf("round %d: %+v, want 700 messages from 301 on", round, got)
		}
		if round == 0 {
			closeIt(t, s)
		}
	}
	fill(t, l, 1001, 1100, 500)
	if got, want := runs(t, l), "301-1100"; got != want {
		t.Errorf("came: %s, want %s", got, want)
	}
	if got := l.Stats(); got.Messages != 0 || got.Bytes != 0 || !got.Oldest.IsZero() || s.used.Load() != 0 {
		t.Errorf("an empty lane: %+v, %d bytes used", got, s.used.Load())
	}
	if left := segments(t, o.Folder, event.LaneSamples); len(left) > 0 {
		t.Errorf("an empty lane has the segments %v", left)
	}
	// Also where the file of the last one could not be removed, it counts as sent.
	file, at, _, err := openCursor(filepath.Join(o.Folder, event.LaneSamples, "cursor"))
	if err != nil || at != (cursor{l.next, 0}) {
		t.Errorf("cursor of an empty lane: %+v, %v, want the beginning of segment %d", at, err, l.next)
	}
	defer file.Close()
	fill(t, l, 1101, 1101, 500)
	o.Folder = crash(t, o.Folder)
	closeIt(t, s)
	s = open(t, o)
	defer closeIt(t, s)
	if got := runs(t, s.Lane(event.LaneSamples)); got != "1101-1101" {
		t.Errorf("after an empty lane: %s", got)
	}
}

func TestReaderFollowsTheWriter(t *testing.T) {
	s := open(t, Options{Folder: t.TempDir(), MaxBytes: 1 << 20})
	defer closeIt(t, s)
	l := s.Lane(event.LaneUrgent)
	next := uint64(0)
	for n := uint64(1); n <= 2000; n++ { // over many segments, two records behind
		fill(t, l, n, n, 700)
		if n > 2 {
			if next++; take(t, l) != next {
				t.Fatalf("record %d does not come", next)
			}
		}
	}
	if got := runs(t, l); got != "1999-2000" {
		t.Errorf("left: %s", got)
	}
}

// Whatever the last record lacks, those before it are there, and what comes goes on behind them.
func TestTornLastRecordIsCutOff(t *testing.T) {
	from := t.TempDir()
	s := open(t, Options{Folder: from, MaxBytes: 1 << 20})
	fill(t, s.Lane(event.LaneSamples), 1, 3, 20)
	torn := crash(t, from)
	closeIt(t, s)
	one, err := appendRecord(nil, numbered(3, 20))
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(segments(t, torn, event.LaneSamples)[0])
	if err != nil {
		t.Fatal(err)
	}
	for missing := 1; missing < len(one); missing++ {
		o := Options{Folder: t.TempDir(), MaxBytes: 1 << 20}
		path := segmentPath(filepath.Join(o.Folder, event.LaneSamples), 1)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, whole[:len(whole)-missing], 0o600); err != nil {
			t.Fatal(err)
		}
		s := open(t, o)
		l := s.Lane(event.LaneSamples)
		if info, err := os.Stat(path); err != nil || info.Size() != int64(len(whole)-len(one)) {
			t.Errorf("%d bytes missing: the file has %d bytes, %v, want %d", missing, info.Size(), err, len(whole)-len(one))
		}
		if got := l.Stats(); got.Torn != 1 || got.DamagedSegments != 0 || got.Messages != 2 {
			t.Errorf("%d bytes missing: %+v", missing, got)
		}
		fill(t, l, 4, 4, 20)
		if got := runs(t, l); got != "1-2 4-4" {
			t.Errorf("%d bytes missing: %s", missing, got)
		}
		closeIt(t, s)
	}
}

func flip(t testing.TB, path string, at int64) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var b [1]byte
	if _, err := file.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := file.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

// Segments of 1 MiB / 16 hold 61 records of 1,069 bytes (1,000 of data, 53 to 55 around them): 1-61, 62-122, 123-…
func TestDamagedRecordInTheMiddleCostsItsSegment(t *testing.T) {
	const size = 1000
	bytesOf := func(n uint64) int64 {
		b, err := appendRecord(nil, numbered(n, size))
		if err != nil {
			t.Fatal(err)
		}
		return int64(len(b))
	}
	offset := headerBytes // of record 71 in the second segment
	last := uint64(0)     // of the first segment
	for at := headerBytes; at+bytesOf(last+1) <= minSegment; last++ {
		at += bytesOf(last + 1)
	}
	for n := last + 1; n < last+10; n++ {
		offset += bytesOf(n)
	}
	third := last
	for at := headerBytes; at+bytesOf(third+1) <= minSegment; third++ {
		at += bytesOf(third + 1)
	}
	third++
	want := fmt.Sprintf("1-%d %d-200", last+9, third)
	t.Run("before the start", func(t *testing.T) {
		o := Options{Folder: t.TempDir(), MaxBytes: 1 << 20}
		s := open(t, o)
		fill(t, s.Lane(event.LaneSamples), 1, 200, size)
		closeIt(t, s)
		flip(t, segments(t, o.Folder, event.LaneSamples)[1], offset+500)
		s = open(t, o)
		defer closeIt(t, s)
		l := s.Lane(event.LaneSamples)
		if got := l.Stats(); got.DamagedSegments != 1 || got.Torn != 0 || got.Messages != 200-(third-last-10) {
			t.Errorf("%+v", got)
		}
		if got := runs(t, l); got != want {
			t.Errorf("came: %s, want %s", got, want)
		}
	})
	t.Run("while it is open", func(t *testing.T) {
		o := Options{Folder: t.TempDir(), MaxBytes: 1 << 20}
		s := open(t, o)
		defer closeIt(t, s)
		l := s.Lane(event.LaneSamples)
		fill(t, l, 1, 200, size)
		flip(t, segments(t, o.Folder, event.LaneSamples)[1], offset+500)
		if got := runs(t, l); got != want {
			t.Errorf("came: %s, want %s", got, want)
		}
		if got := l.Stats(); got.DamagedSegments != 1 || got.Damaged != (Amount{third - last - 10, 2 * (third - last - 10)}) {
			t.Errorf("%+v, want %d messages lost", got, third-last-10)
		}
		if left := segments(t, o.Folder, event.LaneSamples); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	})
	t.Run("a file that somebody removed", func(t *testing.T) {
		o := Options{Folder: t.TempDir(), MaxBytes: 1 << 20}
		s := open(t, o)
		defer closeIt(t, s)
		l := s.Lane(event.LaneSamples)
		fill(t, l, 1, 200, size)
		if err := os.Remove(segments(t, o.Folder, event.LaneSamples)[1]); err != nil {
			t.Fatal(err)
		}
		if got, want := runs(t, l), fmt.Sprintf("1-%d %d-200", last, third); got != want {
			t.Errorf("came: %s, want %s", got, want)
		}
	})
}

// A damaged cursor, or one that a crash of the host took back, sends again what was sent; one that is ahead of its segment loses nothing else.
func TestCursorThatIsWrongSendsAgain(t *testing.T) {
	for name, c := range map[string]struct {
		cursor []byte
		want   string
	}{
		"damaged":            {[]byte("twenty bytes of noise"), "1-150"},
		"gone":               {nil, "1-150"},
		"between records":    {cursor{1, 1234}.encode(), "1-150"},
		"behind the segment": {cursor{1, 1 << 40}.encode(), "62-150"},
		"newer":              {cursor{2, 0}.encode(), "62-150"},
	} {
		o := Options{Folder: t.TempDir(), MaxBytes: 1 << 20}
		s := open(t, o)
		fill(t, s.Lane(event.LaneSamples), 1, 150, 1000)
		for range 30 {
			take(t, s.Lane(event.LaneSamples))
		}
		closeIt(t, s)
		if err := os.WriteFile(filepath.Join(o.Folder, event.LaneSamples, "cursor"), c.cursor, 0o600); err != nil {
			t.Fatal(err)
		}
		s = open(t, o)
		if got := runs(t, s.Lane(event.LaneSamples)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		closeIt(t, s)
	}
}
