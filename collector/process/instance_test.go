package process

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/event"
)

// tick is 1000 s after the boot of the fixtures: what has 5000 ticks is 950 s old.
var tick = time.Unix(1_790_001_000, 0)

func collectAt(t testing.TB, s *Source, at time.Time) []*event.Event {
	t.Helper()
	events, err := s.Collect(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// workers returns who had a reading, by pid.
func workers(events []*event.Event) map[int64]*event.Worker {
	found := make(map[int64]*event.Worker)
	for _, e := range events {
		if e.Process != nil {
			found[e.Worker.Pid] = e.Worker
		}
	}
	return found
}

// holds tells the roster what NVML sees.
func holds(s *Source, at time.Time, uuid string, pids ...int) {
	for _, pid := range pids {
		s.Roster().Complete(&event.Event{Time: stampOf(at), Worker: &event.Worker{Pid: int64(pid)}, GpuProcess: &event.GpuProcess{GpuUuid: uuid}})
	}
}

// short is a worker in one line: role, rank or -, engine, index or -, model, unit.
func short(w *event.Worker) string {
	rank, index := "-", "-"
	if w.Rank != nil {
		rank = fmt.Sprint(*w.Rank)
	}
	if w.EngineIndex != nil {
		index = fmt.Sprint(*w.EngineIndex)
	}
	return strings.Join([]string{w.Role, rank, first(w.Engine, "-"), index, first(w.Model, "-"), first(w.Unit, "-")}, " ")
}

const spawn = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)"

func scopeOf(uid, id string) string {
	return "0::/kubepods.slice/kubepods-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/cri-containerd-" + id + ".scope\n"
}

func TestInstances(t *testing.T) {
	one := "0::/user.slice/user-0.slice/session-1.scope\n"
	for _, c := range []struct {
		name string
		make func(f tree)
		gpus map[string][]int
		want map[int64]string
	}{
		{
			name: "vLLM in a pod: front end, core, two ranks, a tracker; the shell above is no part of it",
			make: func(f tree) {
				g := scopeOf(testPod, testContainer)
				f.process(90, 1, 4000, []string{"/usr/bin/containerd-shim-runc-v2"}, "0::/system.slice/containerd.service\n", fullStatus)
				f.process(100, 90, 5000, []string{"/bin/sh", "-c", "vllm serve m"}, g, "NSpid:\t100\t1\n"+fullStatus)
				f.process(101, 100, 5001, []string{"/usr/bin/python3", "/usr/bin/vllm", "serve", "org/m", "-tp", "2"}, g, fullStatus)
				f.process(102, 101, 5002, []string{"python3", "-c", "from multiprocessing.resource_tracker import main;main(4)"}, g, fullStatus)
				f.process(103, 101, 5003, []string{"VLLM::EngineCore"}, g, fullStatus)
				f.process(104, 103, 5004, []string{"VLLM::Worker_TP0"}, g, fullStatus)
				f.process(105, 103, 5005, []string{"VLLM::Worker_TP1"}, g, fullStatus)
				f.process(106, 105, 5006, []string{"/usr/local/cuda/bin/ptxas", "x"}, g, fullStatus)
				f.write("var/log/containers/chat-5d59d67564-x7k2p_prod_engine-"+testContainer+".log", "")
			},
			want: map[int64]string{
				101: "frontend - vllm - org/m chat/engine", 102: "other - vllm - org/m chat/engine", 103: "core - vllm - org/m chat/engine",
				104: "worker 0 vllm - org/m chat/engine", 105: "worker 1 vllm - org/m chat/engine", 106: "other - vllm - org/m chat/engine",
			},
		},
		{
			name: "two data-parallel engines behind one front end, with pipeline and tensor ranks",
			make: func(f tree) {
				f.process(100, 1, 5000, []string{"vllm", "serve", "m", "--data-parallel-size", "2", "--tensor-parallel-size", "2", "--port", "9000"}, one, fullStatus)
				f.process(110, 100, 5001, []string{"VLLM::DPCoordinator"}, one, fullStatus)
				for dp := range 2 {
					core := 200 + dp*100
					f.process(core, 100, 5002, []string{fmt.Sprintf("VLLM::EngineCore_DP%d", dp)}, one, fullStatus)
					f.process(core+1, core, 5003, []string{fmt.Sprintf("VLLM::Worker_DP%d_PP1_TP1", dp)}, one, fullStatus)
				}
				f.process(302, 300, 5004, []string{"VLLM::Worker"}, one, fullStatus) // not yet titled in full
			},
			want: map[int64]string{
				100: "frontend - vllm - m port-9000", 110: "other - vllm - m port-9000",
				200: "core - vllm 0 m port-9000", 201: "worker 3 vllm 0 m port-9000",
				300: "core - vllm 1 m port-9000", 301: "worker 3 vllm 1 m port-9000", 302: "worker - vllm 1 m port-9000",
			},
		},
		{
			name: "SGLang",
			make: func(f tree) {
				f.process(100, 1, 5000, []string{"python3", "-m", "sglang.launch_server", "--model-path", "a", "--served-model-name", "b"}, one, fullStatus)
				f.process(101, 100, 5001, []string{"sglang::scheduler_TP0"}, one, fullStatus)
				f.process(102, 100, 5002, []string{"sglang::scheduler_TP1"}, one, fullStatus)
				f.process(103, 100, 5003, []string{"sglang::detokenizer"}, one, fullStatus)
			},
			want: map[int64]string{
				100: "frontend - sglang - b port-30000", 101: "worker 0 sglang - b port-30000", 102: "worker 1 sglang - b port-30000",
				103: "other - sglang - b port-30000",
			},
		},
		{
			name: "torchrun: ranks from the environment, below jupyter, which is no part of it",
			make: func(f tree) {
				f.process(90, 1, 4000, []string{"python3", "/usr/bin/jupyter-lab", "--port", "8888"}, one, fullStatus)
				f.process(100, 90, 5000, []string{"python3", "/usr/bin/torchrun", "--nproc-per-node", "2", "train.py"}, one, fullStatus)
				for rank := range 2 {
					f.process(101+rank, 100, 5001, []string{"python3", "train.py"}, one, fullStatus)
					f.environ(101+rank, "SECRET=x", fmt.Sprintf("RANK=%d", rank), "LOCAL_RANK=7")
				}
			},
			gpus: map[string][]int{"GPU-a": {101}, "GPU-b": {102}},
			want: map[int64]string{100: "other - - - - -", 101: "worker 0 - - - -", 102: "worker 1 - - - -"},
		},
		{
			name: "two llama servers in one service: the second has a seat of its own",
			make: func(f tree) {
				g := "0::/system.slice/llama.service\n"
				f.process(100, 1, 5000, []string{"/opt/llama-server", "-m", "/m/q4.gguf"}, g, fullStatus)
				f.process(101, 1, 5001, []string{"/opt/llama-server", "-m", "/m/q8.gguf", "--port", "8081"}, g, fullStatus)
			},
			want: map[int64]string{100: "worker - llama.cpp - /m/q4.gguf llama.service", 101: "worker - llama.cpp - /m/q8.gguf llama.service#2"},
		},
		{
			name: "plain python: only the one with a GPU works; a spawned child of it too",
			make: func(f tree) {
				f.process(100, 1, 5000, []string{"python3", "serve.py"}, one, fullStatus)
				f.process(101, 100, 5001, []string{"python3", "-c", spawn}, one, fullStatus)
				f.process(102, 100, 5002, []string{"python3", "-c", spawn}, one, fullStatus)
				f.listen(100, "00000000:2328", "00000000:9C40") // 9000, and 40000 of the kernel's own range
			},
			gpus: map[string][]int{"GPU-a": {101}},
			want: map[int64]string{100: "other - - - - port-9000", 101: "worker - - - - port-9000", 102: "other - - - - port-9000"},
		},
		{
			name: "a server of one's own that embeds vLLM",
			make: func(f tree) {
				f.process(100, 1, 5000, []string{"python3", "my_server.py"}, one, fullStatus)
				f.process(101, 100, 5001, []string{"VLLM::EngineCore"}, one, fullStatus)
				f.listen(100, "00000000:1F90")
			},
			gpus: map[string][]int{"GPU-a": {101}},
			want: map[int64]string{100: "frontend - vllm - - port-8080", 101: "core - vllm - - port-8080"},
		},
		{
			name: "TGI: the launcher is the root, its router has the port",
			make: func(f tree) {
				f.process(100, 1, 5000, []string{"text-generation-launcher", "--model-id", "m"}, one, fullStatus)
				f.process(101, 100, 5001, []string{"text-generation-router", "--port", "80"}, one, fullStatus)
				f.process(102, 100, 5002, []string{"python3", "/opt/bin/text-generation-server", "serve", "m"}, one, fullStatus)
				f.environ(102, "RANK=0")
				f.listen(101, "00000000:0050")
			},
			want: map[int64]string{100: "other - tgi - m port-80", 101: "frontend - tgi - m port-80", 102: "worker 0 tgi - m port-80"},
		},
		{
			name: "TensorRT-LLM under mpirun: one instance, ranks from MPI",
			make: func(f tree) {
				f.process(100, 1, 5000, []string{"mpirun", "-n", "2", "trtllm-serve", "m"}, one, fullStatus)
				for rank := range 2 {
					f.process(101+rank, 100, 5001, []string{"python3", "/usr/bin/trtllm-serve", "m"}, one, fullStatus)
					f.environ(101+rank, fmt.Sprintf("OMPI_COMM_WORLD_RANK=%d", rank))
				}
			},
			gpus: map[string][]int{"GPU-a": {101}, "GPU-b": {102}},
			want: map[int64]string{100: "other - trtllm - m port-8000", 101: "worker 0 trtllm - m port-8000", 102: "worker 1 trtllm - m port-8000"},
		},
		{
			name: "Ray workers belong to the front end in their container",
			make: func(f tree) {
				g := "0::/docker/" + testContainer + "\n"
				f.process(100, 1, 5000, []string{"python3", "/usr/bin/vllm", "serve", "m"}, g, fullStatus)
				f.process(150, 1, 4500, []string{"/ray/raylet", "--x"}, g, fullStatus)
				f.process(151, 150, 5100, []string{"ray::RayWorkerWrapper.execute_method"}, g, fullStatus)
				f.process(152, 150, 5101, []string{"ray::IDLE"}, g, fullStatus)
			},
			gpus: map[string][]int{"GPU-a": {151}},
			want: map[int64]string{100: "frontend - vllm - m port-8000", 151: "worker - vllm - m port-8000", 152: "other - vllm - m port-8000"},
		},
		{
			name: "a program that is no python and no engine, with a GPU",
			make: func(f tree) { f.process(100, 1, 5000, []string{"/opt/render", "x"}, one, fullStatus) },
			gpus: map[string][]int{"GPU-a": {100}},
			want: map[int64]string{100: "worker - - - - -"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := bareTree(t)
			c.make(f)
			s := open(t, f.options())
			collectAt(t, s, tick)
			for uuid, pids := range c.gpus {
				holds(s, tick, uuid, pids...)
			}
			found := workers(collectAt(t, s, tick.Add(5*time.Second)))
			for pid, w := range found {
				if got := short(w); got != c.want[pid] {
					t.Errorf("%d is %q, want %q", pid, got, c.want[pid])
				}
			}
			if len(found) != len(c.want) {
				t.Errorf("%d processes, want %d", len(found), len(c.want))
			}
			// A collector that starts again tells the same.
			again := open(t, f.options())
			for uuid, pids := range c.gpus {
				holds(again, tick, uuid, pids...)
			}
			for pid, w := range workers(collectAt(t, again, tick)) {
				if got := short(w); got != c.want[pid] {
					t.Errorf("after a restart %d is %q, want %q", pid, got, c.want[pid])
				}
			}
		})
	}
}

// What the collector starts is none of its business.
func TestOwnChildrenAreLeftOut(t *testing.T) {
	f := bareTree(t)
	f.process(50, 1, 4000, []string{"lowtide", "collect"}, "0::/\n", fullStatus)
	f.process(51, 50, 4001, []string{"sh", "-c", "x"}, "0::/\n", fullStatus)
	f.process(52, 51, 4002, []string{"python3", "x.py"}, "0::/\n", fullStatus)
	f.process(60, 1, 4002, []string{"python3", "y.py"}, "0::/\n", fullStatus)
	s := open(t, f.options())
	s.o.self, s.reader.self = 50, 50
	holds(s, tick, "GPU-a", 50, 52, 60)
	if found := workers(collectAt(t, s, tick)); len(found) != 1 || found[60] == nil {
		t.Errorf("found %v", found)
	}
}

// A replica that goes leaves its seat to the one that comes after it, and nobody else moves.
func TestSeatsAcrossRestarts(t *testing.T) {
	f := bareTree(t)
	at := func(pid int, start uint64, n int) {
		uid, id := fmt.Sprintf("%s%d", testPod[:35], n), fmt.Sprintf("%s%d", testContainer[:63], n)
		f.process(pid, 1, start, []string{"vllm", "serve", "m"}, scopeOf(uid, id), fullStatus)
		f.write(fmt.Sprintf("var/log/containers/chat-5d59d67564-x7k2%c_prod_engine-%s.log", "bcdf"[n], id), "")
	}
	at(100, 5000, 1)
	at(200, 5001, 2)
	s := open(t, f.options())
	units := func(at time.Time) (out []string) {
		for pid, w := range workers(collectAt(t, s, at)) {
			out = append(out, fmt.Sprint(pid, " ", w.Unit, " ", w.Pod))
		}
		slices.Sort(out)
		return out
	}
	want := []string{"100 chat/engine prod/chat-5d59d67564-x7k2c", "200 chat/engine#2 prod/chat-5d59d67564-x7k2d"}
	if got := units(tick); !slices.Equal(got, want) {
		t.Errorf("at first %v", got)
	}
	f.remove(100)
	if got := units(tick.Add(5 * time.Second)); !slices.Equal(got, want[1:]) {
		t.Errorf("one is gone: %v", got)
	}
	at(300, 101_500, 3)
	want = []string{"200 chat/engine#2 prod/chat-5d59d67564-x7k2d", "300 chat/engine prod/chat-5d59d67564-x7k2f"}
	if got := units(tick.Add(20 * time.Second)); got[0] != want[0] || !strings.HasPrefix(got[1], "300 chat/engine prod/") {
		t.Errorf("its successor: %v, want %v", got, want)
	}
}

// An orphan still holds its instance's memory, and stays what it was.
func TestOrphanKeepsItsIdentity(t *testing.T) {
	f := bareTree(t)
	f.process(100, 1, 5000, []string{"vllm", "serve", "m", "--port", "9000"}, "0::/\n", fullStatus)
	f.process(101, 100, 100_900, []string{"VLLM::EngineCore_DP1"}, "0::/\n", fullStatus) // young
	s := open(t, f.options())
	before := short(workers(collectAt(t, s, tick.Add(10*time.Second)))[101])
	f.remove(100)
	f.process(101, 1, 100_900, []string{"VLLM::EngineCore_DP1"}, "0::/\n", fullStatus)
	for range 3 {
		if got := short(workers(collectAt(t, s, tick.Add(15*time.Second)))[101]); got != before || got != "core - vllm 1 m port-9000" {
			t.Errorf("the orphan is %q, was %q", got, before)
		}
	}
}

// vLLM renames its children after they start: no process is judged by its first name.
func TestTitleOfAYoungProcess(t *testing.T) {
	f := bareTree(t)
	f.process(100, 1, 5000, []string{"vllm", "serve", "m"}, "0::/\n", fullStatus)
	f.process(101, 100, 99_900, []string{"python3", "-c", spawn}, "0::/\n", fullStatus)
	f.process(400, 1, 99_900, []string{"/bin/bash", "start.sh"}, "0::/\n", fullStatus)
	s := open(t, f.options())
	found := workers(collectAt(t, s, tick))
	if got := short(found[101]); got != "other - vllm - m port-8000" || found[400] != nil {
		t.Errorf("at first %q, %v", got, found[400])
	}
	f.process(101, 100, 99_900, []string{"VLLM::EngineCore_DP0"}, "0::/\n", fullStatus)
	f.process(400, 1, 99_900, []string{"/opt/llama-server", "-m", "x"}, "0::/\n", fullStatus) // exec
	found = workers(collectAt(t, s, tick.Add(5*time.Second)))
	if got := short(found[101]); got != "core - vllm 0 m port-8000" {
		t.Errorf("renamed %q", got)
	}
	if got := short(found[400]); got != "worker - llama.cpp - x port-8080" {
		t.Errorf("another program %q", got)
	}
}

func TestEndpoints(t *testing.T) {
	f := bareTree(t)
	f.link("proc/self/ns/net", "net:[1]")
	network := func(pid int, name string) { f.link(fmt.Sprintf("proc/%d/ns/net", pid), name) }
	// In the host's network: the front end's port, not that of its core, which talks to its siblings.
	f.process(100, 1, 5000, []string{"vllm", "serve", "m"}, "0::/\n", fullStatus)
	f.process(101, 100, 5001, []string{"VLLM::EngineCore_DP0"}, "0::/\n", fullStatus)
	network(100, "net:[1]")
	network(101, "net:[1]")
	f.listen(100, "00000000:1F40", "0100007F:7148", "00000000:9C40")
	f.listen(101, "00000000:7149")
	f.write("proc/100/net/tcp", read(t, f, "proc/100/net/tcp")+strings.SplitAfterN(read(t, f, "proc/101/net/tcp"), "\n", 2)[1])
	// In a pod's network: reached at the pod's address; what it binds to its own loopback is not.
	f.process(200, 1, 5000, []string{"python3", "-m", "sglang.launch_server", "--model-path", "a", "--port", "30001"}, "0::/\n", fullStatus)
	network(200, "net:[2]")
	f.listen(200, "00000000:7531", "0100007F:7532")
	f.write("proc/200/net/fib_trie", podTrie)
	// Triton: metrics have a port of their own.
	f.process(300, 1, 5000, []string{"tritonserver", "--model-repository", "/m"}, "0::/\n", fullStatus)
	network(300, "net:[3]")
	f.listen(300, "00000000:1F40", "00000000:1F41", "0101A8C0:1F42")
	s := open(t, f.options())
	collectAt(t, s, tick)
	var got []string
	for _, e := range s.Roster().Endpoints() {
		got = append(got, fmt.Sprintf("%d %v %s %s %s", e.PID, e.AddrPort, e.Engine, e.Model, e.Unit))
	}
	want := []string{"300 192.168.1.1:8002 triton  port-8000#2", "100 127.0.0.1:8000 vllm m port-8000", "200 10.244.3.17:30001 sglang a port-30001"}
	slices.Sort(got)
	slices.Sort(want)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("endpoints\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The TCP table of a namespace in which nobody is young holds for six ticks.
func TestTablesAreReadSeldom(t *testing.T) {
	f := newTree(t)
	s := open(t, f.options())
	waiting := func(at time.Duration) uint64 {
		for _, e := range collectAt(t, s, tick.Add(at)) {
			if e.Process != nil && e.Worker.Pid == 101 {
				return e.Process.GetSocketsCloseWait()
			}
		}
		return 99
	}
	if n := waiting(0); n != 2 {
		t.Fatalf("%d sockets at first", n)
	}
	f.write("proc/101/net/tcp6", "")
	for i := range 5 {
		if n := waiting(time.Duration(i+1) * 5 * time.Second); n != 2 {
			t.Errorf("%d sockets after %d ticks", n, i+1)
		}
	}
	if n := waiting(30 * time.Second); n != 1 {
		t.Errorf("%d sockets after six ticks, want the one that is left", n)
	}
	f.process(101, 100, 102_900, []string{"VLLM::Worker_TP1"}, "0::/\n", fullStatus) // young
	f.write("proc/101/net/tcp", "")
	if n := waiting(35 * time.Second); n != 0 {
		t.Errorf("%d sockets of a young process, want none", n)
	}
}
