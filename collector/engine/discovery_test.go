package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector/status"
	"lowtide/event"
)

const vllmLine = "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 7.0\n"

func TestCandidatesAreTriedWithLongerAndLongerPauses(t *testing.T) {
	asked := &counted{Handler: http.NotFoundHandler()}
	client, _ := serve(t, asked)
	here := []Target{{URL: "http://127.0.0.1:5555", Worker: worker()}}
	s := newSource(t, Options{Client: client, Discover: func() []Target { return here }})
	var tries []int // minutes after the start
	before := 0
	for second := 0; second <= 60*60; second += 5 {
		if events := collect(t, s, at(second)); len(events) > 0 {
			t.Fatalf("events %v", events)
		}
		if n := asked.of("/metrics"); n != before {
			tries, before = append(tries, second/60), n
		}
	}
	if got := fmt.Sprint(tries); got != "[0 1 3 7 15 25 35 45 55]" { // pauses of 1, 2, 4, 8, 10, 10 … minutes
		t.Errorf("tried after %s minutes", got)
	}
	if n := asked.of("/prometheus/metrics"); n != len(tries) {
		t.Errorf("the other path was tried %d times", n)
	}
	here = nil // gone, and back at once: it may be somebody else
	collect(t, s, at(3605))
	here = []Target{{URL: "http://127.0.0.1:5555", Worker: worker()}}
	if collect(t, s, at(3610)); asked.of("/metrics") != before+1 {
		t.Error("an endpoint that came back is not tried at once")
	}
}

func TestReadyIsSaidOncePerProcessLife(t *testing.T) {
	texts := shelf{}
	client, _ := serve(t, texts)
	process := func(pid int64, ticks uint64) *event.Worker {
		return &event.Worker{Pid: pid, StartTicks: proto.Uint64(ticks), Unit: "serve"}
	}
	here := []Target{{URL: "http://127.0.0.1:8000", Worker: process(1, 10)}}
	s := newSource(t, Options{Client: client, Discover: func() []Target { return here }})
	ready := func(second int) []*event.Event { return bodies(collect(t, s, at(second)), "lifecycle") }

	ready(0) // 404: it is loading
	texts["/metrics"] = vllmLine
	if got := ready(60); len(got) != 1 || got[0].Lifecycle.State != "ready" || got[0].Worker.Pid != 1 || got[0].Worker.Engine != "vllm" || got[0].Worker.Model != "m" {
		t.Fatalf("after a 404: %v", got)
	}
	delete(texts, "/metrics")
	if _, err := s.Collect(t.Context(), at(65)); err == nil {
		t.Error("a target that is known fails without an error")
	}
	texts["/metrics"] = vllmLine
	if got := ready(70); len(got) != 0 {
		t.Errorf("the same process a second time: %v", got)
	}
	here[0].Worker = process(1, 900) // the pid again, another process
	if got := ready(75); len(got) != 1 {
		t.Errorf("another process at the same address: %v", got)
	}
	here = append(here, Target{URL: "http://127.0.0.1:8001", Worker: process(2, 1000)})
	if got := ready(80); len(got) != 1 || got[0].Worker.Pid != 2 {
		t.Errorf("an endpoint that appeared: %v", got)
	}
}

func TestWhatWasThereFromTheBeginningIsNotReadyNow(t *testing.T) {
	client, _ := serve(t, shelf{"/metrics": vllmLine})
	var here []Target
	s := newSource(t, Options{Client: client, Discover: func() []Target { return here }})
	collect(t, s, at(0)) // the processes are not known yet: nil
	here = []Target{
		{URL: "http://127.0.0.1:8000", Worker: &event.Worker{Pid: 1}},
		{URL: "http://127.0.0.1:8001", Worker: &event.Worker{Pid: 2, StartTime: timestamppb.New(at(3))}},
		{URL: "http://127.0.0.1:8002", Worker: &event.Worker{Pid: 3, StartTime: timestamppb.New(at(-3600))}},
	}
	got := bodies(collect(t, s, at(5)), "lifecycle")
	if len(got) != 1 || got[0].Worker.Pid != 2 { // it began after the source did
		t.Errorf("ready are %v", got)
	}
}

func TestATimeoutIsNoSignOfLoading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answers atomic.Bool
		client, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !answers.Load() {
				<-r.Context().Done()
				return
			}
			_, _ = w.Write([]byte(vllmLine))
		}))
		s := newSource(t, Options{Client: client, Targets: []Target{{URL: "http://127.0.0.1:8000/metrics", Worker: worker(), Configured: true}}})
		if _, err := s.Collect(t.Context(), at(0)); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("error %v", err)
		}
		answers.Store(true)
		if got := collect(t, s, at(5)); len(got) != 1 || got[0].Engine == nil {
			t.Errorf("a busy engine is said to be ready just now: %v", got)
		}
	})
}

func TestDiscoveryTellsWhoseAConfiguredAddressIs(t *testing.T) {
	asked := &counted{Handler: shelf{"/metrics": vllmLine}}
	client, _ := serve(t, asked)
	s := newSource(t, Options{Client: client, Targets: []Target{{URL: "http://localhost:8000", Configured: true, Worker: &event.Worker{Model: "named"}}},
		Discover: func() []Target { return []Target{{URL: "http://127.0.0.1:8000", Worker: worker()}} }})
	got := bodies(collect(t, s, at(0)), "engine")
	if len(got) != 1 || got[0].Worker.Pid != 4711 || got[0].Worker.Unit != "serve.service" || asked.of("/metrics") != 1 {
		t.Errorf("%v after %d requests", got, asked.of("/metrics"))
	}
}

func TestTrtllmServeIsFoundBehindItsJSON(t *testing.T) {
	asked := &counted{Handler: shelf{"/metrics": "[]", "/prometheus/metrics": fixture(t, "trtllm_1.3.0_1.txt")}}
	client, _ := serve(t, asked)
	s := newSource(t, Options{Client: client, Discover: func() []Target { return []Target{{URL: "http://127.0.0.1:8000", Worker: worker()}} }})
	for i := range 3 {
		if got := bodies(collect(t, s, at(5*i)), "engine"); len(got) != 1 || got[0].Worker.Engine != "trtllm" {
			t.Fatalf("engine events %v", got)
		}
	}
	if asked.of("/metrics") != 1 || asked.of("/prometheus/metrics") != 3 {
		t.Errorf("%v: the path that answered is not remembered", asked.paths)
	}
}

func TestNoMoreThan64EnginesAreRead(t *testing.T) {
	client, _ := serve(t, shelf{"/metrics": "llamacpp:requests_processing 1\n"})
	var here []Target
	for i := range 70 {
		here = append(here, Target{URL: fmt.Sprintf("http://127.0.0.1:%d", 9000+i), Worker: worker()})
	}
	s := newSource(t, Options{Client: client, Discover: func() []Target { return here }})
	for i, want := range []int{16, 32, 48, 64} { // 16 candidates a tick
		if events := collect(t, s, at(5*i)); len(events) != want {
			t.Errorf("tick %d: %d events", i, len(events))
		}
	}
	events, err := s.Collect(t.Context(), at(20))
	if len(events) != 64 || !errors.Is(err, status.ErrUnsupported) || !strings.Contains(err.Error(), "6 endpoints are not tried, because 64 engines are read") {
		t.Errorf("%d events, %v", len(events), err)
	}
	here = append(here[:0:0], here[6:]...) // six of those that were read are gone, and there is room for those that wait
	if n := len(bodies(collect(t, s, at(25)), "engine")); n != 64 {
		t.Errorf("%d engines", n)
	}
}

func TestTheCallerOwnsTheEvents(t *testing.T) {
	client, _ := serve(t, shelf{"/metrics": vllmLine})
	mine := worker()
	s := newSource(t, Options{Client: client, Targets: []Target{{URL: "http://127.0.0.1:8000/metrics", Worker: mine, Configured: true}}})
	first := collect(t, s, at(0))[0]
	first.Worker.Unit, first.Worker.Pid = "changed", 1
	first.Time.Seconds = 0
	if second := collect(t, s, at(5))[0]; second.Worker.Unit != "serve.service" || second.Worker.Pid != 4711 || mine.Unit != "serve.service" || mine.Engine != "" {
		t.Errorf("%v, %v", second, mine)
	}
}

func TestAModelOfOneIndexIsNotThatOfAnother(t *testing.T) {
	client, _ := serve(t, shelf{"/metrics": strings.ReplaceAll(vllmLine, `"m"`, `"a"`) + strings.NewReplacer(`"m"`, `"b"`, `"0"`, `"1"`).Replace(vllmLine)})
	s := newSource(t, Options{Client: client, Targets: []Target{{URL: "http://127.0.0.1:8000/metrics", Worker: worker(), Configured: true}}})
	got := collect(t, s, at(0))
	if len(got) != 2 || got[0].Worker.Model != "a" || got[1].Worker.Model != "b" || got[1].Worker.GetEngineIndex() != 1 {
		t.Errorf("%v", got)
	}
}
