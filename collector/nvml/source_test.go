package nvml

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector/status"
	"lowtide/event"
)

// inside is a child that lives in the test's own bubble: script answers a request, or returns false to hang.
type inside struct {
	requests []request
	out      *frameWriter
	end      func()
}

// children hands the source one child after another; begin runs before the hello.
type children struct {
	mu     sync.Mutex
	all    []*inside
	at     []time.Time
	begin  func(n int, out *frameWriter) bool // false: no hello
	script func(n int, r request, out *frameWriter) bool
	undead bool // killing does not end them
}

func (c *children) start() (*process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	requests, in := io.Pipe()
	out, answers := io.Pipe()
	n := len(c.all)
	child := &inside{out: &frameWriter{out: answers}}
	ended := make(chan struct{})
	var once sync.Once
	child.end = func() {
		once.Do(func() { requests.Close(); answers.Close(); close(ended) })
	}
	c.all, c.at = append(c.all, child), append(c.at, time.Now())
	kill := child.end
	if c.undead {
		kill = func() {}
	}
	go func() {
		if c.begin != nil && !c.begin(n, child.out) {
			<-ended
			return
		}
		if child.out.write(hello, &event.Batch{Schema: protocol}) != nil {
			return
		}
		buffer := make([]byte, maxRequest)
		for {
			size, err := requests.Read(buffer)
			if err != nil {
				child.end()
				return
			}
			r, err := parseRequest(string(buffer[:size]))
			if err != nil {
				panic(err)
			}
			c.mu.Lock()
			child.requests = append(child.requests, r)
			c.mu.Unlock()
			if !c.script(n, r, child.out) {
				<-ended
				return
			}
		}
	}()
	return &process{in: in, out: out, kill: kill, ended: ended, how: func() string { return "exit status 1: its last words" }}, nil
}

func (c *children) count() int { c.mu.Lock(); defer c.mu.Unlock(); return len(c.all) }

// answerWith answers for each card that is not skipped.
func answerWith(uuids ...string) func(int, request, *frameWriter) bool {
	return func(_ int, r request, out *frameWriter) bool {
		if _, _, err := (&scripted{uuids: uuids}).sample(r, out); err != nil {
			return false
		}
		return out.write(end, new(event.Batch)) == nil
	}
}

func bubble(t *testing.T, c *children, o Options, test func(t *testing.T, s *Source)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := New(o)
		s.built, s.start = true, c.start
		test(t, s)
		c.mu.Lock()
		for _, child := range c.all {
			child.end()
		}
		c.mu.Unlock()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// collect asks at the present moment and returns the bodies in short.
func collect(t *testing.T, s *Source, limit time.Duration) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.Now().UTC()
	events, err := s.Collect(ctx, tick)
	var short []string
	for _, e := range events {
		if err := event.Validate(e); err != nil {
			t.Errorf("event %v: %v", e, err)
		}
		if e.At().After(tick) {
			t.Errorf("an event of %v at the tick %v", e.At(), tick)
		}
		switch {
		case e.Gpu != nil:
			short = append(short, e.Gpu.Uuid)
		case e.Xid != nil:
			short = append(short, fmt.Sprint("xid ", e.Xid.GetCode()))
		case e.GpuProcess != nil:
			short = append(short, fmt.Sprint(e.Worker.Pid))
		}
	}
	return strings.Join(short, " "), err
}

func TestSamplesOncePerInterval(t *testing.T) {
	c := &children{script: answerWith("GPU-a", "GPU-b")}
	bubble(t, c, Options{}, func(t *testing.T, s *Source) {
		if got, err := collect(t, s, time.Second); err != nil || got != "GPU-a 4242 GPU-b 4242" {
			t.Fatalf("%q, %v", got, err)
		}
		time.Sleep(300 * time.Millisecond) // of the bubble's clock
		if got, err := collect(t, s, time.Second); err != nil || got != "" {
			t.Errorf("within the interval: %q, %v", got, err)
		}
		time.Sleep(700 * time.Millisecond)
		if got, err := collect(t, s, time.Second); err != nil || got != "GPU-a 4242 GPU-b 4242" {
			t.Errorf("at the next tick: %q, %v", got, err)
		}
		if n := c.count(); n != 1 {
			t.Errorf("%d children", n)
		}
	})
}

func TestXidWakes(t *testing.T) {
	c := &children{script: answerWith("GPU-a")}
	bubble(t, c, Options{}, func(t *testing.T, s *Source) {
		collect(t, s, time.Second)
		time.Sleep(400 * time.Millisecond)
		select {
		case <-s.Wake():
			t.Fatal("woken by nothing")
		default:
		}
		e := &event.Event{Time: timestamppb.Now(), Xid: &event.Xid{Code: event.Ptr(uint64(31)), GpuUuid: "GPU-a", Source: "nvml"}}
		go c.all[0].out.write(xid, &event.Batch{Events: []*event.Event{e}})
		<-s.Wake()
		if got, err := collect(t, s, time.Second); err != nil || got != "xid 31" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

func TestStormOfXidsKeepsTheFirst(t *testing.T) {
	c := &children{script: answerWith("GPU-a")}
	bubble(t, c, Options{}, func(t *testing.T, s *Source) {
		collect(t, s, time.Second)
		for code := range uint64(maxUrgent + 10) {
			e := &event.Event{Time: timestamppb.Now(), Xid: &event.Xid{Code: &code, Source: "nvml"}}
			c.all[0].out.write(xid, &event.Batch{Events: []*event.Event{e}})
		}
		synctest.Wait()
		got, err := collect(t, s, time.Second)
		if !strings.HasPrefix(got, "xid 0 xid 1 ") || strings.Count(got, "xid") != maxUrgent {
			t.Errorf("%d events: %.40s", strings.Count(got, "xid"), got)
		}
		if status.Of(err) != status.Lost || !strings.Contains(err.Error(), "10 Xid events were dropped") {
			t.Errorf("%v", err)
		}
		time.Sleep(time.Second)
		if got, err := collect(t, s, time.Second); err != nil || got != "GPU-a 4242" {
			t.Errorf("afterwards: %q, %v", got, err)
		}
	})
}

// A card that hangs costs the others one deadline and a second, again after ever longer pauses.
func TestCardThatHangsIsLeftOut(t *testing.T) {
	c := &children{script: func(_ int, r request, out *frameWriter) bool {
		for _, uuid := range []string{"GPU-a", "GPU-b", "GPU-c"} {
			if uuid == "GPU-b" && len(r.skip) == 1 && r.skip[0] == "GPU-b" {
				continue
			}
			out.ask(uuid)
			if uuid == "GPU-b" {
				return false
			}
			out.add(device, cardBatch(uuid, timestamppb.New(r.tick)))
		}
		return out.write(end, new(event.Batch)) == nil
	}}
	bubble(t, c, Options{}, func(t *testing.T, s *Source) {
		began := time.Now()
		got, err := collect(t, s, time.Minute)
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("killed after %v", took)
		}
		if got != "GPU-a 4242" || status.Of(err) != status.Timeout || !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "GPU-b: a call of 00:00:04 did not return within 4s") {
			t.Errorf("%q, %v", got, err)
		}
		if got, err := collect(t, s, time.Minute); got != "" || status.Of(err) != status.Timeout || c.count() != 1 {
			t.Errorf("before the pause is over: %q, %v, %d children", got, err, c.count())
		}
		full, cut := 0, 0
		for range 300 { // seconds, or a little more
			time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
			got, err := collect(t, s, time.Minute)
			if status.Of(err) != status.Timeout || !strings.Contains(err.Error(), "GPU-b") {
				t.Fatalf("%v: %q, %v", time.Since(began), got, err)
			}
			switch got {
			case "GPU-a 4242 GPU-c 4242":
				full++
			case "GPU-a 4242":
				cut++
			}
		}
		// The pauses are 1, 2, 4, 8, 16, 32 and 60 s, the first after the hang above.
		if n := c.count(); cut < 7 || cut > 9 || n != cut+2 && n != cut+1 || full < 250 {
			t.Errorf("%d full, %d cut off, %d children", full, cut, n)
		}
	})
}

func TestBackoffOfAbsentDriver(t *testing.T) {
	c := &children{script: answerWith("GPU-a")}
	c.begin = func(n int, out *frameWriter) bool {
		if n < 8 {
			out.write(failed, reasons([]failure{{status.Absent, "the NVIDIA driver is not loaded"}}))
			return false
		}
		return true
	}
	bubble(t, c, Options{}, func(t *testing.T, s *Source) {
		began := time.Now()
		for range 240 {
			got, err := collect(t, s, time.Second)
			if c.count() < 9 {
				if got != "" || !errors.Is(err, status.ErrAbsent) || err.Error() != "the NVIDIA driver is not loaded" {
					t.Fatalf("%v: %q, %v", time.Since(began), got, err)
				}
			} else if got != "GPU-a 4242" || err != nil {
				t.Fatalf("the driver is back: %q, %v", got, err)
			}
			time.Sleep(time.Second)
		}
		var starts []string
		for _, at := range c.at {
			starts = append(starts, fmt.Sprint(at.Sub(began).Seconds()))
		}
		if got, want := strings.Join(starts, " "), "0 1 3 7 15 31 63 123 183"; got != want {
			t.Errorf("started at %s, want %s", got, want)
		}
	})
}

func TestSlowStartIsNoHang(t *testing.T) {
	c := &children{script: answerWith("GPU-a")}
	c.begin = func(n int, out *frameWriter) bool {
		if n == 0 {
			time.Sleep(20 * time.Second)
			return true
		}
		return false
	}
	bubble(t, c, Options{}, func(t *testing.T, s *Source) {
		for range 4 {
			if got, err := collect(t, s, 5*time.Second); got != "" || status.Of(err) != status.Timeout || err.Error() != "NVML is still being opened" {
				t.Fatalf("%q, %v", got, err)
			}
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		if got, err := collect(t, s, 5*time.Second); got != "GPU-a 4242" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		c.all[0].end()
		time.Sleep(time.Second)
		if _, err := collect(t, s, 5*time.Second); status.Of(err) != status.Lost || err.Error() != "NVML child ended: exit status 1: its last words" {
			t.Errorf("%v", err)
		}
		began := time.Now()
		for time.Since(began) < 70*time.Second {
			time.Sleep(time.Second)
			_, err := collect(t, s, 5*time.Second)
			if c.count() == 3 {
				break
			}
			if status.Of(err) != status.Timeout && c.count() == 2 {
				t.Fatalf("%v", err)
			}
		}
		if lived := c.at[2].Sub(c.at[1]); c.count() != 3 || lived < time.Minute || lived > 67*time.Second {
			t.Errorf("%d children, the one that never opened lived %v", c.count(), lived)
		}
	})
}

// A context that ends before the child's deadline ends the call and not the child.
func TestLateAnswerIsOfItsOwnTick(t *testing.T) {
	c := &children{}
	c.script = func(_ int, r request, out *frameWriter) bool {
		if len(c.all[0].requests) == 1 {
			time.Sleep(1500 * time.Millisecond)
		}
		return answerWith("GPU-a")(0, r, out)
	}
	bubble(t, c, Options{}, func(t *testing.T, s *Source) {
		began := time.Now()
		got, err := collect(t, s, time.Second)
		if got != "" || status.Of(err) != status.Timeout || time.Since(began) != time.Second {
			t.Fatalf("%q, %v after %v", got, err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		events, err := s.Collect(ctx, time.Now().UTC())
		if err != nil || len(events) != 4 || !events[0].At().Equal(began) || !events[2].At().Equal(began.Add(time.Second)) {
			t.Errorf("%v, %v", events, err)
		}
		if n := c.count(); n != 1 {
			t.Errorf("%d children", n)
		}
	})
}

func TestEndedContextStartsNothing(t *testing.T) {
	c := &children{script: answerWith("GPU-a")}
	bubble(t, c, Options{}, func(t *testing.T, s *Source) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if events, err := s.Collect(ctx, time.Now()); len(events) > 0 || !errors.Is(err, context.Canceled) || c.count() != 0 {
			t.Errorf("%v, %v, %d children", events, err, c.count())
		}
		if got, err := collect(t, s, time.Second); got != "GPU-a 4242" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// A process that hangs in the driver does not die of SIGKILL; there must not be one more of them each minute.
func TestUndeadChildHasNoSuccessor(t *testing.T) {
	c := &children{undead: true, script: func(int, request, *frameWriter) bool { return false }}
	bubble(t, c, Options{}, func(t *testing.T, s *Source) {
		for range 100 {
			collect(t, s, 5*time.Second)
			time.Sleep(time.Second)
		}
		if _, err := collect(t, s, 5*time.Second); c.count() != 1 || status.Of(err) != status.Timeout || !strings.Contains(err.Error(), "has not ended") {
			t.Errorf("%d children, %v", c.count(), err)
		}
		began := time.Now()
		if err := s.Close(); err == nil || time.Since(began) > 5*time.Second {
			t.Errorf("closed in %v: %v", time.Since(began), err)
		}
	})
}

func TestChildOutOfTurn(t *testing.T) {
	for name, frames := range map[string]func(out *frameWriter){
		"an end without a request": func(out *frameWriter) { out.write(end, new(event.Batch)) },
		"a card without a request": func(out *frameWriter) { out.write(device, cardBatch("GPU-a", timestamppb.Now())) },
		"another version":          func(out *frameWriter) { out.write(hello, &event.Batch{Schema: protocol + 1}) },
		"an xid that is a card":    func(out *frameWriter) { out.write(xid, cardBatch("GPU-a", timestamppb.Now())) },
	} {
		t.Run(name, func(t *testing.T) {
			c := &children{begin: func(_ int, out *frameWriter) bool { frames(out); return true }, script: answerWith("GPU-a")}
			bubble(t, c, Options{}, func(t *testing.T, s *Source) {
				if got, err := collect(t, s, time.Second); got != "" || status.Of(err) != status.Lost || !strings.Contains(err.Error(), "no longer understood") {
					t.Errorf("%q, %v", got, err)
				}
			})
		})
	}
}
