package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// restartPause is how long a child that ended by itself rests before it is started again, as a service manager does it.
const restartPause = time.Second

// child is one process of the pipeline. It is started again when it ends by itself, and dies with the harness.
type child struct {
	name    string
	path    string
	args    func() []string // asked at each start
	env     []string
	log     *os.File
	onStart func() // after each start, before anything else happens to it

	turn sync.Mutex // held by the fault that has the process in its hands

	mu       sync.Mutex
	cmd      *exec.Cmd
	ended    chan struct{} // closed when the present life has ended
	exit     error         // of the last life
	wanted   bool          // that it runs
	lives    int
	accident []string // what was said last in each life that ended by itself
	watching sync.WaitGroup
}

func newChild(folder, name, path string, env []string, args func() []string) (*child, error) {
	log, err := os.OpenFile(filepath.Join(folder, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	return &child{name: name, path: path, args: args, env: append(os.Environ(), env...), log: log}, nil
}

// start begins a life; one that runs already goes on.
func (c *child) start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wanted = true
	return c.begin()
}

// begin needs the lock.
func (c *child) begin() error {
	if c.cmd != nil {
		return nil
	}
	c.lives++
	args := c.args()
	fmt.Fprintf(c.log, "--- %s life %d: %s %q\n", time.Now().UTC().Format("15:04:05.000"), c.lives, c.path, args)
	cmd := exec.Command(c.path, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = c.env, c.log, c.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", c.name, err)
	}
	c.cmd, c.ended = cmd, make(chan struct{})
	c.watching.Go(func() { c.watch(cmd, c.ended) })
	if c.onStart != nil {
		c.onStart()
	}
	return nil
}

// watch takes the end of a life, and begins the next one where nobody asked for that end.
func (c *child) watch(cmd *exec.Cmd, ended chan struct{}) {
	err := cmd.Wait()
	c.mu.Lock()
	fmt.Fprintf(c.log, "--- %s ended: %v\n", time.Now().UTC().Format("15:04:05.000"), err)
	c.cmd, c.exit = nil, err
	close(ended)
	accident := c.wanted
	if accident {
		c.accident = append(c.accident, c.lastError())
	}
	c.mu.Unlock()
	if !accident {
		return
	}
	time.Sleep(restartPause)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wanted {
		if err := c.begin(); err != nil {
			fmt.Fprintf(c.log, "--- %v\n", err)
		}
	}
}

// kill ends the life with SIGKILL and waits until it is gone; nothing starts it again but start.
func (c *child) kill() { _ = c.end(syscall.SIGKILL, 10*time.Second) }

// stop ends the life with SIGTERM. An error says that it did not end in time, or with another status than zero.
func (c *child) stop(grace time.Duration) error {
	if err := c.end(syscall.SIGTERM, grace); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.exit != nil {
		return fmt.Errorf("%s ended with %w", c.name, c.exit)
	}
	return nil
}

func (c *child) end(with syscall.Signal, grace time.Duration) error {
	c.mu.Lock()
	c.wanted = false
	cmd, ended := c.cmd, c.ended
	c.mu.Unlock()
	if cmd == nil {
		return nil
	}
	_ = cmd.Process.Signal(syscall.SIGCONT) // a stopped process takes no SIGTERM
	_ = cmd.Process.Signal(with)
	select {
	case <-ended:
		return nil
	case <-time.After(grace):
	}
	_ = cmd.Process.Kill()
	<-ended
	return fmt.Errorf("%s did not end within %v of %v", c.name, grace, with)
}

// signal sends one to the present life, if there is one.
func (c *child) signal(s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd != nil {
		_ = c.cmd.Process.Signal(s)
	}
}

// close kills what still runs and waits for all that belongs to it.
func (c *child) close() {
	c.kill()
	c.watching.Wait()
	_ = c.log.Close()
}

// counts returns the lives so far, and what was said last in each that ended by itself.
func (c *child) counts() (lives int, accidents []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lives, slices.Clone(c.accident)
}

// lastError is the newest line of the log that tells of an error.
func (c *child) lastError() string {
	text, err := os.ReadFile(c.log.Name())
	if err != nil {
		return err.Error()
	}
	for _, line := range slices.Backward(strings.Split(string(text), "\n")) {
		if strings.HasPrefix(line, "error: ") || strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") || strings.Contains(line, "[FTL]") || strings.Contains(line, "[ERR]") {
			return line[:min(len(line), 300)]
		}
	}
	return "no word"
}

// until polls a condition of the outside world, which has no other way to say that it came true.
func until(ctx context.Context, every time.Duration, condition func() (bool, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last error
	for {
		done, err := condition()
		if done {
			return nil
		}
		if err != nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}

// pause waits, or returns false when the context ends before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(max(0, d))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
