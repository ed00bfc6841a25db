package oom_test

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"lowtide/collector/oom"
	"lowtide/event"
)

func n(v uint64) *uint64 { return &v }
func p(v int64) *int64   { return &v }

// What the eight public texts say, in bytes. The figures were computed apart from this program, in decimal arithmetic from the
// printed digits (19.21 GiB = 19.21 × 2^30, rounded half up), the sums of the process lists included.
var sampled = []*event.Oom{
	{RequestedBytes: n(268435456), FreeBytes: n(20626580439), LimitBytes: n(15032385536), AllocatedBytes: n(14506252042),
		ReservedUnallocatedBytes: n(289669120), OtherProcessesBytes: n(113924007526)},
	{RequestedBytes: n(268435456), FreeBytes: n(19402514760), LimitBytes: n(15032385536), AllocatedBytes: n(14656575898),
		ReservedUnallocatedBytes: n(169607168), OtherProcessesBytes: n(115105123533)},
	{RequestedBytes: n(8589934592), FreeBytes: n(64241973330), LimitBytes: n(15032385536), AllocatedBytes: n(8632884265),
		ReservedUnallocatedBytes: n(108265472), OtherProcessesBytes: n(76364518523)},
	{RequestedBytes: n(3221225472), FreeBytes: n(48221745316), LimitBytes: n(15032385536), AllocatedBytes: n(12101070356),
		ReservedUnallocatedBytes: n(1771674010), OtherProcessesBytes: n(87252260618)},
	{RequestedBytes: n(857735168), FreeBytes: n(38439957299), LimitBytes: n(15032385536), AllocatedBytes: n(13335873454),
		ReservedUnallocatedBytes: n(1385126953), OtherProcessesBytes: n(96196530012)},
	// In a container: "Process 1187" has 15.25 GiB, PyTorch reserved 13.73 GiB + 736.86 MiB, so 1187 is the process itself.
	// 13.73 GiB holds 46 MiB of free private-pool blocks: 14742475244 − 48234496 were allocated.
	{RequestedBytes: n(572522496), FreeBytes: n(539167293), AllocatedBytes: n(14694240748), PrivatePoolFreeBytes: n(48234496),
		ReservedUnallocatedBytes: n(772653711), OtherProcessesBytes: n(0)},
	// 31.34 GiB reserved − 30.31 GiB allocated.
	{RequestedBytes: n(62914560), FreeBytes: n(8787067), AllocatedBytes: n(32545114685), ReservedUnallocatedBytes: n(1105954079)},
	// The user's limit of 2^64 bytes is none; the device's holds.
	{RequestedBytes: n(1562378), FreeBytes: n(3208643), LimitBytes: n(42294690447), AllocatedBytes: n(10350871183)},
}

func samples(t testing.TB) []string {
	file, err := os.Open("testdata/oom_messages.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var texts []string
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var line struct{ Text string }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, line.Text)
	}
	return texts
}

func TestParsesEveryPublicSample(t *testing.T) {
	texts := samples(t)
	if len(texts) != len(sampled) {
		t.Fatalf("%d texts, %d expectations", len(texts), len(sampled))
	}
	for i, text := range texts {
		want := proto.CloneOf(sampled[i])
		want.Kind, want.Text = oom.CUDA, strings.Join(strings.Fields(text), " ")
		check(t, text, want)
		// As a log has it: behind a prefix, wrapped anywhere, the tail lost.
		wrapped := "(EngineCore_DP0 pid=77) ERROR 05-12 01:48:42 torch.OutOfMemoryError: " + strings.ReplaceAll(text, " ", "\n   ")
		want.Text = "(EngineCore_DP0 pid=77) ERROR 05-12 01:48:42 torch.OutOfMemoryError: " + want.Text
		check(t, wrapped, want)
	}
}

func check(t *testing.T, text string, want *event.Oom) {
	t.Helper()
	got, ok := oom.Parse(text)
	if !ok || !proto.Equal(got, want) {
		t.Errorf("%.200q\n got %v %v\nwant %v", text, ok, got, want)
	}
	if !oom.Mentions(text) {
		t.Errorf("%.200q is parsed and not mentioned", text)
	}
}

func TestParsesOtherForms(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       *event.Oom
	}{
		{"PyTorch 2.1 with its spelling", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacty of 15.78 GiB of which 8.00 MiB is free. " +
			"Including non-PyTorch memory, this process has 15.77 GiB memory in use. Of the allocated memory 14.00 GiB is allocated by PyTorch, and 1.25 GiB is reserved by PyTorch but unallocated. " +
			"If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
			&event.Oom{Kind: "cuda", RequestedBytes: n(2147483648), FreeBytes: n(8388608), AllocatedBytes: n(15032385536), ReservedUnallocatedBytes: n(1342177280), OtherProcessesBytes: n(0)}},
		{"up to 2.0, a memory fraction set", "RuntimeError: CUDA out of memory. Tried to allocate 3.50 GiB (GPU 0; 15.78 GiB total capacity; 14.00 GiB already allocated; 8.00 MiB free; 14.99 GiB allowed; 14.10 GiB reserved in total by PyTorch)",
			&event.Oom{Kind: "cuda", RequestedBytes: n(3758096384), FreeBytes: n(8388608), LimitBytes: n(16095389942), AllocatedBytes: n(15032385536), ReservedUnallocatedBytes: n(107374182)}},
		{"HIP", "HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.98 GiB of which 1.05 GiB is free. 1.05 GiB allowed; Of the allocated memory 14.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.",
			&event.Oom{Kind: "cuda", RequestedBytes: n(2147483648), FreeBytes: n(1127428915), LimitBytes: n(1127428915), AllocatedBytes: n(15032385536), ReservedUnallocatedBytes: n(104857600)}},
		{"XPU gives no free figure", "XPU out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.78 GiB. Of the allocated memory 10.00 GiB is allocated by PyTorch, and 1.25 GiB is reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory.",
			&event.Oom{Kind: "cuda", RequestedBytes: n(2147483648), AllocatedBytes: n(10737418240), ReservedUnallocatedBytes: n(1342177280)}},
		{"small sizes", "CUDA out of memory. Tried to allocate 512 bytes. GPU 0 has a total capacity of 15.78 GiB of which 12.34 KiB is free.",
			&event.Oom{Kind: "cuda", RequestedBytes: n(512), FreeBytes: n(12636)}},
		{"co-tenants in a container cannot be told from the process itself", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 0 bytes is free. Process 5 has 15.25 GiB memory in use. Process 6 has 15.25 GiB memory in use. " +
			"Of the allocated memory 14.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.",
			&event.Oom{Kind: "cuda", RequestedBytes: n(2147483648), FreeBytes: n(0), AllocatedBytes: n(15032385536), ReservedUnallocatedBytes: n(104857600)}},
		{"a process list without the process itself, all smaller", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 0 bytes is free. Process 5 has 4.50 GiB memory in use. Process 6 has 6.00 GiB memory in use. " +
			"Of the allocated memory 14.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.",
			&event.Oom{Kind: "cuda", RequestedBytes: n(2147483648), FreeBytes: n(0), AllocatedBytes: n(15032385536), ReservedUnallocatedBytes: n(104857600), OtherProcessesBytes: n(4831838208 + 6442450944)}},
		{"a co-tenant whose size NVML could not give", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 8.00 MiB is free. Process 5 has 17179869184.00 GiB memory in use. Including non-PyTorch memory, this process has 14.00 GiB memory in use. " +
			"Of the allocated memory 10.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.",
			&event.Oom{Kind: "cuda", RequestedBytes: n(2147483648), FreeBytes: n(8388608), AllocatedBytes: n(10737418240), ReservedUnallocatedBytes: n(104857600)}},
		{"cut off inside the process list", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 8.00 MiB is free. Including non-PyTorch memory, this process has 14.00 GiB memory in use. Process 5 has 4.50 GiB mem",
			&event.Oom{Kind: "cuda", RequestedBytes: n(2147483648), FreeBytes: n(8388608)}},
		{"a user's fraction below the device's limit", "Allocation on device 1 would exceed allowed memory. (out of memory)\nCurrently allocated     : 4.50 GiB\nRequested               : 2.00 GiB\nDevice limit            : 15.78 GiB\nFree (according to CUDA): 8.00 MiB\nPyTorch limit (set by user-supplied memory fraction)\n                        : 6.00 GiB",
			&event.Oom{Kind: "cuda", RequestedBytes: n(2147483648), FreeBytes: n(8388608), LimitBytes: n(6442450944), AllocatedBytes: n(4831838208)}},
		{"a private pool larger than all", "CUDA out of memory. Tried to allocate 2.00 GiB. Of the allocated memory 4.50 GiB is allocated by PyTorch, with 6.00 GiB allocated in private pools (e.g., CUDA Graphs), and 0 bytes is reserved by PyTorch but unallocated.",
			&event.Oom{Kind: "cuda", RequestedBytes: n(2147483648), PrivatePoolFreeBytes: n(6442450944), ReservedUnallocatedBytes: n(0)}},
		{"runtime error", "torch.AcceleratorError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call", &event.Oom{Kind: "cuda"}},
		{"driver error", "RuntimeError: CUDA driver error: out of memory", &event.Oom{Kind: "cuda"}},
		{"cuBLAS", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", &event.Oom{Kind: "cuda"}},
		{"NCCL", "node1:12:34 [0] enqueue.cc:99 NCCL WARN Cuda failure 2 'out of memory'", &event.Oom{Kind: "cuda"}},
		{"TensorRT-LLM", "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, mMemPool->getPool(), mCudaStream->get()): out of memory (/app/tensorrt_llm/cpp/tensorrt_llm/runtime/tllmBuffers.h:125)", &event.Oom{Kind: "cuda"}},
		{"TensorRT", "[TRT] [E] Requested amount of GPU memory (15034482688 bytes) could not be allocated. There may not be enough free memory for allocation to succeed.", &event.Oom{Kind: "cuda", RequestedBytes: n(15034482688)}},
		{"llama.cpp", "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 0: cudaMalloc failed: out of memory", &event.Oom{Kind: "cuda", RequestedBytes: n(4294967296)}},
		{"vLLM sampler warm-up", "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering `max_num_seqs`", &event.Oom{Kind: "cuda"}},
		{"vLLM, no room for a cache", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", &event.Oom{Kind: "engine"}},
		{"vLLM, too long", "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (12345). Try", &event.Oom{Kind: "engine"}},
		{"vLLM V1, too long", "(EngineCore_DP0 pid=18799) ERROR 10-08 20:33:48 [core.py:708] ValueError: To serve at least one request with the models's max seq len (40960), (5.62 GiB KV cache is needed, which is larger than the available KV cache memory (4.50 GiB). Based on",
			&event.Oom{Kind: "engine", RequestedBytes: n(6034429051), FreeBytes: n(4831838208)}},
		{"vLLM, card in use", "ValueError: Free memory on device cuda:0 (70.1/79.11 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB). Decrease GPU memory utilization",
			&event.Oom{Kind: "engine", RequestedBytes: n(76450417869), FreeBytes: n(75269301862)}},
		{"SGLang prefill", "Prefill out of memory. Try to lower your batch size.\nTry to allocate 8192 tokens.\nAvailable full tokens: 899840 (full_available_size=11776 + full_evictable_size_=888064)", &event.Oom{Kind: "engine"}},
		{"SGLang decode", "[2025-10-14 10:00:00 TP0] Decode out of memory. Try to lower your batch size.", &event.Oom{Kind: "engine"}},
		{"SGLang now", "Out of memory. Try to lower your batch size.\nTry to allocate 4 tokens.", &event.Oom{Kind: "engine"}},
		{"SGLang rows", "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for `--max-running-requests`.", &event.Oom{Kind: "engine"}},
		{"SGLang at start", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", &event.Oom{Kind: "engine"}},
		{"TGI", "RuntimeError: Not enough memory to handle 4096 prefill tokens. You need to decrease `--max-batch-prefill-tokens`", &event.Oom{Kind: "engine"}},
		{"kernel", "Out of memory: Killed process 2212 (python3) total-vm:81306880kB, anon-rss:1058560kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1234kB oom_score_adj:0", &event.Oom{Kind: "kernel", VictimPid: p(2212)}},
		{"kernel, the allocating task", "Out of memory (oom_kill_allocating_task): Killed process 9 (a)", &event.Oom{Kind: "kernel", VictimPid: p(9)}},
		{"cgroup", "Memory cgroup out of memory: Killed process 2211 (python3) total-vm:81306880kB", &event.Oom{Kind: "cgroup", VictimPid: p(2211)}},
		{"cgroup, older", "Memory cgroup out of memory: Kill process 2211 (python3) score 1974 or sacrifice child", &event.Oom{Kind: "cgroup", VictimPid: p(2211)}},
		{"cgroup's summary", "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/k,task_memcg=/k/c1,task=python3,pid=2211,uid=0", &event.Oom{Kind: "cgroup", VictimPid: p(2211)}},
		{"kernel's summary", "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/,task=python3,pid=7,uid=0", &event.Oom{Kind: "kernel", VictimPid: p(7)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.want.Text = strings.Join(strings.Fields(c.text), " ")
			check(t, c.text, c.want)
		})
	}
}

func TestRefusesWhatIsNoOOM(t *testing.T) {
	for _, text := range []string{
		"", "INFO 05-12 Available KV cache memory: 18.83 GiB", "max_memory_allocated", "torch.cuda.OutOfMemoryError is caught here",
		"token_to_kv_pool_allocator memory leak detected! self.max_total_num_tokens=270331, available_size=644, evictable_size=269628, protected_size=0",
		"KV cache pool is full. Retract requests. #retracted_reqs: 1", "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
		"GPU 0 has a total capacity of 139.80 GiB of which 19.21 GiB is free.", "memcg_out of memory", "NVRM: Xid (PCI:0000:00:06): 43, pid=592, name=python3",
	} {
		if got, ok := oom.Parse(text); ok || got != nil {
			t.Errorf("%q gives %v", text, got)
		}
	}
}

func TestBoundsTheText(t *testing.T) {
	const message = "CUDA out of memory. Tried to allocate 2.00 GiB."
	got, ok := oom.Parse(strings.Repeat("frame ", 3000) + message)
	if !ok || got.Text != message || got.GetRequestedBytes() != 2147483648 {
		t.Errorf("the match behind a long beginning is lost: %v %.100q", ok, got.GetText())
	}
	got, ok = oom.Parse(message + strings.Repeat(" ё\xff", 5000))
	if !ok || len(got.Text) > oom.MaxText || len(got.Text) < oom.MaxText-4 || !utf8.ValidString(got.Text) || !strings.HasPrefix(got.Text, message) {
		t.Errorf("%v, %d bytes, valid %v", ok, len(got.GetText()), utf8.ValidString(got.GetText()))
	}
	// The first of several counts, and only its own process list.
	got, _ = oom.Parse(message + " Process 5 has 4.50 GiB memory in use. HIP out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 15.78 GiB of which 8.00 MiB is free.")
	if got.GetRequestedBytes() != 2147483648 || got.FreeBytes != nil {
		t.Errorf("numbers of two failures are mixed: %v", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range samples(f) {
		f.Add(text)
	}
	f.Add("oom-kill:constraint=CONSTRAINT_MEMCG,task=a,pid=99999999999,uid=0")
	f.Add("Requested amount of GPU memory (99999999999999999999 bytes) could not be allocated")
	f.Add("XPU out of memory. Tried to allocate 9999999999.999999 GiB. Process 1 has 8589934591.99 GiB memory in use. Of the allocated memory 0 bytes is allocated by PyTorch")
	f.Add("XPU out of memory. Tried to allocate 2.00 GiB." + strings.Repeat(" f\xff", 1300) + " Of the allocated memory 0 bytes is allocated by PyTorch")
	f.Fuzz(func(t *testing.T, text string) {
		o, ok := oom.Parse(text)
		if !ok {
			if o != nil {
				t.Fatal("an event of nothing")
			}
			return
		}
		if len(o.Text) > oom.MaxText || !utf8.ValidString(o.Text) || o.Text == "" || strings.ContainsAny(o.Text, "\n\t\r") {
			t.Fatalf("text of %d bytes: %q", len(o.Text), o.Text)
		}
		switch o.Kind {
		case oom.CUDA, oom.Kernel, oom.Cgroup, oom.Engine:
		default:
			t.Fatalf("kind %q", o.Kind)
		}
		for _, v := range []*uint64{o.RequestedBytes, o.FreeBytes, o.LimitBytes, o.AllocatedBytes, o.ReservedUnallocatedBytes, o.PrivatePoolFreeBytes} {
			if v != nil && *v >= 1<<63 {
				t.Fatalf("a size of %d bytes is taken for known", *v)
			}
		}
		if o.VictimPid != nil && *o.VictimPid <= 0 {
			t.Fatalf("pid %d", *o.VictimPid)
		}
		whole := len(strings.ToValidUTF8(text, "\uFFFD")) <= oom.MaxText // the event keeps all of it, however long its broken bytes become
		if again, ok := oom.Parse(o.Text); whole && (!ok || !proto.Equal(again, o)) {
			t.Fatalf("its own text is read otherwise: %v, then %v", o, again)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	texts := samples(b)
	b.Run("sample", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			oom.Parse(texts[0])
		}
	})
	b.Run("other line", func(b *testing.B) {
		line := `(APIServer pid=1) INFO:     10.1.6.81:16983 - "POST /v1/chat/completions HTTP/1.1" 200 OK, request cmpl-e5951453df7d471e8aac25957dbc9096-0`
		b.SetBytes(int64(len(line)))
		for b.Loop() {
			oom.Parse(line)
		}
	})
}
