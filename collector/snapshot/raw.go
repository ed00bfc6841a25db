package snapshot

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Raw is a raw snapshot that is being written. It has no name, so that it is gone with its last descriptor, until Keep gives it one.
type Raw struct {
	store *Store
	file  *os.File // open for reading only, or else Sealed would see a writer
	path  string   // of a file with a name, on file systems that know no other
}

// New opens an empty file for a probe to write. The error wraps ErrDiskFull where there is no room for it.
func (s *Store) New() (*Raw, error) {
	if err := s.Room(); err != nil {
		return nil, err
	}
	raw, err := s.nameless()
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EINVAL) {
		return s.named()
	}
	return raw, err
}

func (s *Store) nameless() (*Raw, error) {
	fd, err := unix.Open(s.folder, unix.O_RDWR|unix.O_TMPFILE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open raw snapshot: %w", &fs.PathError{Op: "open", Path: s.folder, Err: err})
	}
	return s.reading(os.NewFile(uintptr(fd), filepath.Join(s.folder, "(snapshot)")), "")
}

func (s *Store) named() (*Raw, error) {
	file, err := os.CreateTemp(s.folder, rawPrefix+"*")
	if err != nil {
		return nil, fmt.Errorf("open raw snapshot: %w", err)
	}
	raw, err := s.reading(file, file.Name())
	if err != nil {
		err = errors.Join(err, os.Remove(file.Name()))
	}
	return raw, err
}

// reading opens a new file once more, for reading, and closes the descriptor that it was made with.
func (s *Store) reading(made *os.File, path string) (*Raw, error) {
	defer made.Close() // nothing was written to it
	file, err := (&Raw{file: made}).open(os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return &Raw{store: s, file: file, path: path}, nil
}

// Writer is a descriptor of its own for the probe, open for writing only.
func (r *Raw) Writer() (*os.File, error) { return r.open(os.O_WRONLY) }

// Reader is a descriptor of its own that reads from the start.
func (r *Raw) Reader() (*os.File, error) { return r.open(os.O_RDONLY) }

func (r *Raw) open(flag int) (*os.File, error) {
	file, err := os.OpenFile(r.link(), flag, 0)
	if err != nil {
		return nil, fmt.Errorf("open raw snapshot again: %w", err)
	}
	return file, nil
}

// link is the file by its descriptor, whether it has a name or not.
func (r *Raw) link() string { return "/proc/self/fd/" + strconv.Itoa(int(r.file.Fd())) }

// Size is how many bytes are written so far.
func (r *Raw) Size() (int64, error) {
	info, err := r.file.Stat()
	if err != nil {
		return 0, fmt.Errorf("read size of raw snapshot: %w", err)
	}
	return info.Size(), nil
}

// Taken is how many bytes of the disk the file has, which a writer can reserve without making the file longer.
func (r *Raw) Taken() (int64, error) {
	info, err := r.file.Stat()
	if err != nil {
		return 0, fmt.Errorf("read size of raw snapshot: %w", err)
	}
	return 512 * info.Sys().(*syscall.Stat_t).Blocks, nil
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

// Sealed says whether nobody has the file open for writing any more, wherever the descriptor was passed on to: only then the kernel
// gives a lease to read it. Where a file system has no leases nothing is sealed.
func (r *Raw) Sealed() bool {
	if _, err := unix.FcntlInt(r.file.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return false
	}
	_, err := unix.FcntlInt(r.file.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return err == nil
}

// Copy is a file of the same content that nobody else has ever had. More than most bytes are an error.
func (r *Raw) Copy(most int64) (*Raw, error) {
	from, err := r.Reader()
	if err != nil {
		return nil, err
	}
	defer from.Close()
	c, err := r.store.New()
	if err != nil {
		return nil, err
	}
	to, err := c.Writer()
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	n, err := io.Copy(to, io.LimitReader(from, most+1))
	if err == nil && n > most {
		err = fmt.Errorf("more than %d bytes", most)
	}
	if err = errors.Join(err, to.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("copy raw snapshot: %w", err), c.Close())
	}
	return c, nil
}

// Empty gives back what was written, whoever still writes, and what was reserved.
func (r *Raw) Empty() error {
	if err := os.Truncate(r.link(), 0); err != nil {
		return fmt.Errorf("empty raw snapshot: %w", err)
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
