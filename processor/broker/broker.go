// Package broker owns everything Lowtide asks of NATS: the server that `lowtide up` runs in this process, the streams with their
// partitioning subject transform, the buckets, the durable consumers, and errors that say what to do. It refuses to look into a
// message and to listen beyond loopback without being asked.
package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// MaxPayload is the largest message in bytes that the embedded server takes: a batch with a snapshot summary fits many times.
const MaxPayload = 8 << 20

const (
	startLimit = 20 * time.Second
	minimumDir = 64 << 20 // bytes that must be free before a store is opened; below it JetStream dies in the middle of a write
)

// Options say where the embedded server keeps its data and who may reach it.
type Options struct {
	StoreDir   string        // the folder of the streams; created with mode 0700
	Listen     string        // host:port; "" means in process only, no port; no host means 127.0.0.1; port 0 is drawn by the kernel
	Token      string        // what a client outside this process must show; required when Listen is not loopback
	MaxBytes   int64         // bound of the event stream in bytes; 0 means Budget(StoreDir)
	Sync       time.Duration // how often files are forced to disk; 0 means 10 s
	SyncAlways bool          // force every message to disk before its acknowledgement
	Log        *slog.Logger  // nil means silent
}

// Server is a NATS server in this process.
type Server struct {
	server *server.Server
	lock   *os.File
	token  string
	limits Limits
	log    *slog.Logger
	broken <-chan string // a line that says that a write failed
}

// Start opens the store and waits until the server takes connections. The errors are *Failure where a remedy is known.
func Start(ctx context.Context, o Options) (*Server, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.StoreDir == "" {
		return nil, errors.New("start broker: no folder for its data")
	}
	host, port, err := listenAddress(o.Listen, o.Token)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.StoreDir, 0o700); err != nil {
		return nil, explain("create the broker's folder "+o.StoreDir, err)
	}
	lock, err := lockFolder(o.StoreDir)
	if err != nil {
		return nil, err
	}
	started, err := start(ctx, o, host, port)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	started.lock = lock
	return started, nil
}

func start(ctx context.Context, o Options, host string, port int) (*Server, error) {
	free, budget, err := diskBudget(o.StoreDir)
	if err != nil {
		return nil, err
	}
	if free < minimumDir {
		return nil, &Failure{
			What:   fmt.Sprintf("start broker: only %d MiB are free in %s, it needs %d MiB", free>>20, o.StoreDir, minimumDir>>20),
			Remedy: "free some disk space, or choose another folder with --data",
			Err:    syscall.ENOSPC,
		}
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = budget
	}
	if o.Sync == 0 {
		o.Sync = 10 * time.Second
	}
	limits := Limits{EventBytes: o.MaxBytes}.withDefaults()
	instance, err := server.NewServer(&server.Options{
		ServerName: "lowtide", JetStream: true, StoreDir: o.StoreDir, JetStreamMaxStore: limits.total(), JetStreamMaxMemory: 64 << 20,
		DontListen: o.Listen == "", Host: host, Port: port, Authorization: o.Token, MaxPayload: MaxPayload,
		SyncInterval: o.Sync, SyncAlways: o.SyncAlways, NoSigs: true, NoSystemAccount: true,
	})
	if err != nil {
		return nil, explain("configure broker", err)
	}
	broken := make(chan string, 1)
	instance.SetLoggerV2(serverLog{o.Log, broken}, false, false, false)
	ready := make(chan bool, 1)
	go func() {
		instance.Start()
		ready <- instance.ReadyForConnections(startLimit)
	}()
	select {
	case ok := <-ready:
		if ok && instance.JetStreamEnabled() {
			return &Server{server: instance, token: o.Token, limits: limits, log: o.Log, broken: broken}, nil
		}
		instance.Shutdown()
		return nil, &Failure{
			What:   fmt.Sprintf("start broker: not ready after %s (folder %s, listen %q)", startLimit, o.StoreDir, o.Listen),
			Remedy: "the lines above from the broker say why; a port in use is avoided with --listen 127.0.0.1:0",
		}
	case <-ctx.Done():
		instance.Shutdown()
		<-ready
		return nil, fmt.Errorf("start broker: %w", context.Cause(ctx))
	}
}

// Limits returns what the streams of this server may take, for Ensure.
func (s *Server) Limits() Limits { return s.limits }

// Connect opens a connection inside this process: no port, no token to know, and it comes back by itself.
func (s *Server) Connect() (*nats.Conn, error) {
	return connect("", "in process", s.log, nats.InProcessServer(s.server), nats.Token(s.token))
}

// ClientURL returns the address without its token, or "" when the server does not listen.
func (s *Server) ClientURL() string {
	address, ok := s.server.Addr().(*net.TCPAddr)
	if !ok || address == nil {
		return ""
	}
	return "nats://" + address.String()
}

// Watch returns nil when ctx ends, and a *Failure when the server gave up storing: after a failed write it goes on to take
// connections and acknowledges nothing, which from outside looks like silence.
func (s *Server) Watch(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case cause := <-s.broken:
		return &Failure{
			What:   "broker stopped storing, nothing after this was acknowledged: " + cause,
			Remedy: "free some space or choose another folder with --data, then start again: what was acknowledged is kept",
			Err:    syscall.ENOSPC,
		}
	}
}

// Close stops the server, waits until its files are closed and gives the folder back.
func (s *Server) Close() {
	s.server.Shutdown()
	s.server.WaitForShutdown()
	s.lock.Close()
}

// listenAddress keeps the server on loopback unless an address was written out, and then only with a token.
func listenAddress(listen, token string) (host string, port int, err error) {
	if listen == "" {
		return "127.0.0.1", server.RANDOM_PORT, nil
	}
	host, text, err := net.SplitHostPort(listen)
	if err != nil {
		return "", 0, &Failure{What: fmt.Sprintf("listen on %q: not host:port", listen), Remedy: "for example --listen 127.0.0.1:4222", Err: err}
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, &Failure{What: fmt.Sprintf("listen on %q: port %q is not 0 to 65535", listen, text), Remedy: "for example --listen 127.0.0.1:4222", Err: err}
	}
	if port = int(number); port == 0 {
		port = server.RANDOM_PORT
	}
	switch {
	case host == "":
		host = "127.0.0.1"
	case host == "localhost":
	default:
		if ip := net.ParseIP(host); (ip == nil || !ip.IsLoopback()) && token == "" {
			return "", 0, &Failure{What: fmt.Sprintf("listen on %q: anybody in the network could publish and read", listen), Remedy: "set a token, or listen on 127.0.0.1"}
		}
	}
	return host, port, nil
}

// lockFolder keeps a second server out of the store: two would corrupt it silently.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, explain("lock the broker's folder "+dir, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(&Failure{
			What:   "lock the broker's folder " + dir + ": another lowtide uses it",
			Remedy: "stop the other one, or choose another folder with --data",
			Err:    err,
		}, f.Close())
	}
	return f, nil
}

// Budget returns the bound of the event stream for a folder in bytes: the smaller of 20 GiB and a fifth of its disk.
func Budget(dir string) (int64, error) {
	_, budget, err := diskBudget(dir)
	return budget, err
}

func diskBudget(dir string) (free, budget int64, err error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return 0, 0, explain("read the size of the disk under "+dir, err)
	}
	size := int64(fs.Blocks) * int64(fs.Bsize)
	return int64(fs.Bavail) * int64(fs.Bsize), min(20<<30, size/5), nil
}

// serverLog hands the server's lines on. Its notices are debug here: a healthy start is not news. A failed write is known only by its
// line: the server has no call that tells of it.
type serverLog struct {
	log    *slog.Logger
	broken chan<- string
}

func (l serverLog) Noticef(format string, v ...any) {
	l.log.Debug("broker: " + fmt.Sprintf(format, v...))
}
func (l serverLog) Warnf(format string, v ...any)  { l.log.Warn("broker: " + fmt.Sprintf(format, v...)) }
func (l serverLog) Fatalf(format string, v ...any) { l.Errorf(format, v...) }
func (l serverLog) Debugf(string, ...any)          {}
func (l serverLog) Tracef(string, ...any)          {}

func (l serverLog) Errorf(format string, v ...any) {
	line := fmt.Sprintf(format, v...)
	l.log.Error("broker: " + line)
	if strings.Contains(line, "critical write error") || strings.Contains(line, "no space left on device") || strings.Contains(line, "DISABLED") {
		select {
		case l.broken <- line:
		default: // one is enough
		}
	}
}
