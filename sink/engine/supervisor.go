package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// childMark is set in the environment of the child only, so that a program that starts the engine and does not know the
// command engine-child cannot start itself over and over.
const childMark = "LOWTIDE_ENGINE_CHILD"

const (
	firstBackoff = 100 * time.Millisecond
	lastBackoff  = 10 * time.Second
	longLife     = time.Minute      // a child that lived this long starts the backoff afresh
	startLimit   = 2 * time.Minute  // until the first answer
	finishLimit  = 10 * time.Second // for running queries at the end
	killAfter    = finishLimit + 8*time.Second
	tailLines    = 8 // last words of a child, kept for the error of a failed start
)

// supervisor owns the child process: one goroutine starts it, waits for it and starts it again, until stop.
type supervisor struct {
	options  Options
	addr     string
	socket   *os.File // the listening socket, handed to each child
	secrets  []byte   // one line of JSON that each child reads from its control pipe
	stopping chan struct{}
	stopOnce sync.Once
	done     chan struct{} // closed when the goroutine has ended and no child runs
	first    chan error    // nil once the first child answers, or why it ended before

	mu       sync.Mutex
	pid      int
	restarts int
	stopErr  error
}

// startSupervisor starts the first child and returns when it answers, or with the reason why it does not.
func startSupervisor(ctx context.Context, o Options, listener *net.TCPListener, secrets map[string]string) (*supervisor, error) {
	line, err := json.Marshal(secrets)
	if err != nil {
		return nil, fmt.Errorf("encode secrets: %w", err)
	}
	socket, err := listener.File()
	if err != nil {
		return nil, fmt.Errorf("duplicate listening socket: %w", err)
	}
	s := &supervisor{
		options: o, addr: listener.Addr().String(), socket: socket, secrets: append(line, '\n'),
		stopping: make(chan struct{}), done: make(chan struct{}), first: make(chan error, 1),
	}
	go s.run()

	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("engine did not answer within %s", startLimit))
	defer cancel()
	select {
	case err = <-s.first:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *supervisor) restartCount() int { s.mu.Lock(); defer s.mu.Unlock(); return s.restarts }
func (s *supervisor) childPID() int     { s.mu.Lock(); defer s.mu.Unlock(); return s.pid }
func (s *supervisor) setPID(pid int)    { s.mu.Lock(); defer s.mu.Unlock(); s.pid = pid }

// stop ends the child and the goroutine; it returns an error when the child had to be killed.
func (s *supervisor) stop() error {
	s.stopOnce.Do(func() { close(s.stopping) })
	<-s.done
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopErr
}

func (s *supervisor) run() {
	// The child's parent-death signal is tied to the thread that started it, so this goroutine keeps its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(s.done)
	defer s.socket.Close()

	log := s.options.Log
	backoff := firstBackoff
	answered := false
	for {
		started := time.Now()
		c, err := s.spawn()
		var reason string
		if err != nil {
			reason = err.Error()
		} else {
			s.setPID(c.command.Process.Pid)
			asking, enough := context.WithCancel(context.Background())
			ready := make(chan error, 1)
			go func() { ready <- ping(asking, s.addr) }()
			ended := false
			for !ended {
				select {
				case err := <-ready:
					ready = nil
					if err == nil {
						if answered {
							log.Info("engine answers again", "pid", c.command.Process.Pid, "after", time.Since(started).Round(time.Millisecond))
						} else {
							answered = true
							s.first <- nil
						}
					}
				case <-c.exited:
					ended = true
				case <-s.stopping:
					enough()
					s.finish(c)
					if ready != nil {
						<-ready
					}
					s.setPID(0)
					return
				}
			}
			enough()
			if ready != nil {
				<-ready
			}
			s.setPID(0)
			c.control.Close()
			reason = c.lastWords()
		}
		if !answered {
			s.first <- fmt.Errorf("engine child ended before it answered: %s", reason)
			<-s.stopping
			return
		}
		backoff = nextBackoff(backoff, time.Since(started))
		log.Error("engine child ended, it is started again", "reason", reason, "lived", time.Since(started).Round(time.Millisecond), "in", backoff)
		timer := time.NewTimer(backoff)
		select {
		case <-timer.C:
		case <-s.stopping:
			timer.Stop()
			return
		}
		backoff *= 2
		s.mu.Lock()
		s.restarts++
		s.mu.Unlock()
	}
}

// nextBackoff is how long to wait before the next start, given the wait that was planned and how long the child lived.
func nextBackoff(planned, lived time.Duration) time.Duration {
	if lived >= longLife {
		return firstBackoff
	}
	return min(planned, lastBackoff)
}

// finish asks the child to end, and kills it when it does not within the bound.
func (s *supervisor) finish(c *child) {
	c.command.Process.Signal(syscall.SIGTERM)
	timer := time.NewTimer(killAfter)
	defer timer.Stop()
	select {
	case <-c.exited:
	case <-timer.C:
		c.command.Process.Kill()
		<-c.exited
		s.mu.Lock()
		s.stopErr = fmt.Errorf("engine child did not end within %s and was killed", killAfter)
		s.mu.Unlock()
	}
	c.control.Close()
}

// child is one life of the engine process.
type child struct {
	command *exec.Cmd
	control *os.File // write end of its control pipe: it ends when this is closed
	exited  chan struct{}
	words   *lineLog
	err     error // of Wait; read after exited
}

func (s *supervisor) spawn() (*child, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("open control pipe: %w", err)
	}
	defer read.Close()
	argv := append(append([]string{}, s.options.Child...),
		"--library="+s.options.Library, "--data="+s.options.DataDir, "--memory="+strconv.FormatInt(s.options.MemoryLimit, 10))
	command := exec.Command(argv[0], argv[1:]...)
	command.ExtraFiles = []*os.File{s.socket, read} // descriptors 3 and 4
	command.Env = childEnvironment(s.options.DataDir)
	command.Dir = s.options.DataDir
	words := &lineLog{log: s.options.Log}
	command.Stdout, command.Stderr = words, words
	command.WaitDelay = 2 * time.Second
	// A group of its own keeps Ctrl-C in a terminal from reaching the child before the parent has decided.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := command.Start(); err != nil {
		write.Close()
		return nil, fmt.Errorf("start engine child: %w", err)
	}
	// A pipe takes this much without a reader, so the write cannot block.
	if _, err := write.Write(s.secrets); err != nil {
		command.Process.Kill()
		command.Wait()
		write.Close()
		return nil, fmt.Errorf("hand over secrets: %w", err)
	}
	c := &child{command: command, control: write, exited: make(chan struct{}), words: words}
	go func() {
		c.err = command.Wait()
		words.flush()
		close(c.exited)
	}()
	return c, nil
}

// childEnvironment is all that the child inherits: no token of the parent is in it.
func childEnvironment(folder string) []string {
	env := []string{childMark + "=1", "HOME=" + folder}
	for _, name := range []string{"PATH", "TZ", "LANG", "LC_ALL"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// lastWords says how the child ended and what it wrote last.
func (c *child) lastWords() string {
	state := "exit status 0"
	if c.err != nil {
		state = c.err.Error()
	}
	if tail := c.words.tail(); tail != "" {
		return state + ": " + tail
	}
	return state
}

// lineLog passes the child's output on as log records, one a line, and keeps the last lines.
type lineLog struct {
	log  *slog.Logger
	mu   sync.Mutex
	rest []byte
	last []string
}

const maxLine = 4096 // bytes of one line of the child's output; the rest is cut

// Write never fails, so that the child is never blocked by its log.
func (l *lineLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range p {
		if b == '\n' {
			l.emit()
		} else if len(l.rest) < maxLine {
			l.rest = append(l.rest, b)
		}
	}
	return len(p), nil
}

func (l *lineLog) flush() { l.mu.Lock(); defer l.mu.Unlock(); l.emit() }

func (l *lineLog) emit() {
	line := strings.TrimSpace(strings.ToValidUTF8(string(l.rest), "?"))
	l.rest = l.rest[:0]
	if line == "" {
		return
	}
	l.last = append(l.last, line)
	if len(l.last) > tailLines {
		l.last = l.last[1:]
	}
	level := slog.LevelInfo
	for _, known := range []slog.Level{slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		if rest, ok := strings.CutPrefix(line, "level="+known.String()+" msg="); ok {
			level, line = known, rest
		}
	}
	l.log.Log(context.Background(), level, "engine child: "+line)
}

func (l *lineLog) tail() string { l.mu.Lock(); defer l.mu.Unlock(); return strings.Join(l.last, "\n") }
