package nvml

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// childMark is set in the environment of the child only: a program that does not know the command nvml-child cannot start itself
// over and over.
const childMark = "LOWTIDE_NVML_CHILD"

// process is one run of the child, as far as the operating system is concerned.
type process struct {
	in    io.WriteCloser // requests
	out   io.ReadCloser  // frames
	kill  func()         // ends the process and what it started; harmless afterwards
	ended <-chan struct{}
	how   func() string // how it ended and its first words; after ended
}

// spawn starts the command with pipes.
func spawn(argv []string) (*process, error) {
	requests, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("open pipe: %w", err)
	}
	defer requests.Close()
	out, answers, err := os.Pipe()
	if err != nil {
		in.Close()
		return nil, fmt.Errorf("open pipe: %w", err)
	}
	defer answers.Close()
	words := new(firstWords)
	command := exec.Command(argv[0], argv[1:]...)
	command.Stdin, command.Stdout, command.Stderr = requests, answers, words
	command.Env = childEnvironment()
	command.WaitDelay = time.Second
	// The library starts a helper of its own (nvidia-modprobe), so what is killed is a group.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}

	var mu sync.Mutex // over reaped, so that no signal goes to a number that belongs to somebody else by now
	reaped := false
	started := make(chan error)
	ended := make(chan struct{})
	var how error
	go func() { // ends with the process; the holder of ended waits for it
		// The parent-death signal is tied to the thread that started the child, so this goroutine keeps its thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := command.Start()
		started <- err
		if err != nil {
			return
		}
		for {
			err := unix.Waitid(unix.P_PID, command.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		mu.Lock()
		reaped = true
		syscall.Kill(-command.Process.Pid, syscall.SIGKILL) // the zombie still holds the number
		mu.Unlock()
		how = command.Wait()
	}()
	if err := <-started; err != nil {
		in.Close()
		out.Close()
		return nil, fmt.Errorf("start child: %w", err)
	}
	return &process{
		in: in, out: out, ended: ended,
		kill: func() {
			mu.Lock()
			defer mu.Unlock()
			if !reaped {
				syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
			}
		},
		how: func() string {
			state := "exit status 0"
			if how != nil {
				state = how.Error()
			}
			if said := words.String(); said != "" {
				state += ": " + said
			}
			return state
		},
	}, nil
}

// childEnvironment is all that the child inherits: no token of the parent is in it. One processor and an early collection of
// garbage keep it small; it has one thing to do at a time.
func childEnvironment() []string {
	env := []string{childMark + "=1", "GOMAXPROCS=1", "GOGC=25", "GOMEMLIMIT=32MiB"}
	for _, name := range []string{"PATH", "LD_LIBRARY_PATH", "TZ", "LANG", "LC_ALL"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// firstWords keeps the beginning of what a child writes to its stderr: a crash says its reason first.
type firstWords struct {
	mu   sync.Mutex
	text []byte
}

const maxWords = 300 // bytes

// Write never fails, so that the child is never blocked by its own complaints.
func (w *firstWords) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, p[:min(len(p), maxWords-len(w.text))]...)
	return len(p), nil
}

// String is the first two lines.
func (w *firstWords) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := strings.SplitN(strings.TrimSpace(strings.ToValidUTF8(string(w.text), "?")), "\n", 3)
	return strings.Join(lines[:min(len(lines), 2)], " ")
}
