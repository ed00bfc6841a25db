package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"lowtide/event"
)

// What a folder of raw snapshots may hold, and what it leaves of the disk.
const (
	KeepFiles = 4
	KeepBytes = 2 << 30
	KeepFor   = 7 * 24 * time.Hour

	leastFree  = 1 << 30 // bytes of the file system
	leastShare = 20      // a twentieth of it

	rawSuffix = ".pickle"
	rawPrefix = ".lowtide-" // a file that is being written, where the file system has none without a name
)

var (
	// ErrDiskFull is wrapped where a raw snapshot would take what is left of the disk.
	ErrDiskFull = errors.New("too little disk is free")
	// ErrUnreadable is wrapped where a raw snapshot cannot be summarised: it is damaged, too large, or took too long.
	ErrUnreadable = errors.New("snapshot cannot be read")
)

// Store is a folder of raw snapshots, mode 0700, whose files have mode 0600 and never leave the host. It is safe for concurrent use.
type Store struct {
	folder    string
	freeSpace func(folder string) (free, total uint64, err error)

	mu sync.Mutex // over names: what is kept and what goes
}

// OpenStore makes the folder where it is missing, closes it to everybody else, and removes what a killed collector was writing. The
// error names the folder.
func OpenStore(folder string) (*Store, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("open snapshot folder: %w", err)
	}
	if err := os.Chmod(folder, 0o700); err != nil {
		return nil, fmt.Errorf("open snapshot folder: %w", err)
	}
	s := &Store{folder: folder, freeSpace: freeSpace}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("open snapshot folder: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), rawPrefix) {
			if err := os.Remove(filepath.Join(folder, e.Name())); err != nil {
				return nil, fmt.Errorf("open snapshot folder: %w", err)
			}
		}
	}
	return s, nil
}

// Folder is where the files are.
func (s *Store) Folder() string { return s.folder }

// freeSpace is what the file system has for us, and all of it, bytes.
func freeSpace(folder string) (free, total uint64, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(folder, &fs); err != nil {
		return 0, 0, fmt.Errorf("read free disk of %s: %w", folder, err)
	}
	return fs.Bavail * uint64(fs.Bsize), fs.Blocks * uint64(fs.Bsize), nil
}

// Room says whether the disk has room for one more file: below 1 GiB or 5 % free the error wraps ErrDiskFull and gives the numbers.
func (s *Store) Room() error {
	free, total, err := s.freeSpace(s.folder)
	if err != nil {
		return err
	}
	if free < leastFree || free < total/leastShare {
		return fmt.Errorf("%w: %d MiB of %d MiB below %s; hint: make room, or give another --snapshot-dir", ErrDiskFull, free>>20, total>>20, s.folder)
	}
	return nil
}

// Raw is a raw snapshot that is being written. It has no name, so that it is gone with its last descriptor, until Keep gives it one.
type Raw struct {
	store *Store
	file  *os.File
	path  string // of a file with a name, on file systems that know no other
}

// New opens an empty file for a probe to write. The error wraps ErrDiskFull where there is no room for it.
func (s *Store) New() (*Raw, error) {
	if err := s.Room(); err != nil {
		return nil, err
	}
	file, err := s.nameless()
	if err == nil {
		return &Raw{store: s, file: file}, nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("open raw snapshot: %w", err)
	}
	return s.named()
}

func (s *Store) nameless() (*os.File, error) {
	fd, err := unix.Open(s.folder, unix.O_RDWR|unix.O_TMPFILE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: s.folder, Err: err}
	}
	return os.NewFile(uintptr(fd), filepath.Join(s.folder, "(snapshot)")), nil
}

func (s *Store) named() (*Raw, error) {
	file, err := os.CreateTemp(s.folder, rawPrefix+"*")
	if err != nil {
		return nil, fmt.Errorf("open raw snapshot: %w", err)
	}
	return &Raw{store: s, file: file, path: file.Name()}, nil
}

// Writer is a descriptor of its own for the probe, open for writing only.
func (r *Raw) Writer() (*os.File, error) { return r.open(os.O_WRONLY) }

// Reader is a descriptor of its own that reads from the start.
func (r *Raw) Reader() (*os.File, error) { return r.open(os.O_RDONLY) }

func (r *Raw) open(flag int) (*os.File, error) {
	file, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(r.file.Fd())), flag, 0)
	if err != nil {
		return nil, fmt.Errorf("open raw snapshot again: %w", err)
	}
	return file, nil
}

// Size is how many bytes are written so far.
func (r *Raw) Size() (int64, error) {
	info, err := r.file.Stat()
	if err != nil {
		return 0, fmt.Errorf("read size of raw snapshot: %w", err)
	}
	return info.Size(), nil
}

// Ended says whether the last byte is a pickle's last: what was cut off by the end of its writer does not have it.
func (r *Raw) Ended() bool {
	size, err := r.Size()
	if err != nil || size == 0 {
		return false
	}
	var last [1]byte
	_, err = r.file.ReadAt(last[:], size-1)
	return err == nil && last[0] == '.'
}

// Empty gives back what was written, whoever still writes.
func (r *Raw) Empty() error {
	if err := r.file.Truncate(0); err != nil {
		return fmt.Errorf("empty raw snapshot: %w", err)
	}
	return nil
}

// Keep gives the file its name, makes room for it by the rules of the folder, and returns the name. After an error the file is
// still there to be closed.
func (r *Raw) Keep(host string, pid int, at time.Time, reason string) (string, error) {
	s := r.store
	if err := s.Room(); err != nil {
		return "", err
	}
	stem := fmt.Sprintf("%s-%d-%s-%s", event.Token(host), pid, at.UTC().Format("20060102T150405Z"), reasonWord(reason))
	s.mu.Lock()
	defer s.mu.Unlock()
	name := stem + rawSuffix
	for n := 2; ; n++ {
		err := r.link(filepath.Join(s.folder, name))
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrExist) || n > 100 {
			return "", fmt.Errorf("keep raw snapshot: %w", err)
		}
		name = fmt.Sprintf("%s-%d%s", stem, n, rawSuffix)
	}
	return name, s.prune(time.Now(), name)
}

// link never overwrites.
func (r *Raw) link(path string) error {
	from, flags := "/proc/self/fd/"+strconv.Itoa(int(r.file.Fd())), unix.AT_SYMLINK_FOLLOW
	if r.path != "" {
		from, flags = r.path, 0
	}
	if err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, path, flags); err != nil {
		return &os.LinkError{Op: "link", Old: from, New: path, Err: err}
	}
	return nil
}

// Close lets go of the file, which is gone if it was not kept.
func (r *Raw) Close() error {
	err := r.file.Close()
	if r.path != "" {
		err = errors.Join(err, os.Remove(r.path))
		r.path = ""
	}
	if err != nil {
		return fmt.Errorf("close raw snapshot: %w", err)
	}
	return nil
}

// Open opens a kept file for reading. The error wraps fs.ErrNotExist where the rules of the folder took it.
func (s *Store) Open(name string) (*os.File, error) {
	if name != filepath.Base(name) || !strings.HasSuffix(name, rawSuffix) {
		return nil, fmt.Errorf("open raw snapshot: %q is no name of one", name)
	}
	file, err := os.Open(filepath.Join(s.folder, name))
	if err != nil {
		return nil, fmt.Errorf("open raw snapshot: %w", err)
	}
	return file, nil
}

// Prune removes what is over the bounds, the oldest first.
func (s *Store) Prune(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.prune(now, "")
}

// prune spares the newest, which is the one that somebody waits for, from the bounds on number and bytes.
func (s *Store) prune(now time.Time, newest string) error {
	entries, err := os.ReadDir(s.folder)
	if err != nil {
		return fmt.Errorf("prune snapshots: %w", err)
	}
	type kept struct {
		name  string
		bytes int64
		at    time.Time
	}
	var all []kept
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), rawSuffix) || strings.HasPrefix(e.Name(), ".") || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("prune snapshots: %w", err)
		}
		all = append(all, kept{e.Name(), info.Size(), info.ModTime()})
	}
	slices.SortFunc(all, func(a, b kept) int { // newest first
		if (a.name == newest) != (b.name == newest) {
			if a.name == newest {
				return -1
			}
			return 1
		}
		if c := b.at.Compare(a.at); c != 0 {
			return c
		}
		return strings.Compare(b.name, a.name)
	})
	var faults []error
	files, bytes, over := 0, int64(0), false
	for _, k := range all {
		files++
		bytes += k.bytes
		over = over || files > KeepFiles || bytes > KeepBytes || now.Sub(k.at) > KeepFor
		if k.name == newest || !over {
			continue
		}
		if err := os.Remove(filepath.Join(s.folder, k.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			faults = append(faults, err)
		}
	}
	if len(faults) > 0 {
		return fmt.Errorf("prune snapshots: %w", errors.Join(faults...))
	}
	return nil
}

// word is the first word of a reason as it stands in a name.
func reasonWord(reason string) string {
	for field := range strings.FieldsFuncSeq(strings.ToLower(reason), func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' }) {
		return field[:min(len(field), 32)]
	}
	return "asked"
}
