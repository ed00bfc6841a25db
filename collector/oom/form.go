package oom

import (
	"regexp"
	"strconv"
	"strings"

	"lowtide/event"
)

// The values of an oom event's kind.
const (
	CUDA   = "cuda"   // the device's memory, or the limit set for it, under any of PyTorch's back ends
	Kernel = "kernel" // the host's memory, ended by the kernel
	Cgroup = "cgroup" // a cgroup's limit, ended by the kernel
	Engine = "engine" // a pool that the engine made for itself
)

// form is one way to say it.
type form struct {
	kind string
	word string // stands in every text of the form; asked before mark, since it costs a twentieth
	mark *regexp.Regexp
	read func(text string, o *event.Oom) // of the text from the mark on; nil where it has no numbers
}

// newForm compiles the mark, in which Q is a quantity.
func newForm(kind, word, mark string, read func(string, *event.Oom)) form {
	return form{kind, word, pattern(mark), read}
}

// stems are the parts of words of which each text of any form has one.
var stems = [...]string{"emory", "ALLOC_FAILED", "OUT_OF_MEMORY", "seq len", "oom-kill:"}

// forms are tried in this order, the kernel's first since they contain words of the others. The first comment of a group names
// where its wording stands.
var forms = []form{
	// Linux mm/oom_kill.c, __oom_kill_process and dump_oom_summary ("Kill process" up to 5.2).
	newForm(Cgroup, "Memory cgroup out of memory", `Memory cgroup out of memory[^:]{0,64}: Kill(?:ed)? process [0-9]`, readKilled),
	newForm(Cgroup, "oom-kill:", `oom-kill:constraint=CONSTRAINT_MEMCG\b`, readOomKill),
	newForm(Kernel, "oom-kill:", `oom-kill:constraint=CONSTRAINT_`, readOomKill),
	newForm(Kernel, "Out of memory", `\bOut of memory[^:]{0,64}: Kill(?:ed)? process [0-9]`, readKilled),

	// PyTorch c10/cuda/CUDACachingAllocator.cpp, c10/xpu/XPUCachingAllocator.cpp; vLLM's "CUDA out of memory occurred when
	// warming up sampler" has the same beginning and no numbers.
	newForm(CUDA, " out of memory", `\b(?:CUDA|HIP|XPU) out of memory`, readTorch),
	// PyTorch c10/cuda/CUDAMallocAsyncAllocator.cpp.
	newForm(CUDA, "exceed allowed memory", `Allocation on device [0-9]+ would exceed allowed memory\. \(out of memory\)`, readAsync),
	// PyTorch c10/cuda/CUDAException.cpp, c10/cuda/driver_api.h (expandable segments), aten/src/ATen/cuda/Exceptions.h.
	newForm(CUDA, "rror: out of memory", `\b(?:CUDA|HIP|XPU)(?: driver| runtime)? error: out of memory`, nil),
	newForm(CUDA, "BLAS_STATUS_ALLOC_FAILED", `\b(?:CU|HIP)BLAS_STATUS_ALLOC_FAILED\b`, nil),
	// TensorRT-LLM cpp/tensorrt_llm/common/cudaUtils.h (its issues 2335 and 3636); TensorRT's builder and runtime.
	newForm(CUDA, "CUDA runtime error in", `CUDA runtime error in .{1,300}?: out of memory`, nil),
	newForm(CUDA, "Requested amount of GPU memory", `Requested amount of GPU memory \([0-9]+ bytes\) could not be allocated`, readTensorRT),
	// NCCL src/include/checks.h; llama.cpp ggml/src/ggml-cuda/ggml-cuda.cu; the CUDA and HIP runtimes' own names of the error.
	newForm(CUDA, "'out of memory'", `\bC[Uu][Dd][Aa] failure (?:[0-9]+ )?'out of memory'`, nil),
	newForm(CUDA, "cudaMalloc failed", `(?:allocating Q on device [0-9]+: )?cudaMalloc failed: out of memory`, readLlama),
	newForm(CUDA, "emory", `\b(?:cudaErrorMemoryAllocation|hipErrorOutOfMemory)\b`, nil),
	newForm(CUDA, "CUDA_ERROR_OUT_OF_MEMORY", `\bCUDA_ERROR_OUT_OF_MEMORY\b`, nil),

	// vLLM v1/core/kv_cache_utils.py, worker/worker.py before it, v1/worker/gpu_worker.py.
	newForm(Engine, "No available memory", `No available memory for the cache blocks`, nil),
	newForm(Engine, "seq len", `max seq len \([0-9]+\) is larger than the maximum number of tokens`, nil),
	newForm(Engine, "KV cache is needed", `Q KV cache is needed, which is larger than the available KV cache memory`, readNeeded),
	newForm(Engine, "Free memory on device", `Free memory on device.{0,24}? \([0-9.]+/[0-9.]+ GiB\) on startup is less than desired GPU memory utilization`, readDesired),
	// SGLang srt/managers/schedule_batch.py ("Prefill out of memory", "Decode out of memory"), then srt/mem_cache/common.py;
	// srt/model_executor at start. They count tokens, not bytes.
	newForm(Engine, "ut of memory. ", `\b[Oo]ut of memory\. (?:Try to lower your batch size|Please set a smaller number for .--max-running-requests)`, nil),
	newForm(Engine, "Not enough memory", `Not enough memory\. Please try to increase --mem-fraction-static`, nil),
	// Text Generation Inference, server/models/flash_causal_lm.py at warm-up.
	newForm(Engine, "Not enough memory", `Not enough memory to handle [0-9]+ \w+ tokens`, nil),
}

// find returns the first form that the text has, and where it begins.
func find(text string) (*form, int) {
	for i := range forms {
		f := &forms[i]
		if !strings.Contains(text, f.word) {
			continue
		}
		if at := f.mark.FindStringIndex(text); at != nil {
			return f, at[0]
		}
	}
	return nil, 0
}

var (
	killedPid  = regexp.MustCompile(`Kill(?:ed)? process ([0-9]{1,10})\b`)
	oomKillPid = regexp.MustCompile(`.*,pid=([0-9]{1,10})\b`) // the last: the victim's name, of its own choice, stands before it
)

func readKilled(text string, o *event.Oom)  { o.VictimPid = pid(killedPid, text) }
func readOomKill(text string, o *event.Oom) { o.VictimPid = pid(oomKillPid, text) }

func pid(re *regexp.Regexp, text string) *int64 {
	m := re.FindStringSubmatch(text)
	if m == nil {
		return nil
	}
	n, err := strconv.ParseInt(m[1], 10, 32)
	if err != nil || n <= 0 {
		return nil
	}
	return &n
}

var (
	amount     = pattern(`GPU memory \(Q\) could not`)
	allocating = pattern(`allocating Q on device`)
	needed     = pattern(`Q KV cache is needed, which is larger than the available KV cache memory \(Q\)`)
	desired    = pattern(`\(([0-9]{1,8}(?:\.[0-9]{1,6})?)/[0-9.]+ GiB\) on startup is less than desired GPU memory utilization \([0-9.]+, Q\)`)
)

func readTensorRT(text string, o *event.Oom) { o.RequestedBytes = first(amount, text) }
func readLlama(text string, o *event.Oom)    { o.RequestedBytes = first(allocating, text) }

// readNeeded and readDesired: what the engine wanted for its pool, and what there was for it.
func readNeeded(text string, o *event.Oom) {
	if m := needed.FindStringSubmatch(text); m != nil {
		o.RequestedBytes, o.FreeBytes = size(m[1]), size(m[2])
	}
}

func readDesired(text string, o *event.Oom) {
	if m := desired.FindStringSubmatch(text); m != nil {
		o.FreeBytes, o.RequestedBytes = size(m[1]+" GiB"), size(m[2])
	}
}
