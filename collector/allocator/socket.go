package allocator

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"lowtide/collector/status"
)

// SystemSocket is where a collector that runs as root listens, and where a probe looks first.
const SystemSocket = "/run/lowtide/probe.sock"

// longestPath is what fits into sockaddr_un with its terminating zero.
const longestPath = 107

// DefaultSocket returns where a collector listens that was told nothing: SystemSocket as root, else below XDG_RUNTIME_DIR.
func DefaultSocket() (string, error) {
	if os.Geteuid() == 0 {
		return SystemSocket, nil
	}
	dir := os.Getenv("XDG_RUNTIME_DIR")
	if dir == "" {
		return "", errors.New("choose probe socket: not root, and XDG_RUNTIME_DIR is not set; hint: give --probe-socket, and the workers LOWTIDE_PROBE_SOCKET")
	}
	return filepath.Join(dir, "lowtide", "probe.sock"), nil
}

// Listen opens the socket and starts to accept probes; its directory is made (0755) when missing. A socket that a dead collector
// left behind is replaced. One that a collector answers on, or a file that is no socket, is an error.
//
// The socket is open to every local user (0666), since workers run as any user and in containers. What that lets a stranger do:
// report numbers, failures and marks about his own process, and no other, because the kernel names the peer; take up
// connections, of which there are 16 for a process and 256 in all; and cost a bounded amount of time. A host where even that is
// too much narrows Options.Mode and puts the workers into the collector's group.
func Listen(o Options) (*Source, error) {
	if o.Socket == "" {
		path, err := DefaultSocket()
		if err != nil {
			return nil, err
		}
		o.Socket = path
	}
	if o.Mode == 0 {
		o.Mode = 0o666
	}
	if len(o.Socket) > longestPath {
		return nil, fmt.Errorf("listen for probes: %s has %d bytes, a socket's path at most %d; hint: give a shorter --probe-socket", o.Socket, len(o.Socket), longestPath)
	}
	if err := makeRoom(o.Socket); err != nil {
		return nil, fmt.Errorf("listen for probes: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: o.Socket, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for probes: %w", describe(err))
	}
	listener.SetUnlinkOnClose(false) // it would remove the socket of a collector that came after
	file, err := os.Lstat(o.Socket)
	if err == nil {
		err = os.Chmod(o.Socket, o.Mode) // apart from the umask
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for probes: %w", err), listener.Close(), os.Remove(o.Socket))
	}
	s := newSource(o)
	s.listener, s.file = listener, file
	if s.desk != nil {
		s.desk.run()
	}
	s.serving.Add(1)
	go s.accept()
	return s, nil
}

// makeRoom makes the directory and removes what a dead collector left.
func makeRoom(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return describe(err)
		}
		return nil
	case err != nil:
		return describe(err)
	case info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("%s is no socket; hint: move it away, or give another --probe-socket", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
		return fmt.Errorf("%s: another collector listens there; hint: stop it, or give another --probe-socket", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return describe(err)
	}
	if err := os.Remove(path); err != nil {
		return describe(err)
	}
	return nil
}

func describe(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w; hint: run as root, or give a --probe-socket in a folder of your own", status.ErrDenied, err)
	}
	return err
}

// peerPID returns the pid of the process that connected, as this pid namespace sees it; 0 when it does not.
func peerPID(conn *net.UnixConn) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("read peer credentials: %w", err)
	}
	var (
		credentials *syscall.Ucred
		optErr      error
	)
	err = raw.Control(func(fd uintptr) {
		credentials, optErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err = errors.Join(err, optErr); err != nil {
		return 0, fmt.Errorf("read peer credentials: %w", err)
	}
	return int(credentials.Pid), nil
}

// startTicks returns field 22 of /proc/PID/stat, which together with the pid names one process life.
func startTicks(procRoot string, pid int) (uint64, error) {
	text, err := os.ReadFile(filepath.Join(procRoot, fmt.Sprint(pid), "stat"))
	if err != nil {
		return 0, fmt.Errorf("read start ticks: %w", err)
	}
	return parseStartTicks(string(text))
}

func parseStartTicks(stat string) (uint64, error) {
	_, rest, ok := cutLast(stat, ") ") // the name before it may hold anything, parentheses too
	if !ok {
		return 0, errors.New("read start ticks: no process name in stat")
	}
	fields := strings.Fields(rest)
	if len(fields) < 20 {
		return 0, fmt.Errorf("read start ticks: %d fields in stat", len(fields))
	}
	var ticks uint64
	if _, err := fmt.Sscan(fields[19], &ticks); err != nil {
		return 0, fmt.Errorf("read start ticks: %w", err)
	}
	return ticks, nil
}

func cutLast(s, separator string) (before, after string, found bool) {
	i := strings.LastIndex(s, separator)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(separator):], true
}
