package logs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
)

var noon = time.Date(2026, 5, 12, 12, 0, 0, 0, time.UTC)

// recorder is a stream and what came out of it.
func recorder(w *event.Worker) (*stream, *[]*event.Event) {
	out := new([]*event.Event)
	return &stream{worker: w, out: func(e *event.Event) { *out = append(*out, e) }}, out
}

// read gives a stream a text in complete lines, and then all the time it may wait for more.
func read(s *stream, text string) {
	s.region([]byte(text+"\n"), noon)
	s.settle(noon.Add(2 * time.Second))
}

func TestEverySampleInALog(t *testing.T) {
	file, err := os.Open("testdata/oom_messages.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	requested := []uint64{268435456, 268435456, 8589934592, 3221225472, 857735168, 572522496, 62914560, 1562378}
	n := 0
	for lines := bufio.NewScanner(file); lines.Scan(); n++ {
		var line struct{ Text string }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		for _, prefix := range []string{"", "(EngineCore_DP0 pid=697344) ERROR 05-12 01:48:42 [core.py:708] ", "[2026-08-23 09:11:04 TP6 EP6] ", "2026-05-12T11:59:59.5Z stderr F "} {
			s, out := recorder(nil)
			text := prefix + "torch.OutOfMemoryError: " + strings.ReplaceAll(line.Text, "\n", "\n"+prefix)
			read(s, "INFO before\n"+text+"\nINFO after")
			if len(*out) != 1 || (*out)[0].Oom.GetRequestedBytes() != requested[n] || (*out)[0].Oom.GetAllocatedBytes() == 0 {
				t.Errorf("%.120q gives %v", text, *out)
			}
		}
	}
	if n != len(requested) {
		t.Errorf("%d samples", n)
	}
}

// The lines are those of public issues of vLLM, SGLang, PyTorch and NCCL, shortened.
func TestSignatures(t *testing.T) {
	for _, c := range []struct {
		text, signature string
		fields          map[string]string
	}{
		{"ValueError: token_to_kv_pool_allocator memory leak detected! self.max_total_num_tokens=270331, available_size=644, evictable_size=269628, protected_size=0", PoolCheck,
			map[string]string{"pool": "token_to_kv_pool_allocator", "max_total_num_tokens": "270331", "available_size": "644", "evictable_size": "269628", "protected_size": "0"}},
		{"/sgl/scheduler.py:1326: UserWarning: token_to_kv_pool_allocator memory leak detected! available_size=961586, protected_size=0, self.max_total_num_tokens=961593\nself.token_to_kv_pool_allocator.available_size()=961586\nself.tree_cache.evictable_size()=0\n\n  warnings.warn(msg)", PoolCheck,
			map[string]string{"pool": "token_to_kv_pool_allocator", "available_size": "961586", "protected_size": "0", "max_total_num_tokens": "961593", "token_to_kv_pool_allocator_available_size": "961586", "evictable_size": "0"}},
		{"ValueError: pool memory leak detected! [full] total=9116160, available=768, evictable=9115392, protected=0, session_held=0, uncached=0\n[swa] total=911616, available=235264, evictable=676096, protected=0, session_held=0, uncached=0\n[2026-08-23 09:11:04 TP6 EP6] Scheduler hit an exception", PoolCheck,
			map[string]string{"pool": "pool", "full_total": "9116160", "full_available": "768", "full_evictable": "9115392", "full_protected": "0", "full_session_held": "0", "full_uncached": "0",
				"swa_total": "911616", "swa_available": "235264", "swa_evictable": "676096", "swa_protected": "0", "swa_session_held": "0", "swa_uncached": "0"}},
		{"req_to_token_pool memory leak detected!available_size=3756, total_size=3757", PoolCheck, map[string]string{"pool": "req_to_token_pool", "available_size": "3756", "total_size": "3757"}},
		{"[2026-05-12 01:02:03 DP1 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.60 -> 0.91", Retraction, map[string]string{"requests": "3", "engine_index": "1", "rank": "0"}},
		{"Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: 0.5", Retraction, map[string]string{"requests": "1"}},
		{"WARNING 05-09 00:49:33 scheduler.py:1057 Sequence group 0 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. This can affect the end-to-end performance. Increase gpu_memory_utilization or tensor_parallel_size to provide more KV cache memory. total_cumulative_preemption_cnt=1", Preemption,
			map[string]string{"request": "0", "mode": "RECOMPUTE", "preemptions_total": "1"}},
		{"Sequence group cmpl-1 is preempted by PreemptionMode.SWAP mode because there is not enough KV cache space. total_num_cumulative_preemption=101", Preemption, map[string]string{"request": "cmpl-1", "mode": "SWAP", "preemptions_total": "101"}},
		{"(EngineCore_DP1 pid=12) WARNING 05-16 00:00:00 [scheduler.py] Preempting request cmpl-abc123: 480 computed tokens lost", Preemption, map[string]string{"request": "cmpl-abc123", "lost_tokens": "480", "pid": "12", "engine_index": "1"}},
		{"[rank4]:[E321 02:07:08.414640780 ProcessGroupNCCL.cpp:607] [Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for 600067 milliseconds before timing out.", Watchdog,
			map[string]string{"sequence": "1580", "operation": "ALLREDUCE", "timeout_seconds": "600", "ran_seconds": "600.067", "rank": "4"}},
		{"\x1b[36m(RayWorkerVllm pid=5085)\x1b[0m [E ProcessGroupNCCL.cpp:475] [Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=20518, OpType=_REDUCE_SCATTER_BASE, Timeout(ms)=1800000) ran for 1800270 milliseconds before timing out.", Watchdog,
			map[string]string{"sequence": "20518", "operation": "_REDUCE_SCATTER_BASE", "timeout_seconds": "1800", "ran_seconds": "1800.27", "rank": "4", "pid": "5085"}},
		{"[rank0]:[E ProcessGroupNCCL.cpp:1414] [PG 2 Rank 0] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered", Watchdog, map[string]string{"rank": "0"}},
		{"kp-ddp-worker-0:3468:3905 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.216.210.236<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv)", Transport, map[string]string{"peer": "10.216.210.236", "status": "12", "vendor_error": "129"}},
		{"H100-2:19989:20082 [1] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer fe80::966d:ae03:8b:df78%ib0<53249> with error 4, opcode 32564, len 32564, vendor err 81 (Send)", Transport, map[string]string{"peer": "fe80::966d:ae03:8b:df78%ib0", "status": "4", "vendor_error": "81"}},
		{"n:1:2 [0] misc/socket.cc:57 NCCL WARN socketProgress: Connection closed by remote peer node2<44321>", Transport, map[string]string{"peer": "node2"}},
		{"n:1:2 [0] misc/ibvwrap.cc:212 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out", Transport, nil},
		{"ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.", Transport, nil},
		{"[2025-09-28 05:49:34] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. tic start time: 05:49:14. last_heartbeat time: 05:42:53", HealthCheck, map[string]string{"silent_seconds": "20"}},
		{"[2025-09-28 05:49:34 TP1] Watchdog timeout (self.watchdog_timeout=300)", HealthCheck, map[string]string{"silent_seconds": "300", "rank": "1"}},
		{"(APIServer pid=1) ERROR 05-12 01:48:42 [api_router.py:72] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.", HealthCheck, map[string]string{"pid": "1"}},
		{"ERROR 01-16 17:16:49 [core_client.py:605] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.", HealthCheck, map[string]string{"process": "EngineCore_DP0"}},
		{"llm-server | ERROR 11-08 11:01:29 [multiproc_executor.py:135] Worker proc VllmWorker-3 died unexpectedly, shutting down executor.", HealthCheck, map[string]string{"process": "VllmWorker-3"}},
		{"RuntimeError: Engine loop has died", HealthCheck, nil},
		{"(EngineCore_0 pid=7) ERROR 11-08 11:01:30 [core.py:502] EngineCore encountered a fatal error.", HealthCheck, map[string]string{"pid": "7", "engine_index": "0"}},
	} {
		s, out := recorder(nil)
		read(s, c.text)
		if len(*out) != 1 || (*out)[0].Log.GetSignature() != c.signature || !maps.Equal((*out)[0].Log.Fields, c.fields) {
			t.Errorf("%.160q\n got %v\nwant %s %v", c.text, *out, c.signature, c.fields)
		}
	}
}

func TestRefusesOtherLines(t *testing.T) {
	for _, text := range []string{
		"(APIServer pid=11574) INFO 03-17 15:38:10 [loggers.py:259] Engine 000: Avg prompt throughput: 23998.2 tokens/s, Running: 10 reqs, GPU KV cache usage: 19.3%",
		"INFO 07-28 23:02:27 [gpu_worker.py:255] Available KV cache memory: 18.83 GiB",
		`INFO [logger.py:43] Received request chatcmpl-1: prompt: 'why do I see CUDA out of memory. Tried to allocate 9.00 GiB.', params`,
		`Receive: obj=GenerateReqInput(text='EngineDeadError: CUDA out of memory')`,
		"NVRM: Xid (PCI:0000:48:00): 79, GPU has fallen off the bus.", "Out of memory: Killed process 2212 (python3) total-vm:81306880kB",
		"Memory cgroup out of memory: Killed process 2211 (python3)", "    raise EngineDeadError()", "except torch.cuda.OutOfMemoryError as e:",
		"n:1:2 [0] NCCL INFO transport/net.cc:1302 -> 6", "n:1:2 [0] NCCL WARN Missing \"iommu=pt\" from kernel command line", "Preempted request cmpl-1 has been resumed!",
		"no memory leak detected here", "",
	} {
		s, out := recorder(nil)
		read(s, text)
		if len(*out) != 0 {
			t.Errorf("%q gives %v", text, *out)
		}
	}
}

func TestPrefixes(t *testing.T) {
	const none = int64(-1)
	for _, c := range []struct {
		text, pid   string
		index, rank int64
		rest        string
	}{
		{"(EngineCore_DP0 pid=697344) Traceback", "697344", 0, none, "Traceback"},
		{"(EngineCore pid=7) INFO 05-12 01:48:42 [core.py:72] x", "7", none, none, "x"},
		{"(EngineCore_0 pid=675221) (VllmWorker TP1 pid=675229) INFO 08-25 11:01:23 [default_loader.py:267] x", "675229", 0, 1, "x"},
		{"(VllmWorker rank=3 pid=2120280) x", "2120280", none, 3, "x"},
		{"(Worker_DP1_TP2_EP6 pid=5) x", "5", 1, 2, "x"},
		{"(Worker_PP1_TP0 pid=5) x", "5", none, none, "x"}, // rank 0 of the second stage: the width of a stage is not said
		{"(ApiServer_3 pid=5) x", "5", none, none, "x"},
		{"[2026-08-23 09:11:04 DP2 TP6 EP6] x", "", 2, 6, "x"},
		{"[rank5]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] x", "", none, 5, "[rank5]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] x"},
		{"(see pid=5) x", "5", none, none, "x"},
		{"plain", "", none, none, "plain"},
	} {
		who, rest := introduce(c.text)
		number := func(v *int64) int64 {
			if v == nil {
				return none
			}
			return *v
		}
		if who.pid != c.pid || number(who.index) != c.index || number(who.rank) != c.rank || rest != c.rest {
			t.Errorf("%q: pid %q index %d rank %d rest %q", c.text, who.pid, number(who.index), number(who.rank), rest)
		}
	}
}

func TestWorkerIsMadeMoreExact(t *testing.T) {
	const text = "(EngineCore_DP1 pid=3) (Worker_TP2 pid=4) ERROR 05-12 01:48:42 CUDA error: out of memory"
	s, out := recorder(&event.Worker{Unit: "llama"})
	read(s, text)
	if want := (&event.Worker{Unit: "llama", EngineIndex: event.Ptr(int64(1)), Rank: event.Ptr(int64(2))}); len(*out) != 1 || !proto.Equal((*out)[0].Worker, want) {
		t.Errorf("%v", *out)
	}
	if s.worker.Rank != nil {
		t.Error("the configured worker was changed")
	}
	s, out = recorder(&event.Worker{Unit: "llama", EngineIndex: event.Ptr(int64(7)), Rank: event.Ptr(int64(8))})
	if read(s, text); (*out)[0].Worker.GetEngineIndex() != 7 || (*out)[0].Worker.GetRank() != 8 {
		t.Errorf("%v", *out)
	}
}

// Envelopes of container runtimes: their time is the event's, unless it lies ahead.
func TestEnvelopes(t *testing.T) {
	for text, want := range map[string]time.Time{
		"2026-05-12T11:59:30.25Z stderr F CUDA error: out of memory":                               noon.Add(-29750 * time.Millisecond),
		`{"log":"CUDA error: out of memory\n","stream":"stderr","time":"2026-05-12T11:59:30.25Z"}`: noon.Add(-29750 * time.Millisecond),
		"2026-05-12T12:00:01Z stdout P CUDA error: out of memory":                                  noon,
		`{"log":"CUDA error: out of memory","time":"yesterday"}`:                                   noon,
		"CUDA error: out of memory":                                                                noon,
	} {
		s, out := recorder(nil)
		read(s, text)
		if len(*out) != 1 || !(*out)[0].At().Equal(want) || (*out)[0].Oom.GetText() != "CUDA error: out of memory" {
			t.Errorf("%s gives %v", text, *out)
		}
	}
}

// One failure is logged by the rank, the core and the server; two ranks' failures differ in the device.
func TestOneFailureIsToldOnce(t *testing.T) {
	oom := func(gpu int) string {
		return fmt.Sprintf("CUDA out of memory. Tried to allocate 2.00 GiB. GPU %d has a total capacity of 15.78 GiB of which 8.00 MiB is free.", gpu)
	}
	s, out := recorder(nil)
	s.region([]byte("(Worker_TP0 pid=5) ERROR torch.OutOfMemoryError: "+oom(0)+"\n(Worker_TP1 pid=6) ERROR torch.OutOfMemoryError: "+oom(1)+
		"\n(EngineCore pid=3) ERROR RuntimeError: Worker failed with error '"+oom(0)+"', please check the stack trace above\n"), noon)
	if len(*out) != 2 {
		t.Errorf("%d events: %v", len(*out), *out)
	}
	s.region([]byte(oom(0)+"\n"), noon.Add(oncePer))
	if len(*out) != 3 {
		t.Errorf("the same failure ten seconds later is another: %v", *out)
	}
}

func TestRates(t *testing.T) {
	s, out := recorder(nil)
	for i := range 1000 {
		s.region(fmt.Appendf(nil, "Sequence group %d is preempted by PreemptionMode.SWAP mode because\n", i), noon.Add(time.Duration(i)*time.Millisecond))
	}
	if len(*out) != 10 {
		t.Fatalf("%d events", len(*out))
	}
	s.settle(noon.Add(time.Minute))
	if len(*out) != 11 || (*out)[10].Log.Fields["request"] != "999" || (*out)[10].Log.Fields["held_back"] != "989" {
		t.Errorf("%v", (*out)[10:])
	}
	for i := range 30 {
		s.region(fmt.Appendf(nil, "HIP out of memory. Tried to allocate %d bytes.\n", i), noon.Add(2*time.Minute))
	}
	s.settle(noon.Add(3 * time.Minute))
	if len(*out) != 22 || (*out)[21].Oom.GetRequestedBytes() != 29 || !strings.HasSuffix((*out)[21].Oom.Text, "[19 more within the minute]") {
		t.Errorf("%d events, the last %v", len(*out), (*out)[len(*out)-1])
	}
}

// Texts of several lines, with other lines between them, cut off, and one that follows at once.
func TestSeveralLines(t *testing.T) {
	const async = "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 9.64 GiB\nINFO of another process\nRequested               : 1.49 MiB\n" +
		"Device limit            : 39.39 GiB\nFree (according to CUDA): 3.06 MiB\nPyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB\n"
	s, out := recorder(nil)
	s.region([]byte(async), noon) // complete with its last line: nobody waits
	if len(*out) != 1 || (*out)[0].Oom.GetLimitBytes() != 42294690447 || strings.Contains((*out)[0].Oom.Text, "INFO") {
		t.Errorf("%v", *out)
	}
	s, out = recorder(nil)
	s.region([]byte(async[:strings.Index(async, "Device limit")]), noon)
	if len(*out) != 0 {
		t.Errorf("not waited for: %v", *out)
	}
	s.settle(noon.Add(followSpan))
	if len(*out) != 1 || (*out)[0].Oom.GetRequestedBytes() != 1562378 || (*out)[0].Oom.LimitBytes != nil {
		t.Errorf("%v", *out)
	}
	s, out = recorder(nil)
	s.region([]byte("Prefill out of memory. Try to lower your batch size.\nTry to allocate 8192 tokens.\nAvailable full tokens: 899840 (full_available_size=11776)\n\nRuntimeError: Engine loop has died\n"), noon)
	if len(*out) != 2 || !strings.HasSuffix((*out)[0].Oom.GetText(), "(full_available_size=11776)") || (*out)[1].Log == nil {
		t.Errorf("%v", *out)
	}
}

func TestBounds(t *testing.T) {
	s, out := recorder(nil)
	read(s, strings.Repeat("x", 3*maxLine)+" Engine loop has died "+strings.Repeat("ё", 2*maxLine))
	if len(*out) != 1 || len((*out)[0].Log.Text) > maxText || !utf8.ValidString((*out)[0].Log.Text) {
		t.Errorf("%d events", len(*out))
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("(EngineCore_DP0 pid=7) ERROR 05-12 01:48:42 [core.py:708] CUDA out of memory. Tried to allocate 2.00 GiB.\nx"))
	f.Add([]byte("pool memory leak detected! [full] total=9116160, a.b.available()=768\n[swa] total=1\n"))
	f.Add([]byte("Allocation on device 0 would exceed allowed memory. (out of memory)\nRequested : 1 bytes\n"))
	f.Add([]byte(`{"log":"Engine loop has died\n","time":"2026-05-12T11:59:30Z"}` + "\n2026-05-12T11:59:30Z stderr F ncclRemoteError\n"))
	f.Add([]byte("[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=A, Timeout(ms)=1) ran for 2 milliseconds\r\n\x1b[0m"))
	f.Add([]byte("[2026-08-23 09:11:04 DP2 TP6] NCCL WARN NET/IB peer a<1> with error 4 vendor err 9\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, out := recorder(&event.Worker{Pid: 1})
		s.region(b, noon)
		s.settle(noon.Add(time.Hour))
		if s.held != nil || len(s.buckets) != 0 {
			t.Fatal("something is still held")
		}
		for _, e := range *out {
			if err := event.Validate(e); err != nil {
				t.Fatal(err)
			}
			if _, err := proto.Marshal(e); err != nil {
				t.Fatal(err)
			}
			if e.At().After(noon) || len(e.GetLog().GetText()) > maxText || len(e.GetLog().GetFields()) > maxFields {
				t.Fatalf("%v", e)
			}
		}
	})
}

// What the finder finds is what a plain search finds.
func FuzzFinder(f *testing.F) {
	words := []string{" memory", "NCCL WARN", "atchdog", "aaaaaaa", "aaaaaab"}
	finder := newFinder(words...)
	f.Add([]byte("aaaaaaaab memory"), uint8(2))
	f.Add([]byte("NCCL WARNatchdog memor"), uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, from uint8) {
		start := min(int(from), len(b))
		want := -1
		for _, w := range words {
			if i := bytes.Index(b[start:], []byte(w)); i >= 0 && (want < 0 || start+i < want) {
				want = start + i
			}
		}
		if got := finder.next(b, start); got != want {
			t.Fatalf("%q from %d: %d, want %d", b, start, got, want)
		}
	})
}

func BenchmarkOtherLines(b *testing.B) {
	var text bytes.Buffer
	lines := 0
	for ; text.Len() < chunk; lines++ {
		if lines%2 == 0 {
			fmt.Fprintf(&text, "(APIServer pid=11574) INFO:     10.1.6.81:%d - \"POST /v1/chat/completions HTTP/1.1\" 200 OK\n", lines%65536)
		} else {
			fmt.Fprintf(&text, "(APIServer pid=11574) INFO 03-17 15:38:10 [loggers.py:259] Engine 000: Avg prompt throughput: %d tokens/s, Avg generation throughput: 18.1 tokens/s, Running: 10 reqs, Waiting: 90 reqs, GPU KV cache usage: 19.3%%\n", lines)
		}
	}
	s, out := recorder(nil)
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	for b.Loop() {
		s.region(text.Bytes(), noon)
	}
	if len(*out) != 0 {
		b.Fatal("a line was recognised")
	}
	b.ReportMetric(float64(lines)*float64(b.N)/b.Elapsed().Seconds(), "lines/s")
}
