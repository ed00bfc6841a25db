package allocator

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lowtide/collector/status"
	"lowtide/event"
)

// stat writes what /proc tells of a process.
func stat(t *testing.T, root string, pid int, ticks uint64) {
	t.Helper()
	dir := filepath.Join(root, strconv.Itoa(pid))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%d (python3) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0\n", pid, ticks)
	if err := os.WriteFile(filepath.Join(dir, "stat"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// piped is a source without a socket, whose peers are pipes: time can be the test's own.
func piped(t *testing.T, pids ...int) *Source {
	t.Helper()
	root := t.TempDir()
	for _, pid := range pids {
		stat(t, root, pid, 100)
	}
	return newSource(Options{ProcRoot: root})
}

// join connects a process, and reads the collector's line. Nil means that it was refused.
func join(t *testing.T, s *Source, pid int) net.Conn {
	t.Helper()
	near, far := net.Pipe()
	p := s.admit(near, pid)
	if p == nil {
		return nil
	}
	go func() {
		defer s.serving.Done()
		p.serve()
	}()
	line, err := bufio.NewReader(far).ReadString('\n')
	if err != nil || line != `{"lowtide":1,"interval_seconds":5}`+"\n" {
		t.Fatalf("the collector's line is %q, %v", line, err)
	}
	t.Cleanup(func() { far.Close() })
	return far
}

func say(t *testing.T, conn net.Conn, format string, args ...any) {
	t.Helper()
	if _, err := fmt.Fprintf(conn, format+"\n", args...); err != nil {
		t.Fatal(err)
	}
}

// read is a probe's line about one card, read at that moment.
func read(at time.Time, allocated int) string {
	return fmt.Sprintf(`{"v":1,"kind":"read","time":%d.%03d,"interval_seconds":5,"devices":[{"gpu_uuid":"GPU-1","allocated_bytes":%d}]}`,
		at.Unix(), at.Nanosecond()/1e6, allocated)
}

// stop ends the peers' goroutines, inside the bubble.
func stop(s *Source) {
	s.mu.Lock()
	close(s.done)
	for p := range s.peers {
		p.conn.Close()
	}
	s.mu.Unlock()
	s.serving.Wait()
}

func collect(t *testing.T, s *Source, tick time.Time) []*event.Event {
	t.Helper()
	events, err := s.Collect(t.Context(), tick)
	if err != nil {
		t.Fatalf("collect: %v", err)
	}
	valid(t, tick, events)
	return events
}

func valid(t *testing.T, tick time.Time, events []*event.Event) {
	t.Helper()
	for _, e := range events {
		if err := event.Validate(e); err != nil {
			t.Errorf("%v: %v", e, err)
		}
		if e.At().After(tick) {
			t.Errorf("%v is after the tick %v", e.At(), tick)
		}
	}
}

func woken(s *Source) bool {
	select {
	case <-s.Wake():
		return true
	default:
		return false
	}
}

// The bubble's clock starts at midnight, 2000-01-01: a multiple of every interval.
func TestTickWaitsForProbesThatAreDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := piped(t, 11, 12)
		defer stop(s)
		fast, slow := join(t, s, 11), join(t, s, 12)
		tick := time.Now()
		collect(t, s, tick)
		if !time.Now().Equal(tick) {
			t.Fatal("probes that never reported are waited for")
		}
		time.Sleep(5 * time.Second)
		tick = time.Now()
		say(t, fast, "%s", read(tick, 1))
		say(t, slow, "%s", read(tick, 2))
		synctest.Wait()
		if events := collect(t, s, tick); len(events) != 2 || !time.Now().Equal(tick) {
			t.Fatalf("%d events after %v", len(events), time.Since(tick))
		}

		time.Sleep(5 * time.Second)
		tick = time.Now()
		go func() {
			fmt.Fprintln(fast, read(tick, 3))
			time.Sleep(100 * time.Millisecond)
			fmt.Fprintln(slow, read(tick.Add(100*time.Millisecond), 4))
		}()
		events := collect(t, s, tick)
		if took := time.Since(tick); took != 100*time.Millisecond {
			t.Errorf("waited %v for the slower one", took)
		}
		for _, e := range events {
			if !e.At().Equal(tick) || e.Allocator.GetAllocatedBytes() != uint64(3+e.Worker.Pid-11) {
				t.Errorf("%v", e)
			}
		}
		if len(events) != 2 {
			t.Errorf("%d events", len(events))
		}

		// One does not report at all: the tick ends with the grace, and its line makes up for it when it comes.
		time.Sleep(5*time.Second - time.Since(tick))
		tick = time.Now()
		say(t, fast, "%s", read(tick, 5))
		if events := collect(t, s, tick); len(events) != 1 || time.Since(tick) != DefaultGrace {
			t.Errorf("%d events after %v", len(events), time.Since(tick))
		}
		if woken(s) {
			t.Error("woken for nothing")
		}
		time.Sleep(time.Second)
		say(t, slow, "%s", read(tick.Add(time.Second), 6))
		synctest.Wait()
		if !woken(s) {
			t.Fatal("a late read does not wake")
		}
		late := collect(t, s, time.Now())
		if len(late) != 1 || late[0].Worker.Pid != 12 || !late[0].At().Equal(tick) {
			t.Errorf("%v", late)
		}
		if again := collect(t, s, time.Now()); len(again) != 0 {
			t.Errorf("read twice: %v", again)
		}
		fast.Close()
		slow.Close()
		synctest.Wait()
		at := time.Now()
		if events := collect(t, s, at.Add(time.Minute)); len(events) != 0 || !time.Now().Equal(at) {
			t.Errorf("probes that left are waited for: %d events after %v", len(events), time.Since(at))
		}
	})
}

func TestReadOfTheComingTickWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := piped(t, 11)
		defer stop(s)
		conn := join(t, s, 11)
		collect(t, s, time.Now())
		time.Sleep(5 * time.Second)
		say(t, conn, "%s", read(time.Now(), 1)) // before the loop's own tick
		say(t, conn, `{"v":1,"kind":"bye","time":%d,"exit_code":null}`, time.Now().Unix())
		synctest.Wait()
		if !woken(s) {
			t.Fatal("bye does not wake")
		}
		events := collect(t, s, time.Now())
		if len(events) != 1 || events[0].Lifecycle == nil {
			t.Fatalf("%v", events)
		}
		if events := collect(t, s, time.Now()); len(events) != 1 || events[0].Allocator == nil {
			t.Fatalf("%v", events)
		}
	})
}

func TestFailedAllocations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := piped(t, 11)
		defer stop(s)
		conn := join(t, s, 11)
		collect(t, s, time.Now())
		observer := func() { // 1 GiB
			say(t, conn, `{"v":1,"kind":"oom","time":%d,"source":"observer","gpu_uuid":"GPU-1","requested_bytes":1073741824,"free_bytes":5}`, time.Now().Unix())
		}
		exception := func() {
			say(t, conn, `{"v":1,"kind":"oom","time":%d,"source":"exception","text":"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB."}`, time.Now().Unix())
		}
		began := time.Now()
		observer()
		exception()
		synctest.Wait()
		if !woken(s) || !time.Now().Equal(began) {
			t.Fatal("an OOM with its text does not wake at once")
		}
		events := collect(t, s, time.Now())
		if len(events) != 1 || events[0].Worker.Pid != 11 || events[0].Oom.GetFreeBytes() != 5 || events[0].Oom.GetRequestedBytes() != 1<<30 ||
			!strings.Contains(events[0].Oom.Text, "Tried to allocate 1.00 GiB") || events[0].Oom.Kind != "cuda" {
			t.Fatalf("%v", events)
		}

		observer() // the program catches it
		<-s.Wake()
		if waited := time.Since(began); waited != textWait {
			t.Errorf("told after %v", waited)
		}
		events = collect(t, s, time.Now())
		if len(events) != 1 || events[0].Oom.GetRequestedBytes() != 1<<30 || !events[0].At().Equal(began) {
			t.Fatalf("%v", events)
		}
		exception() // and logs it a moment later: no second failure
		synctest.Wait()
		events = collect(t, s, time.Now())
		if len(events) != 1 || events[0].Log.GetSignature() != "oom_text" {
			t.Fatalf("%v", events)
		}
		exception() // this one is
		synctest.Wait()
		woken(s)
		if events = collect(t, s, time.Now()); len(events) != 1 || events[0].Oom == nil {
			t.Fatalf("%v", events)
		}

		observer() // and dies
		conn.Close()
		synctest.Wait()
		woken(s)
		if events = collect(t, s, time.Now()); len(events) != 1 || events[0].Oom == nil {
			t.Fatalf("%v", events)
		}
	})
}

// The urgent event comes while a tick waits for another worker that does not report.
func TestUrgentEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := piped(t, 11, 12)
		defer stop(s)
		stuck, dying := join(t, s, 11), join(t, s, 12)
		say(t, stuck, "%s", read(time.Now(), 1))
		synctest.Wait()
		collect(t, s, time.Now())
		time.Sleep(5 * time.Second)
		tick := time.Now()
		go func() {
			time.Sleep(20 * time.Millisecond)
			fmt.Fprintf(dying, `{"v":1,"kind":"bye","time":%d,"exit_code":1}`+"\n", tick.Unix())
		}()
		events := collect(t, s, tick)
		if len(events) != 1 || events[0].Lifecycle == nil || time.Since(tick) != 20*time.Millisecond {
			t.Fatalf("%v after %v", events, time.Since(tick))
		}
		same(t, events[0].Lifecycle, &event.Lifecycle{State: "draining", SaidBye: event.Ptr(true), ExitCode: event.Ptr(int64(1))})
	})
}

func TestFloodOfOneWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := piped(t, 11, 12)
		defer stop(s)
		flood, calm := join(t, s, 11), join(t, s, 12)
		tick := time.Now()
		collect(t, s, tick)
		line := []byte(`{"v":1,"kind":"mark","time":946684800,"mark":"busy","name":"` + strings.Repeat("x", 60) + `"}` + "\n")
		const lines = 20000
		block := []byte(strings.Repeat(string(line), 100))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range lines / 100 {
				if _, err := flood.Write(block); err != nil {
					return
				}
			}
		}()
		time.Sleep(5 * time.Second)
		tick = time.Now()
		say(t, calm, "%s", read(tick, 7))
		synctest.Wait()
		events, err := s.Collect(t.Context(), tick)
		if !errors.Is(err, status.ErrLost) || !strings.Contains(err.Error(), "over the limit of 20 a second (newest from pid 11)") {
			t.Errorf("%v", err)
		}
		marks, reads := 0, 0
		for _, e := range events {
			if e.Mark != nil {
				marks++
			} else if e.Allocator != nil && e.Worker.Pid == 12 {
				reads++
			}
		}
		if reads != 1 || marks != waitingEach {
			t.Errorf("%d marks of the flood, %d reads of the other", marks, reads)
		}
		<-done
		synctest.Wait()
		runtime.ReadMemStats(&after)
		if each := (after.TotalAlloc - before.TotalAlloc) / lines; each >= uint64(len(line)) {
			t.Errorf("%d bytes allocated for each line of a flood, which has %d", each, len(line))
		}
		tick = time.Now()
		if _, err := s.Collect(t.Context(), tick); !errors.Is(err, status.ErrLost) {
			t.Errorf("%v", err)
		}
		time.Sleep(5 * time.Second)
		collect(t, s, time.Now()) // over: the status is well again
		say(t, flood, "%s", read(time.Now(), 8))
		synctest.Wait()
		woken(s)
		if events := collect(t, s, time.Now()); len(events) != 1 {
			t.Errorf("%v", events)
		}
	})
}

func TestConfigIsSaidWhenItChangesAndOnceInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := piped(t, 11)
		defer stop(s)
		conn := join(t, s, 11)
		hello := func(conf string) {
			say(t, conn, `{"v":1,"kind":"hello","probe":"0.1.0","python":"3.12.3","pid":1,"torch":"2.11.0","cuda":"13.0","backend":"native","alloc_conf":%q,"rank":"0","engine":"vllm"}`, conf)
			synctest.Wait()
		}
		configs := func() []*event.Event { return collect(t, s, time.Now()) }
		hello("a:1")
		events := configs()
		if len(events) != 1 || events[0].Worker.Pid != 11 { // not 1, which the line says
			t.Fatalf("%v", events)
		}
		same(t, events[0].Config, &event.Config{Origin: "probe", TorchVersion: "2.11.0", CudaVersion: "13.0", AllocConf: "a:1"})
		hello("a:1")
		if events := configs(); len(events) != 0 {
			t.Errorf("%v", events)
		}
		hello("a:2")
		time.Sleep(5 * time.Second)
		if events := configs(); len(events) != 1 || events[0].Config.AllocConf != "a:2" {
			t.Errorf("%v", events)
		}
		for i, want := range []int{0, 0, 0, 0, 1, 0} {
			time.Sleep(2 * time.Minute)
			hello("a:2")
			if events := configs(); len(events) != want {
				t.Errorf("after %d minutes: %v", 2*i+2, events)
			}
		}
	})
}

func TestTimesOfEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := piped(t, 11)
		defer stop(s)
		conn := join(t, s, 11)
		now := time.Now()
		for _, d := range []time.Duration{time.Hour, -time.Hour, -time.Minute} {
			say(t, conn, `{"v":1,"kind":"mark","time":%d,"mark":"busy","name":"%v"}`, now.Add(d).Unix(), d)
		}
		say(t, conn, "%s", read(now.Add(-time.Hour), 1)) // a clock of its own
		synctest.Wait()
		events := collect(t, s, now)
		if len(events) != 4 {
			t.Fatalf("%v", events)
		}
		for i, want := range []time.Time{now, now, now.Add(-time.Minute), now} {
			if !events[i].At().Equal(want) {
				t.Errorf("event %d: %v", i, events[i].At())
			}
		}
	})
}

func TestEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := piped(t, 11)
		defer stop(s)
		conn := join(t, s, 11)
		say(t, conn, "%s", read(time.Now(), 1))
		synctest.Wait()
		collect(t, s, time.Now())
		time.Sleep(5 * time.Second)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		if events, err := s.Collect(ended, began); err != nil || len(events) != 0 || !time.Now().Equal(began) {
			t.Errorf("%v, %v after %v", events, err, time.Since(began))
		}
	})
}
