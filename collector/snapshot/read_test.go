package snapshot

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/gzip"
)

// figures are what testdata/figures.py, with Python's pickle, reads in a snapshot.
type figures struct {
	File        string               `json:"file"`
	Segments    int                  `json:"segments"`
	Blocks      int                  `json:"blocks"`
	Traces      []int                `json:"traces"`
	Actions     map[string]int       `json:"actions"`
	Pools       map[string][5]uint64 `json:"pools"` // reserved, live, pending, free, largest free block
	Annotations int                  `json:"annotations"`
	SHA256      string               `json:"sha256"` // of every field of every segment, block and entry
}

func stackText(s *Snapshot, id uint32) string {
	var b strings.Builder
	for i, f := range s.Stacks[id] {
		if i > 0 {
			b.WriteByte('|')
		}
		fmt.Fprintf(&b, "%s:%d:%s", s.Frames[f].File, s.Frames[f].Line, s.Frames[f].Name)
	}
	return b.String()
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

func figuresOf(file string, s *Snapshot) figures {
	f := figures{File: file, Segments: len(s.Segments), Actions: map[string]int{}, Pools: map[string][5]uint64{}, Annotations: s.Annotations}
	digest := sha256.New()
	for _, g := range s.Segments {
		fmt.Fprintf(digest, "S %d %d %d,%d %d %d %d %d %d %d %d %d %s\n", g.Device, g.Stream, g.Pool[0], g.Pool[1], bit(g.Large), bit(g.Expandable),
			g.Address, g.Total, g.Allocated, g.Active, g.Requested, len(g.Blocks), stackText(s, g.Stack))
		name := fmt.Sprintf("%d/%d/%d,%d", g.Device, g.Stream, g.Pool[0], g.Pool[1])
		pool := f.Pools[name]
		pool[0] += g.Total
		for _, b := range g.Blocks {
			f.Blocks++
			fmt.Fprintf(digest, "B %d %d %d %d %s\n", b.Address, b.Size, b.Requested, b.State, stackText(s, b.Stack))
			pool[b.State] += b.Size
			if b.State == Free {
				pool[4] = max(pool[4], b.Size)
			}
		}
		f.Pools[name] = pool
	}
	for n, trace := range s.Traces {
		f.Traces = append(f.Traces, len(trace))
		for _, e := range trace {
			f.Actions[e.Action.String()]++
			fmt.Fprintf(digest, "E %d %s %d %d %d %d %s\n", n, e.Action, e.Address, e.Size, e.Stream, e.Micros, stackText(s, e.Stack))
		}
	}
	f.SHA256 = hex.EncodeToString(digest.Sum(nil))
	return f
}

func sample(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustRead(t testing.TB, b []byte) *Snapshot {
	t.Helper()
	s, err := Read(bytes.NewReader(b), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The snapshots are PyTorch's, of an H200; the figures are Python's.
func TestReadWhatPythonReads(t *testing.T) {
	file, err := os.Open("testdata/figures.ndjson")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	var n int
	for lines.Scan() {
		var want figures
		if err := json.Unmarshal(lines.Bytes(), &want); err != nil {
			t.Fatal(err)
		}
		n++
		t.Run(want.File, func(t *testing.T) {
			packed, err := os.Open(filepath.Join("testdata", want.File))
			if err != nil {
				t.Fatal(err)
			}
			defer packed.Close()
			s, err := Read(packed, Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if got := figuresOf(want.File, s); !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			if !s.Settings.Known || s.Settings.MaxSplitSize != -1 || s.Settings.Expandable != (want.File == "expandable-oom.pickle.gz") || len(s.Unknown) != 0 || s.Legacy {
				t.Errorf("settings %+v, unknown %q, legacy %v", s.Settings, s.Unknown, s.Legacy)
			}
		})
	}
	if n != 6 {
		t.Fatalf("%d snapshots with figures, want 6", n)
	}
}

// From a pipe the bytes come as they like.
func TestReadInPieces(t *testing.T) {
	b := sample(t, "stream_await.pickle.gz")
	want := mustRead(t, b)
	for name, r := range map[string]io.Reader{
		"a byte at a time": iotest.OneByteReader(bytes.NewReader(b)), "halves": iotest.HalfReader(bytes.NewReader(b)),
		"the end with the last bytes": iotest.DataErrReader(bytes.NewReader(b)),
	} {
		got, err := Read(r, Limits{})
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, or another snapshot", name, err)
		}
	}
	r, w := io.Pipe()
	go func() {
		_, err := w.Write(b)
		w.CloseWithError(err)
	}()
	if got, err := Read(r, Limits{}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("pipe: %v, or another snapshot", err)
	}
}

func python(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: there is no python3 on this machine, so that nothing is compared with CPython's pickle")
	}
	return path
}

// Each snapshot in each protocol that Python writes, and generated ones that Python reads beside us.
func TestReadBesideCPython(t *testing.T) {
	py := python(t)
	dir := t.TempDir()
	files := map[string][]byte{}
	for name, s := range map[string]shape{
		"serving": serving(3001), "bare": {protocol: 4, devices: 9, segments: 3, blocks: 2, entries: 7},
		"unshared":  {protocol: 3, devices: 1, segments: 5, blocks: 5, entries: 400, depth: 30, sites: 20, unshared: true},
		"protocol2": {protocol: 2, devices: 2, segments: 5, blocks: 1, entries: 1001, depth: 3, sites: 9, metadata: true},
		"torch":     {protocol: 2, torch: true, devices: 2, segments: 50, blocks: 7, entries: 5000, depth: 8, sites: 30},
		"deep":      {protocol: 5, devices: 1, segments: 1, blocks: 1, entries: 10, depth: 2500, sites: 3},
	} {
		files[name] = generate(s)
	}
	for _, name := range []string{"graphs.pickle.gz", "stream_await.pickle.gz"} {
		for protocol := 2; protocol <= 5; protocol++ {
			b, err := exec.CommandContext(t.Context(), py, "testdata/figures.py", "--again", fmt.Sprint(protocol), filepath.Join("testdata", name)).Output()
			if err != nil {
				t.Fatal(err)
			}
			files[fmt.Sprintf("%s.%d", strings.TrimSuffix(name, ".pickle.gz"), protocol)] = b
		}
	}
	args := []string{"testdata/figures.py"}
	for name := range maps.Keys(files) {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, files[name], 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, path)
	}
	out, err := exec.CommandContext(t.Context(), py, args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	for line := range bytes.Lines(out) {
		var want figures
		if err := json.Unmarshal(line, &want); err != nil {
			t.Fatal(err)
		}
		n++
		s := mustRead(t, files[want.File])
		if got := figuresOf(want.File, s); !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
		if s.Bytes != int64(len(files[want.File])) || s.Protocol != int(files[want.File][1]) {
			t.Errorf("%s: %d bytes of protocol %d", want.File, s.Bytes, s.Protocol)
		}
	}
	if n != len(files) {
		t.Errorf("Python read %d files, want %d", n, len(files))
	}
}
