package engine

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
)

const (
	listenDescriptor  = 3 // the listening socket
	controlDescriptor = 4 // one line of secrets, then the end of the parent
	exitStuck         = 3 // exit status: a query could not be ended
	closeLimit        = 5 * time.Second
)

// ChildCommand is the hidden command engine-child: one life of the engine process, started by the supervisor only.
type ChildCommand struct {
	Library  string `required:"" help:"Path of libchdb.so."`
	Data     string `required:"" help:"Data folder."`
	Memory   int64  `required:"" help:"Memory limit in bytes."`
	Confined bool   `hidden:"" help:"The process has confined itself to its folders already."`
}

// ServeIfChild runs the engine child and ends the process when this process was started as one; otherwise it returns at once.
// A TestMain calls it first, so that the test binary can be the child of the engine that its tests start.
func ServeIfChild() {
	if os.Getenv(childMark) == "" || len(os.Args) < 2 || os.Args[1] != "engine-child" {
		return
	}
	var command ChildCommand
	parser, err := kong.New(&command, kong.Name("engine-child"))
	if err == nil {
		_, err = parser.Parse(os.Args[2:])
	}
	if err == nil {
		err = command.Run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Run serves the engine on the inherited socket until the parent asks for the end, or ends itself. It returns only when the
// engine could not start or was ended in order.
func (c *ChildCommand) Run(context.Context) error {
	if os.Getenv(childMark) == "" {
		return errors.New("engine-child is started by lowtide itself\nhint: use `lowtide engine`")
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	if !c.Confined {
		if err := writeConfig(c.Data, c.Memory); err != nil {
			return err
		}
		// On success this process image is replaced by a confined one.
		if err := confine(c.Data, c.Library); errors.Is(err, errHalfConfined) {
			return err
		} else if err != nil {
			log.Warn("the child is not confined to its folders by the kernel; the gate and the library's grants remain", "reason", err)
		}
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)

	control := bufio.NewReaderSize(os.NewFile(controlDescriptor, "control"), 8<<10)
	secrets, err := readSecrets(control)
	if err != nil {
		return err
	}
	orphaned := make(chan struct{})
	go func() { // ends with the process
		io.Copy(io.Discard, control)
		close(orphaned)
	}()

	listener, err := net.FileListener(os.NewFile(listenDescriptor, "listener"))
	if err != nil {
		return fmt.Errorf("take over listening socket: %w", err)
	}
	g, err := openGateway(c.Library, c.Data, c.Memory, secrets, log)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: g, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 5 * time.Minute, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	bound := finishLimit
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-end:
	case <-orphaned:
		bound = time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		log.Warn("queries still run at the end and are cut off", "error", err)
		// Closing a session under a running query aborts the process; leaving at once loses nothing that was acknowledged.
		os.Exit(0)
	}
	<-served
	g.close()
	return nil
}

func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// readSecrets reads the passwords, which come neither as arguments nor in the environment.
func readSecrets(control *bufio.Reader) (map[string]string, error) {
	line, err := control.ReadString('\n')
	if err != nil {
		return nil, errors.New("read secrets: the parent ended before it gave them")
	}
	var secrets map[string]string
	if err := json.Unmarshal([]byte(line), &secrets); err != nil {
		return nil, errors.New("read secrets: the line is malformed")
	}
	if len(secrets[RoleWriter]) == 0 || len(secrets[RoleReader]) == 0 {
		return nil, errors.New("read secrets: a password is empty")
	}
	return secrets, nil
}

// openGateway loads the library, opens every session and learns what the library could reach out with.
func openGateway(libraryPath, folder string, memoryLimit int64, secrets map[string]string, log *slog.Logger) (*gateway, error) {
	args := sessionArguments(folder)
	lib, err := loadLibrary(libraryPath)
	if err != nil {
		return nil, err
	}
	control, err := lib.open(args...)
	if err != nil {
		return nil, fmt.Errorf("%w (data folder %s)", err, folder)
	}
	list := func(sql string) ([]string, error) {
		r, err := control.run([]byte(sql), "TabSeparated", nil)
		if err != nil {
			return nil, fmt.Errorf("ask library: %w", err)
		}
		defer r.free()
		return strings.Fields(string(r.data)), nil
	}
	functions, err := list("SELECT name FROM system.table_functions")
	if err != nil {
		return nil, err
	}
	engines, err := list("SELECT name FROM system.table_engines UNION ALL SELECT name FROM system.database_engines")
	if err != nil {
		return nil, err
	}
	about, err := list("SELECT version(), timezone()")
	if err != nil {
		return nil, err
	}
	if len(about) != 2 || len(functions) == 0 || len(engines) == 0 {
		return nil, errors.New("ask library: its lists of functions and engines are empty")
	}
	k := &killer{connection: control}
	g := &gateway{reach: newReach(functions, engines), sessions: map[string]*sessions{}, hashes: map[string][32]byte{},
		hello: helloReply(about[0], about[1]), timezone: about[1], log: log}
	writer, reader := accounts(memoryLimit)
	for _, who := range []account{writer, reader} {
		if g.sessions[who.role], err = openSessions(lib, args, who, k, log); err != nil {
			return nil, err
		}
		g.hashes[who.role] = sha256.Sum256([]byte(secrets[who.role]))
	}
	log.Info("engine is up", "library", lib.version(), "clickhouse", about[0], "memory", memoryLimit)
	return g, nil
}

// close ends all sessions, so that the library leaves its folder in order. It runs once no request does.
func (g *gateway) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	for _, p := range g.sessions {
		if !p.closeAll(ctx) {
			return
		}
	}
	k := g.sessions[RoleWriter].killer
	k.mu.Lock()
	defer k.mu.Unlock()
	lib := k.connection.lib
	k.connection.close()
	lib.end()
}
