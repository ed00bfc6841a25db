package engine

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// library is libchdb, loaded into this process: once, because it keeps one storage path a process.
type library struct {
	connect, closeConn, shutdown              uintptr
	query, classify                           uintptr
	resultBuffer, resultLength, resultError   uintptr
	rowsRead, bytesRead, storageRows          uintptr
	storageBytes, rowsWritten, bytesWritten   uintptr
	destroyResult, handlersEnabled, versionOf uintptr
	insert, insertAppend, insertDone          uintptr
	insertCancel, insertError, insertDestroy  uintptr
}

// loadLibrary opens libchdb.so at path and resolves every function that the engine needs; it tells the library to leave the
// signals alone.
func loadLibrary(path string) (*library, error) {
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("load library %q: %w", path, err)
	}
	lib := new(library)
	for _, symbol := range []struct {
		name string
		into *uintptr
	}{
		{"chdb_connect", &lib.connect},
		{"chdb_close_conn", &lib.closeConn},
		{"chdb_shutdown", &lib.shutdown},
		{"chdb_query_with_params_n", &lib.query},
		{"chdb_classify_query_n", &lib.classify},
		{"chdb_result_buffer", &lib.resultBuffer},
		{"chdb_result_length", &lib.resultLength},
		{"chdb_result_error", &lib.resultError},
		{"chdb_result_rows_read", &lib.rowsRead},
		{"chdb_result_bytes_read", &lib.bytesRead},
		{"chdb_result_storage_rows_read", &lib.storageRows},
		{"chdb_result_storage_bytes_read", &lib.storageBytes},
		{"chdb_result_rows_written", &lib.rowsWritten},
		{"chdb_result_bytes_written", &lib.bytesWritten},
		{"chdb_destroy_query_result", &lib.destroyResult},
		{"chdb_set_signal_handlers_enabled", &lib.handlersEnabled},
		{"chdb_version", &lib.versionOf},
		{"chdb_stream_insert_with_params_n", &lib.insert},
		{"chdb_stream_append", &lib.insertAppend},
		{"chdb_stream_done", &lib.insertDone},
		{"chdb_stream_cancel_insert", &lib.insertCancel},
		{"chdb_stream_insert_error", &lib.insertError},
		{"chdb_destroy_insert_stream", &lib.insertDestroy},
	} {
		address, err := purego.Dlsym(handle, symbol.name)
		if err != nil {
			return nil, fmt.Errorf("resolve %s in %q: %w\nhint: the library is older than 26.7.3; run `make engine`", symbol.name, path, err)
		}
		*symbol.into = address
	}
	// The call sets a flag and also resets eight signals to their default, without which a nil pointer in Go would end
	// the process instead of panicking. So does every later connect.
	keepSignals(func() { purego.SyscallN(lib.handlersEnabled, 0) })
	return lib, nil
}

// version is the version of the library, such as 26.7.3-stable.1.
func (lib *library) version() string {
	p, _, _ := purego.SyscallN(lib.versionOf)
	return foreignString(p)
}

// connection is one session of the library; it runs one statement at a time.
type connection struct {
	lib    *library
	handle uintptr // chdb_connection *
}

// open opens a session with arguments such as --path=DIR; every session of the process must give the same path.
func (lib *library) open(args ...string) (*connection, error) {
	args = append([]string{"clickhouse"}, args...)
	argv := make([]*byte, len(args)+1)
	var pins runtime.Pinner
	defer pins.Unpin()
	for i, arg := range args {
		if strings.IndexByte(arg, 0) >= 0 {
			return nil, fmt.Errorf("open session: argument %d holds a zero byte", i)
		}
		b := append([]byte(arg), 0)
		pins.Pin(&b[0])
		argv[i] = &b[0]
	}
	pins.Pin(&argv[0])
	var handle uintptr
	keepSignals(func() {
		handle, _, _ = purego.SyscallN(lib.connect, uintptr(len(args)), uintptr(unsafe.Pointer(&argv[0])))
	})
	runtime.KeepAlive(argv)
	if handle == 0 {
		return nil, errors.New("open session: the library refused; another process may hold the data folder, or the folder cannot be written")
	}
	return &connection{lib: lib, handle: handle}, nil
}

// inner is the chdb_connection behind the pointer that chdb_connect returned.
func (c *connection) inner() uintptr { return *(*uintptr)(foreign(c.handle)) }

// close ends the session; it must be idle.
func (c *connection) close() {
	purego.SyscallN(c.lib.closeConn, c.handle)
	c.handle = 0
}

// parameter is one value for a {name:Type} placeholder, as text in the escaped form that the HTTP interface takes.
type parameter struct{ name, value string }

// result is what a statement gave. Its bytes live in the library's memory until free is called.
type result struct {
	lib                       *library
	handle                    uintptr
	data                      []byte // foreign memory: not to be used after free
	rowsRead, bytesRead       uint64
	resultRows                uint64
	rowsWritten, bytesWritten uint64
}

// foreignParameters are parameters as four arrays of C; they are valid until the pinner lets go.
type foreignParameters struct{ names, nameLengths, values, valueLengths unsafe.Pointer }

func pinParameters(pins *runtime.Pinner, parameters []parameter) (f foreignParameters) {
	n := len(parameters)
	if n == 0 {
		return f
	}
	names, values := make([]*byte, n), make([]*byte, n)
	nameLengths, valueLengths := make([]uintptr, n), make([]uintptr, n)
	for i, p := range parameters {
		name, value := append([]byte(p.name), 0), append([]byte(p.value), 0)
		pins.Pin(&name[0])
		pins.Pin(&value[0])
		names[i], values[i] = &name[0], &value[0]
		nameLengths[i], valueLengths[i] = uintptr(len(p.name)), uintptr(len(p.value))
	}
	pins.Pin(&names[0])
	pins.Pin(&values[0])
	pins.Pin(&nameLengths[0])
	pins.Pin(&valueLengths[0])
	return foreignParameters{unsafe.Pointer(&names[0]), unsafe.Pointer(&nameLengths[0]), unsafe.Pointer(&values[0]), unsafe.Pointer(&valueLengths[0])}
}

// run executes one statement without data and returns its result in format. An error of the engine is a *queryError.
//
// An INSERT with its data must go through insert: this call takes the text after an empty line within such data for the next
// statement, and runs it.
func (c *connection) run(text []byte, format string, parameters []parameter) (*result, error) {
	if len(text) == 0 || format == "" {
		return nil, failure(codeSyntax, "SYNTAX_ERROR", "Empty query")
	}
	var pins runtime.Pinner
	defer pins.Unpin()
	f := pinParameters(&pins, parameters)
	formatBytes := []byte(format)
	pins.Pin(&text[0])
	pins.Pin(&formatBytes[0])
	handle, _, _ := purego.SyscallN(c.lib.query, c.inner(),
		uintptr(unsafe.Pointer(&text[0])), uintptr(len(text)), uintptr(unsafe.Pointer(&formatBytes[0])), uintptr(len(formatBytes)),
		uintptr(f.names), uintptr(f.nameLengths), uintptr(f.values), uintptr(f.valueLengths), uintptr(len(parameters)))
	return c.lib.take(handle)
}

// insertChunk is how many bytes of data are handed over at once; the library queues 16 of them.
const insertChunk = 1 << 20

// insert executes head, an INSERT without FORMAT and without data, with data in format. Between chunks it asks whether to stop.
func (c *connection) insert(head []byte, format string, parameters []parameter, data []byte, stop func() bool) (*result, error) {
	var pins runtime.Pinner
	defer pins.Unpin()
	f := pinParameters(&pins, parameters)
	formatBytes := []byte(format)
	pins.Pin(&head[0])
	pins.Pin(&formatBytes[0])
	lib := c.lib
	stream, _, _ := purego.SyscallN(lib.insert, c.inner(),
		uintptr(unsafe.Pointer(&head[0])), uintptr(len(head)), uintptr(unsafe.Pointer(&formatBytes[0])), uintptr(len(formatBytes)),
		uintptr(f.names), uintptr(f.nameLengths), uintptr(f.values), uintptr(f.valueLengths), uintptr(len(parameters)))
	if stream == 0 {
		return nil, failure(codeLogical, "LOGICAL_ERROR", "the library opened no insert")
	}
	defer purego.SyscallN(lib.insertDestroy, stream)
	if message, _, _ := purego.SyscallN(lib.insertError, stream); message != 0 {
		return nil, parseQueryError(foreignString(message))
	}
	for len(data) > 0 {
		if stop() {
			purego.SyscallN(lib.insertCancel, stream)
			return nil, failure(codeCanceled, "QUERY_WAS_CANCELLED", "The client went away or the time was over before the data was inserted")
		}
		n := min(insertChunk, len(data))
		pins.Pin(&data[0])
		state, _, _ := purego.SyscallN(lib.insertAppend, stream, uintptr(unsafe.Pointer(&data[0])), uintptr(n))
		if int32(state) != 0 {
			break // done tells why
		}
		data = data[n:]
	}
	handle, _, _ := purego.SyscallN(lib.insertDone, stream)
	return lib.take(handle)
}

// take reads the result behind handle; that of a failed statement is destroyed and becomes an error.
func (lib *library) take(handle uintptr) (*result, error) {
	if handle == 0 {
		return nil, failure(codeLogical, "LOGICAL_ERROR", "the library returned no result")
	}
	number := func(f uintptr) uint64 { v, _, _ := purego.SyscallN(f, handle); return uint64(v) }
	// The counters of a failed result are garbage, so the error comes first.
	if message, _, _ := purego.SyscallN(lib.resultError, handle); message != 0 {
		err := parseQueryError(foreignString(message))
		purego.SyscallN(lib.destroyResult, handle)
		return nil, err
	}
	r := &result{lib: lib, handle: handle}
	r.resultRows = number(lib.rowsRead)
	r.rowsRead, r.bytesRead = number(lib.storageRows), number(lib.storageBytes)
	r.rowsWritten, r.bytesWritten = number(lib.rowsWritten), number(lib.bytesWritten)
	if length := number(lib.resultLength); length > 0 {
		buffer, _, _ := purego.SyscallN(lib.resultBuffer, handle)
		r.data = unsafe.Slice((*byte)(foreign(buffer)), int(length))
	}
	return r, nil
}

// free gives the result's memory back to the library.
func (r *result) free() {
	if r.handle != 0 {
		purego.SyscallN(r.lib.destroyResult, r.handle)
		r.handle, r.data = 0, nil
	}
}

// Statement classes as the library's own parser tells them, in ascending order of restriction.
const (
	classRead    = 0 // SELECT, SHOW, DESCRIBE, EXPLAIN
	classMutate  = 1 // INSERT, CREATE, ALTER, DROP
	classGlobal  = 2 // functions, named collections, accounts, writes into system
	classControl = 3 // SET, SYSTEM, BACKUP, INTO OUTFILE
	classUnknown = 4 // does not parse
)

// classified mirrors chdb_query_analysis_v1; its layout is the library's.
type classified struct {
	size, statements, flags, class uint32
}

// classify asks the library's parser what text is, without running it.
func (c *connection) classify(text []byte) (classified, error) {
	out := classified{size: uint32(unsafe.Sizeof(classified{}))}
	if len(text) == 0 {
		return out, nil
	}
	var pins runtime.Pinner
	defer pins.Unpin()
	pins.Pin(&text[0])
	pins.Pin(&out)
	state, _, _ := purego.SyscallN(c.lib.classify, c.inner(),
		uintptr(unsafe.Pointer(&text[0])), uintptr(len(text)), 0, 0, uintptr(unsafe.Pointer(&out)))
	if int32(state) != 0 {
		return out, errors.New("classify statement: the library refused the call")
	}
	return out, nil
}

// foreign turns an address of the library's own memory into a pointer; Go's collector never owns that memory.
func foreign(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

// foreignString copies a zero-terminated string out of the library's memory.
func foreignString(address uintptr) string {
	if address == 0 {
		return ""
	}
	return unix.BytePtrToString((*byte)(foreign(address)))
}

// guardedSignals are those that the library resets to their default action.
var guardedSignals = [...]unix.Signal{unix.SIGABRT, unix.SIGSEGV, unix.SIGILL, unix.SIGBUS, unix.SIGSYS, unix.SIGFPE, unix.SIGTSTP, unix.SIGTRAP, unix.SIGURG}

// kernelAction is struct sigaction of the kernel (not of libc) on linux/amd64 and arm64.
type kernelAction struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

// keepSignals runs call and puts the actions of the guarded signals back as they were: Go needs its own handlers, which run
// on the signal stack, and only the kernel's form of the call restores them exactly.
func keepSignals(call func()) {
	var saved [len(guardedSignals)]kernelAction
	for i, s := range guardedSignals {
		unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), 0, uintptr(unsafe.Pointer(&saved[i])), 8, 0, 0)
	}
	call()
	for i, s := range guardedSignals {
		unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&saved[i])), 0, 8, 0, 0)
	}
}

// end joins the library's threads; every session must be closed.
func (lib *library) end() { purego.SyscallN(lib.shutdown) }
