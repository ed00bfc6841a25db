package nvml

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lowtide/collector/status"
)

// open starts a real child of the given behaviour.
func openChild(t *testing.T, behaviour string, o Options) *Source {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o.Command = []string{self, "child", behaviour}
	o.Interval = time.Nanosecond // every call samples
	s := New(o)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestRealChild(t *testing.T) {
	for _, test := range []struct {
		behaviour, events, status, text string
	}{
		{"answer", "GPU-a 4242", status.OK, ""},
		{"hang", "GPU-a 4242", status.Timeout, "GPU-b: a call of"},
		{"deaf", "", status.Timeout, "NVML did not answer within 1s"},
		{"garbage", "", status.Lost, "malformed frame: its length is 1314280013 bytes"}, // "NVRM"
		{"die", "", status.Lost, "NVML child ended: exit status 1: error: symbol lookup error: undefined symbol: nvmlDeviceGetNothing"},
		{"unheard of", "", status.Lost, `NVML child ended: exit status 1: error: no behaviour "unheard of"`},
	} {
		t.Run(test.behaviour, func(t *testing.T) {
			t.Parallel()
			s := openChild(t, test.behaviour, Options{Deadline: time.Second})
			got, err := collect(t, s, time.Minute)
			for err != nil && err.Error() == "NVML is still being opened" { // a busy machine starts it late
				got, err = collect(t, s, time.Minute)
			}
			if got != test.events || status.Of(err) != test.status {
				t.Errorf("%q, %s: %v", got, status.Of(err), err)
			}
			if err != nil && !strings.Contains(err.Error(), test.text) {
				t.Errorf("%v, want %q", err, test.text)
			}
			if test.status == status.Timeout && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v does not wrap %v", err, context.DeadlineExceeded)
			}
			if s.dying != nil {
				<-s.dying.ended // SIGKILL ends it, and its reader with it
				<-s.dying.read
			}
		})
	}
}

func TestChildIsStartedAgain(t *testing.T) {
	s := openChild(t, "answer", Options{})
	if got, err := collect(t, s, time.Minute); got != "GPU-a 4242" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	s.life.kill()
	<-s.life.read
	if _, err := collect(t, s, time.Minute); status.Of(err) != status.Lost || err.Error() != "NVML child ended: signal: killed" {
		t.Fatalf("%v", err)
	}
	if _, err := collect(t, s, time.Minute); status.Of(err) != status.Lost || s.life != nil {
		t.Fatalf("before the wait is over: %v", err)
	}
	s.retry = time.Now()
	if got, err := collect(t, s, time.Minute); got != "GPU-a 4242" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestCloseEndsEveryChild(t *testing.T) {
	for behaviour, how := range map[string]string{"answer": "exit status 0", "deaf": "signal: killed"} {
		t.Run(behaviour, func(t *testing.T) {
			s := openChild(t, behaviour, Options{Deadline: time.Minute})
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			s.Collect(ctx, time.Now()) // the deaf one is still being asked afterwards
			l := s.life
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			<-l.ended
			if l.how() != how {
				t.Errorf("ended by %s, want %s", l.how(), how)
			}
			if _, err := s.Collect(t.Context(), time.Now()); err == nil {
				t.Error("a closed source is read")
			}
		})
	}
}

func TestMissingProgram(t *testing.T) {
	s := New(Options{Command: []string{filepath.Join(t.TempDir(), "none")}})
	defer s.Close()
	if _, err := collect(t, s, time.Second); status.Of(err) != status.Absent || !strings.Contains(err.Error(), "run NVML child: start child: ") {
		t.Errorf("%v", err)
	}
}

// The child inherits what it needs and no secret, and is the head of a group of its own.
func TestChildEnvironment(t *testing.T) {
	t.Setenv("SLACK_TOKEN", "xoxb-secret")
	t.Setenv("LD_LIBRARY_PATH", "/opt/nvidia/lib64")
	env := strings.Join(childEnvironment(), "\n")
	if strings.Contains(env, "secret") || !strings.Contains(env, "LD_LIBRARY_PATH=/opt/nvidia/lib64") || !strings.Contains(env, "GOMAXPROCS=1") {
		t.Error(env)
	}
}

func TestChildCommandIsNotForPeople(t *testing.T) {
	t.Setenv(childMark, "")
	if err := new(ChildCommand).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "hint: use `lowtide collect`") {
		t.Error(err)
	}
}

// A call that hangs in a helper that the library started holds the pipe as well: the whole group dies.
func TestGroupDies(t *testing.T) {
	p, err := spawn([]string{"/bin/sh", "-c", "sleep 1000 & echo $!; wait"})
	if err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 32)
	n, err := p.out.Read(buffer)
	if err != nil || n < 2 {
		t.Fatalf("%q, %v", buffer[:n], err)
	}
	p.kill()
	<-p.ended
	if n, err := p.out.Read(buffer); err == nil { // the end comes when nobody holds the other side any more
		t.Errorf("%q", buffer[:n])
	}
	if how := p.how(); how != "signal: killed" {
		t.Error(how)
	}
	p.in.Close()
	p.out.Close()
}
