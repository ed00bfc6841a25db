package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// readableFolders are what the program and the library read besides their own files; /etc is not among them.
var readableFolders = []string{"/usr", "/lib", "/lib64", "/bin", "/proc", "/sys", "/dev", "/etc/ld.so.cache", "/etc/localtime", "/etc/timezone"}

const (
	readRights  = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	writeRights = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_SYM
	fileRights = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
)

// errHalfConfined says that one thread is confined and the others are not: the process must end.
var errHalfConfined = errors.New("execute self after confinement")

// confine has the kernel (Landlock) hold this process to reading its program and library and to writing the tables below
// folder, not even to reading the password files beside them, and to opening no TCP connection, so that a statement which slipped through the gate still reaches nothing. The confinement is of a
// thread, so the program executes itself again from the confined one; on success confine does not return.
func confine(folder, library string) error {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return fmt.Errorf("ask kernel for landlock: %w", errno)
	}
	// This name holds even when the program's file was replaced meanwhile.
	const self = "/proc/self/exe"
	write := uint64(writeRights)
	if version >= 2 {
		write |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if version >= 3 {
		write |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	rules := unix.LandlockRulesetAttr{Handled_access_fs: readRights | write}
	if version >= 4 {
		rules.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if version >= 6 {
		rules.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
	}
	set, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&rules)), unsafe.Sizeof(rules), 0)
	if errno != 0 {
		return fmt.Errorf("create landlock rules: %w", errno)
	}
	defer unix.Close(int(set))
	for _, place := range append([]string{self, library, filepath.Join(folder, configFile), filepath.Join(folder, usersFile)}, readableFolders...) {
		if err := allow(int(set), place, readRights); err != nil {
			return err
		}
	}
	if err := allow(int(set), filepath.Join(folder, storeFolder), readRights|write); err != nil {
		return err
	}
	if err := allow(int(set), "/dev/null", fileRights&(readRights|write)); err != nil {
		return err
	}

	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, set, 0, 0); errno != 0 {
		return fmt.Errorf("restrict self: %w", errno)
	}
	// Past this point the thread is confined already; it is never given back to the runtime.
	return fmt.Errorf("%w: %w", errHalfConfined, unix.Exec(self, append(append([]string{}, os.Args...), "--confined"), os.Environ()))
}

// allow adds a rule for a file or folder; one that does not exist is passed over.
func allow(set int, path string, rights uint64) error {
	f, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(f)
	var stat unix.Stat_t
	if err := unix.Fstat(f, &stat); err != nil {
		return fmt.Errorf("examine %s: %w", path, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= fileRights
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(f)}
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(set), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0); errno != 0 {
		return fmt.Errorf("allow %s: %w", path, errno)
	}
	return nil
}
