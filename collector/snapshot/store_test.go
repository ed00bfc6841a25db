package snapshot

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// shelf is a store on a disk with room.
func shelf(t *testing.T) *Store {
	t.Helper()
	s, err := OpenStore(filepath.Join(t.TempDir(), "lowtide", "snapshots"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.freeSpace = func(string) (uint64, uint64, error) { return 100 << 30, 200 << 30, nil }
	return s
}

func inFolder(t *testing.T, s *Store) []string {
	t.Helper()
	entries, err := os.ReadDir(s.folder)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// keep writes and keeps one file; size bytes of it are a hole.
func keepRaw(t *testing.T, s *Store, open func() (*Raw, error), at time.Time, size int64, reason string) string {
	t.Helper()
	raw, err := open()
	if err != nil {
		t.Fatal(err)
	}
	w, err := raw.Writer()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteAt([]byte("."), size-1); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	name, err := raw.Keep("gpu_1", 41, at, reason)
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(s.folder, name), at, at); err != nil {
		t.Fatal(err)
	}
	return name
}

// Both kinds of files: those without a name, and those of file systems that know no such thing.
func TestRawFiles(t *testing.T) {
	for kind, open := range map[string]func(*Store) (*Raw, error){"nameless": (*Store).New, "named": (*Store).named} {
		t.Run(kind, func(t *testing.T) {
			s := shelf(t)
			if info, err := os.Stat(s.folder); err != nil || info.Mode() != os.ModeDir|0o700 {
				t.Errorf("folder %v, %v", info.Mode(), err)
			}
			raw, err := open(s)
			if err != nil {
				t.Fatal(err)
			}
			if got := slices.DeleteFunc(inFolder(t, s), func(n string) bool { return strings.HasPrefix(n, rawPrefix) }); len(got) != 0 {
				t.Errorf("what is not complete has a name: %v", got)
			}
			w, err := raw.Writer()
			if err != nil {
				t.Fatal(err)
			}
			if raw.Ended() {
				t.Error("an empty file is complete")
			}
			if _, err := io.WriteString(w, "0123"); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Read(make([]byte, 1)); err == nil {
				t.Error("a probe's descriptor can be read")
			}
			if raw.Ended() {
				t.Error("a pickle without its end is complete")
			}
			io.WriteString(w, ".")
			if size, err := raw.Size(); err != nil || size != 5 || !raw.Ended() {
				t.Errorf("%d bytes, %v", size, err)
			}
			at := time.Date(2026, 11, 30, 12, 0, 5, 0, time.UTC)
			name, err := raw.Keep("gpu.1", 41, at, "Retention suspected, perhaps")
			if err != nil || name != "gpu_1-41-20261130T120005Z-retention.pickle" {
				t.Fatalf("%q, %v", name, err)
			}
			if again, err := raw.Keep("gpu.1", 41, at, "retention"); err != nil || again != "gpu_1-41-20261130T120005Z-retention-2.pickle" {
				t.Errorf("a second of that name: %q, %v", again, err)
			}
			if err := raw.Close(); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(filepath.Join(s.folder, name)); err != nil || info.Mode() != 0o600 || info.Size() != 5 {
				t.Errorf("%v, %v", info, err)
			}
			kept, err := s.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer kept.Close()
			if text, err := io.ReadAll(kept); err != nil || string(text) != "0123." {
				t.Errorf("%q, %v", text, err)
			}
			if got := inFolder(t, s); len(got) != 2 {
				t.Errorf("files %v", got)
			}

			dropped, err := open(s)
			if err != nil {
				t.Fatal(err)
			}
			if err := dropped.Close(); err != nil {
				t.Fatal(err)
			}
			if got := inFolder(t, s); len(got) != 2 {
				t.Errorf("what was not kept is there: %v", got)
			}
		})
	}
	for _, name := range []string{"../x.pickle", "/etc/passwd", "x.txt", ""} {
		if _, err := shelf(t).Open(name); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestRetention(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		ages  []time.Duration // oldest first
		sizes []int64
		left  int // the newest so many
	}{
		"four files":      {[]time.Duration{6 * time.Hour, 5 * time.Hour, 4 * time.Hour, 3 * time.Hour, 2 * time.Hour}, []int64{1, 1, 1, 1, 1}, 4},
		"two gibibytes":   {[]time.Duration{3 * time.Hour, 2 * time.Hour, time.Hour}, []int64{1, 1 << 30, 1<<30 + 1}, 1},
		"all of them":     {[]time.Duration{3 * time.Hour, 2 * time.Hour}, []int64{1 << 30, 1 << 30}, 2},
		"seven days":      {[]time.Duration{7*24*time.Hour + time.Minute, 7*24*time.Hour - time.Minute}, []int64{1, 1}, 1},
		"one that is big": {[]time.Duration{time.Hour}, []int64{3 << 30}, 1}, // it is what somebody waits for
	} {
		t.Run(name, func(t *testing.T) {
			s := shelf(t)
			var all []string
			for i, age := range c.ages {
				all = append(all, keepRaw(t, s, s.New, now.Add(-age), c.sizes[i], "oom"))
			}
			if err := s.prune(now, all[len(all)-1]); err != nil {
				t.Fatal(err)
			}
			want := slices.Clone(all[len(all)-c.left:])
			slices.Sort(want)
			if got := inFolder(t, s); !slices.Equal(got, want) {
				t.Errorf("left %v, want %v", got, want)
			}
		})
	}
	// What is not ours stays.
	s := shelf(t)
	if err := os.WriteFile(filepath.Join(s.folder, "notes.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Prune(now.Add(1000 * time.Hour)); err != nil || len(inFolder(t, s)) != 1 {
		t.Errorf("%v, %v", inFolder(t, s), err)
	}
}

func TestFullDisks(t *testing.T) {
	for name, c := range map[string]struct {
		free, total uint64
		room        bool
	}{
		"plenty":            {100 << 30, 200 << 30, true},
		"a gibibyte":        {1 << 30, 10 << 30, true},
		"less":              {1<<30 - 1, 10 << 30, false},
		"five percent":      {5 << 30, 100 << 30, true},
		"less than that":    {5<<30 - 1, 100 << 30, false},
		"nothing is no six": {0, 0, false},
	} {
		s := shelf(t)
		raw, err := s.New()
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		s.freeSpace = func(string) (uint64, uint64, error) { return c.free, c.total, nil }
		if _, err := s.New(); (err == nil) != c.room || err != nil && (!errors.Is(err, ErrDiskFull) || !strings.Contains(err.Error(), "hint: ")) {
			t.Errorf("%s: %v", name, err)
		}
		if kept, err := raw.Keep("h", 1, time.Now(), "oom"); (err == nil) != c.room || (kept != "") != c.room {
			t.Errorf("%s: kept %q, %v", name, kept, err)
		}
	}
}

func TestFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "snapshots")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, rawPrefix+"123"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := OpenStore(folder)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(folder); err != nil || info.Mode().Perm() != 0o700 || len(inFolder(t, s)) != 0 {
		t.Errorf("%v, %v, %v", info.Mode(), inFolder(t, s), err)
	}
	file := filepath.Join(folder, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file as the folder: %v", err)
	}
}

// A folder that is not this collector's alone is refused, and left as it is.
func TestFoldersOfOthers(t *testing.T) {
	held := shelf(t)
	if _, err := OpenStore(held.folder); err == nil || !strings.Contains(err.Error(), "another collector keeps its snapshots there") || !strings.Contains(err.Error(), held.folder) {
		t.Errorf("a second collector: %v", err)
	}
	if err := errors.Join(held.Close(), held.Close()); err != nil {
		t.Fatal(err)
	}
	again, err := OpenStore(held.folder)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	defer again.Close()

	shared := t.TempDir()
	if err := errors.Join(os.Chmod(shared, 0o755), os.WriteFile(filepath.Join(shared, "notes.txt"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(shared); err == nil || !strings.Contains(err.Error(), "notes.txt; hint: give a folder of its own") {
		t.Errorf("a folder with other files: %v", err)
	}
	if info, err := os.Stat(shared); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("it was closed to others: %v, %v", info.Mode(), err)
	}
	if err := os.Remove(filepath.Join(shared, "notes.txt")); err != nil {
		t.Fatal(err)
	}
	mine := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(shared, mine); err != nil {
		t.Fatal(err)
	}
	s, err := OpenStore(mine)
	if err != nil {
		t.Fatalf("a link of one's own: %v", err)
	}
	s.Close()

	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can make folders and links of other users")
	}
	const somebody = 65534
	if err := os.Lchown(mine, somebody, somebody); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(mine); err == nil || !strings.Contains(err.Error(), "a link of user 65534") {
		t.Errorf("somebody's link: %v", err)
	}
	if err := os.Chown(shared, somebody, somebody); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(shared); err == nil || !strings.Contains(err.Error(), "belongs to user 65534") {
		t.Errorf("somebody's folder: %v", err)
	}
}

// A file is sealed as soon as nobody can write to it, and a copy of it from the beginning.
func TestSealedFiles(t *testing.T) {
	for kind, open := range map[string]func(*Store) (*Raw, error){"nameless": (*Store).New, "named": (*Store).named} {
		t.Run(kind, func(t *testing.T) {
			raw, err := open(shelf(t))
			if err != nil {
				t.Fatal(err)
			}
			defer raw.Close()
			if !raw.Sealed() {
				t.Skip("SKIPPED: this file system gives no leases, so that every snapshot is copied")
			}
			var writers []*os.File
			for range 2 {
				w, err := raw.Writer()
				if err != nil {
					t.Fatal(err)
				}
				defer w.Close()
				writers = append(writers, w)
			}
			io.WriteString(writers[0], "0123.")
			reader, err := raw.Reader()
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			copied, err := raw.Copy(5)
			if err != nil {
				t.Fatal(err)
			}
			defer copied.Close()
			if !copied.Sealed() || !copied.Ended() {
				t.Error("a copy can be written to, or is none")
			}
			if _, err := raw.Copy(4); err == nil || !strings.Contains(err.Error(), "more than 4 bytes") {
				t.Errorf("a copy of too much: %v", err)
			}
			for i, w := range writers {
				if raw.Sealed() {
					t.Errorf("sealed with %d writers", 2-i)
				}
				if err := w.Close(); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // asking changes nothing
				if !raw.Sealed() {
					t.Error("not sealed without a writer")
				}
			}
			if taken, err := raw.Taken(); err != nil || taken == 0 || taken > 1<<20 {
				t.Errorf("%d bytes of the disk, %v", taken, err)
			}
			if err := raw.Empty(); err != nil {
				t.Fatal(err)
			}
			if size, err := raw.Size(); err != nil || size != 0 {
				t.Errorf("emptied it has %d bytes, %v", size, err)
			}
		})
	}
}

func TestReasonWord(t *testing.T) {
	for reason, want := range map[string]string{"": "asked", "oom": "oom", "stream_backlog suspected": "stream_backlog", "../../etc": "etc", "!?": "asked",
		strings.Repeat("x", 40): strings.Repeat("x", 32), "Ünder": "nder"} {
		if got := reasonWord(reason); got != want {
			t.Errorf("%q gives %q", reason, got)
		}
	}
}
