package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
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

// Store is a folder of raw snapshots, mode 0700, whose files have mode 0600 and never leave the host. It is one collector's at a time,
// and safe for concurrent use.
type Store struct {
	folder    string
	lock      *os.File // of the folder
	freeSpace func(folder string) (free, total uint64, err error)

	mu sync.Mutex // over names: what is kept and what goes
}

// OpenStore makes the folder where it is missing, closes it to everybody else, and removes what a killed collector was writing. The
// error names the folder: one that is another user's, or another collector's, is refused.
func OpenStore(folder string) (*Store, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("open snapshot folder: %w", err)
	}
	lock, err := ownFolder(folder)
	if err != nil {
		return nil, fmt.Errorf("open snapshot folder %s: %w", folder, err)
	}
	s := &Store{folder: folder, lock: lock, freeSpace: freeSpace}
	if err := s.sweep(); err != nil {
		return nil, errors.Join(fmt.Errorf("open snapshot folder: %w", err), s.Close())
	}
	return s, nil
}

// ownFolder closes the folder to others and locks it until the returned file is closed.
func ownFolder(folder string) (*os.File, error) {
	if link, err := os.Lstat(folder); err != nil {
		return nil, err
	} else if owner := link.Sys().(*syscall.Stat_t).Uid; link.Mode()&fs.ModeSymlink != 0 && int(owner) != os.Geteuid() {
		return nil, fmt.Errorf("it is a link of user %d, and this is user %d", owner, os.Geteuid())
	}
	dir, err := os.OpenFile(folder, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	refuse := func(err error) (*os.File, error) { return nil, errors.Join(err, dir.Close()) }
	info, err := dir.Stat()
	if err != nil {
		return refuse(err)
	}
	// Whoever owns a folder can take away and replace what is in it.
	if owner := info.Sys().(*syscall.Stat_t).Uid; int(owner) != os.Geteuid() {
		return refuse(fmt.Errorf("it belongs to user %d, and this is user %d", owner, os.Geteuid()))
	}
	if info.Mode().Perm() != 0o700 {
		// A folder that serves others, such as /tmp, must stay as it is.
		names, err := dir.Readdirnames(-1)
		if err != nil {
			return refuse(err)
		}
		if i := slices.IndexFunc(names, func(n string) bool { return !strings.HasPrefix(n, rawPrefix) && !strings.HasSuffix(n, rawSuffix) }); i >= 0 {
			return refuse(fmt.Errorf("it is open to others (%v) and holds other files, such as %s; hint: give a folder of its own", info.Mode().Perm(), names[i]))
		}
		if err := dir.Chmod(0o700); err != nil {
			return refuse(err)
		}
	}
	err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return refuse(errors.New("another collector keeps its snapshots there"))
	}
	return dir, nil // a file system without locks has one collector by other means
}

// sweep removes what a collector that was killed was writing.
func (s *Store) sweep() error {
	entries, err := os.ReadDir(s.folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), rawPrefix) {
			if err := os.Remove(filepath.Join(s.folder, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close leaves the folder to the next collector. The files stay.
func (s *Store) Close() error {
	if err := s.lock.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
		return fmt.Errorf("close snapshot folder: %w", err)
	}
	return nil
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
		err := r.name(filepath.Join(s.folder, name))
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

// name never overwrites.
func (r *Raw) name(path string) error {
	from, flags := r.link(), unix.AT_SYMLINK_FOLLOW
	if r.path != "" {
		from, flags = r.path, 0
	}
	if err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, path, flags); err != nil {
		return &os.LinkError{Op: "link", Old: from, New: path, Err: err}
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
