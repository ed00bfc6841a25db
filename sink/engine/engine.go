// Package engine runs the embedded ClickHouse engine: libchdb in a child process of its own, behind the ClickHouse HTTP
// interface on a loopback address, so that clickhouse-go, curl and @clickhouse/client can query and insert.
//
// The room owns the library (where it is, how it is called), the child (start, restart, end), the two accounts and their
// password files, and the gate that every statement passes. It refuses to listen anywhere but on loopback, and it refuses
// every statement that would reach out of the engine: files, addresses, other databases, programs, and settings that would
// lift a bound. It knows nothing about the tables that are stored in it.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// The two accounts of the engine.
const (
	RoleWriter = "lowtide" // reads, writes and changes tables
	RoleReader = "reader"  // SELECT, SHOW, DESCRIBE, EXPLAIN and EXISTS only, with a bounded time, memory and result
)

var (
	// ErrLibraryMissing says that no libchdb was found; its text names where was looked and the remedy.
	ErrLibraryMissing = errors.New("libchdb is missing")
	// ErrNotLoopback says that the address to listen on could be reached from another machine.
	ErrNotLoopback = errors.New("address is not loopback")
	// ErrPasswordFile says that a password file cannot be trusted or read.
	ErrPasswordFile = errors.New("password file refused")
)

const (
	// DefaultListen is the address used when none is given; port 0 lets the kernel choose.
	DefaultListen = "127.0.0.1:0"
	// DefaultMemoryLimit bounds the memory of the whole engine, in bytes.
	DefaultMemoryLimit = 2 << 30
	// minMemoryLimit is the least that the engine starts and merges with, in bytes.
	minMemoryLimit = 256 << 20
)

// Options says how to start the engine; the zero value of every field but DataDir has a default.
type Options struct {
	Library     string       // path of libchdb.so; empty: looked up as FindLibrary says
	DataDir     string       // folder of tables and password files; created with mode 0700
	Listen      string       // loopback address host:port; default 127.0.0.1:0
	MemoryLimit int64        // bytes for the whole engine; default 2 GiB, at least 256 MiB
	Log         *slog.Logger // default: discards
	Child       []string     // argv that starts the child; default: this executable with "engine-child"
}

// Engine is a running engine: a supervised child process that answers on Addr until Close.
type Engine struct {
	options  Options
	listener *net.TCPListener
	secrets  map[string]string
	super    *supervisor
}

// Start starts the engine and returns once it answers /ping. It fails when the library is missing, when the address is not
// loopback, when a password file is readable by others, and when the child ends before it answers. ctx bounds the start
// only; the engine lives until Close.
func Start(ctx context.Context, o Options) (*Engine, error) {
	if os.Getenv(childMark) != "" {
		return nil, errors.New("start engine: this process is the engine's own child\n" +
			"hint: the program does not handle the command engine-child; list engine.ChildCommand, or call engine.ServeIfChild first in TestMain")
	}
	if o.DataDir == "" {
		return nil, errors.New("start engine: no data folder given")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Listen == "" {
		o.Listen = DefaultListen
	}
	if o.MemoryLimit == 0 {
		o.MemoryLimit = DefaultMemoryLimit
	}
	if o.MemoryLimit < minMemoryLimit {
		return nil, fmt.Errorf("start engine: memory limit of %d bytes is below the least of %d", o.MemoryLimit, minMemoryLimit)
	}
	library, err := FindLibrary(o.Library)
	if err != nil {
		return nil, fmt.Errorf("start engine: %w", err)
	}
	o.Library = library
	if o.DataDir, err = filepath.Abs(o.DataDir); err != nil {
		return nil, fmt.Errorf("resolve data folder: %w", err)
	}
	if err := os.MkdirAll(o.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("create data folder: %w", err)
	}
	secrets, err := ensurePasswords(o.DataDir)
	if err != nil {
		return nil, fmt.Errorf("start engine: %w", err)
	}
	if len(o.Child) == 0 {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find own executable: %w", err)
		}
		o.Child = []string{self, "engine-child"}
	}
	listener, err := listenLoopback(ctx, o.Listen)
	if err != nil {
		return nil, fmt.Errorf("start engine: %w", err)
	}
	e := &Engine{options: o, listener: listener, secrets: secrets}
	e.super, err = startSupervisor(ctx, o, listener, secrets)
	if err != nil {
		listener.Close()
		return nil, fmt.Errorf("start engine: %w", err)
	}
	return e, nil
}

// Addr returns the address host:port that the engine answers on; it stays the same across restarts.
func (e *Engine) Addr() string { return e.listener.Addr().String() }

// Password returns the password of RoleWriter or RoleReader, and "" for any other name.
func (e *Engine) Password(role string) string { return e.secrets[role] }

// PasswordFile returns the path of the file that holds the password of role.
func (e *Engine) PasswordFile(role string) string { return passwordFile(e.options.DataDir, role) }

// Restarts counts how often the child ended by itself and was started again.
func (e *Engine) Restarts() int { return e.super.restartCount() }

// ChildPID returns the process id of the running child, or 0 while there is none.
func (e *Engine) ChildPID() int { return e.super.childPID() }

// Wait blocks until the engine is closed, or until ctx ends.
func (e *Engine) Wait(ctx context.Context) error {
	select {
	case <-e.super.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close lets running queries finish within a bound, ends the child and frees the address. It may be called twice.
func (e *Engine) Close() error {
	err := e.super.stop()
	if cerr := e.listener.Close(); cerr != nil && !errors.Is(cerr, net.ErrClosed) && err == nil {
		err = fmt.Errorf("close listener: %w", cerr)
	}
	return err
}

// ping asks the engine at addr whether it answers; the request waits in the listener's queue while the child starts.
func ping(ctx context.Context, addr string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/ping", nil)
	if err != nil {
		return fmt.Errorf("build ping: %w", err)
	}
	transport := &http.Transport{Proxy: nil, DisableKeepAlives: true, ResponseHeaderTimeout: time.Minute}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("ping engine: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("ping engine: status %d", resp.StatusCode)
	}
	return nil
}

// listenLoopback opens the listening socket, and refuses an address that another machine could reach.
func listenLoopback(ctx context.Context, address string) (*net.TCPListener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("parse listen address %q: %w", address, err)
	}
	ip := net.ParseIP(host)
	if host == "localhost" {
		ip = net.IPv4(127, 0, 0, 1)
		_, port, _ := net.SplitHostPort(address)
		address = net.JoinHostPort(ip.String(), port)
	}
	if ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("listen on %q: %w\nhint: use 127.0.0.1:PORT; for a database that others reach, run a ClickHouse server", address, ErrNotLoopback)
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", address, err)
	}
	return l.(*net.TCPListener), nil
}
