package logs

import (
	"math"
	"regexp"
	"strconv"
	"strings"
)

// The signatures of `log` events.
const (
	PoolCheck       = "sglang_pool_check"   // slots of a pool are neither free, nor cached, nor in use
	Retraction      = "sglang_retraction"   // SGLang's preemption
	Preemption      = "vllm_preemption"     // a request lost its KV blocks and is computed again
	Watchdog        = "nccl_watchdog"       // a collective did not end
	Transport       = "nccl_transport"      // the network or the other side failed
	HealthCheck     = "health_check_failed" // the engine says so of itself, or that its core is dead
	oomName         = "oom"                 // a bucket of its own, but no `log` event
	maxFields       = 24
	maxFieldLength  = 128
	maxPoolSections = 8
)

// signature is one line worth telling. Named groups of the mark become fields; a name that ends in _ms becomes _seconds.
type signature struct {
	name   string
	word   string // stands in every such line
	mark   *regexp.Regexp
	detail []*regexp.Regexp // anywhere in the line, optional, likewise
	more   *regexp.Regexp   // lines that may follow and belong to it; nil: none
}

// signatures are tried in order. The source of each wording stands before it.
var signatures = []signature{
	// SGLang srt/managers/scheduler.py check_memory, scheduler_runtime_checker_mixin.py, then scheduler_components/
	// invariant_checker.py; texts in its issues 6888, 16067 and 36081: the figures stand in the same line or in the next two.
	{name: PoolCheck, word: " memory leak detected", mark: regexp.MustCompile(`\b(?P<pool>(?:\w*_)?pool(?:_\w+)?) memory leak detected!`),
		more: regexp.MustCompile(`^\s*(?:\[\w+\] )?[\w.]+(?:\(\))?=-?[0-9]`)},
	// SGLang srt/managers/scheduler.py update_running_batch; the first wording is the older.
	{name: Retraction, word: "#retracted_reqs", mark: regexp.MustCompile(`(?:Decode out of memory happened|KV cache pool is full\. Retract requests)\. #retracted_reqs: (?P<requests>[0-9]+)`)},
	// vLLM core/scheduler.py (V0), its documentation's optimization page; V1 says it only with its pull request 42827.
	{name: Preemption, word: "reempt", mark: regexp.MustCompile(`Sequence group (?P<request>\S{1,96}) is preempted by (?:PreemptionMode\.)?(?P<mode>\w+) mode`),
		detail: []*regexp.Regexp{regexp.MustCompile(`total_(?:num_)?cumulative_preemption(?:_cnt)?=(?P<preemptions_total>[0-9]+)`)}},
	{name: Preemption, word: "Preempting request ", mark: regexp.MustCompile(`Preempting request (?P<request>[^\s:]{1,96}): (?P<lost_tokens>[0-9]+) computed tokens lost`)},
	// PyTorch torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp; texts in vLLM's issues 2734, 6042 and 8978.
	{name: Watchdog, word: "collective operation timeout", mark: regexp.MustCompile(`Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<sequence>[0-9]+), OpType=(?P<operation>\w{1,64})`),
		detail: []*regexp.Regexp{regexp.MustCompile(`Timeout\(ms\)=(?P<timeout_ms>[0-9]{1,15})\)`), regexp.MustCompile(`ran for (?P<ran_ms>[0-9]{1,15}) milliseconds`)}},
	{name: Watchdog, word: "atchdog thread terminated", mark: regexp.MustCompile(`(?:NCCL|Process group) watchdog thread terminated with exception`)},
	{name: Watchdog, word: "watchdog got stuck", mark: regexp.MustCompile(`ProcessGroupNCCL's watchdog got stuck for (?P<stuck_seconds>[0-9]+) seconds`)},
	// NCCL src/transport/net_ib.cc, src/misc/socket.cc, src/misc/ibvwrap.cc, src/nccl.h.in; texts in its issues 928, 1405, 1814.
	{name: Transport, word: "NCCL WARN", mark: regexp.MustCompile(`(?:\btransport/\S+ NCCL WARN|NCCL WARN (?:NET/|.{0,200}?(?:\bsocket|\bibv_\w+|Got completion|[Cc]onnection |remote peer)))`),
		detail: []*regexp.Regexp{regexp.MustCompile(`peer (?P<peer>[^\s<]{1,64})<`), regexp.MustCompile(`with (?:status=|error )(?P<status>[0-9]+)`), regexp.MustCompile(`vendor err (?P<vendor_error>[0-9]+)`)}},
	{name: Transport, word: "ncclRemoteError", mark: regexp.MustCompile(`\bncclRemoteError\b`)},
	{name: Transport, word: "Connection closed by remote peer", mark: regexp.MustCompile(`Connection closed by remote peer(?: (?P<peer>[^\s<]{1,64}))?`)},
	{name: Transport, word: "ibv_", mark: regexp.MustCompile(`\b(?P<call>ibv_\w{1,32})(?:\(\))? failed`)},
	// SGLang entrypoints/http_server.py (its issue 10856), managers/scheduler.py watchdog.
	{name: HealthCheck, word: "ealth check failed", mark: regexp.MustCompile(`\b[Hh]ealth check failed\b`),
		detail: []*regexp.Regexp{regexp.MustCompile(`for last (?P<silent_seconds>[0-9]+) seconds`)}},
	{name: HealthCheck, word: "atchdog timeout (", mark: regexp.MustCompile(`[Ww]atchdog timeout \(self\.watchdog_timeout=(?P<silent_seconds>[0-9]+)`)},
	// vLLM v1/engine/exceptions.py, v1/engine/core_client.py, v1/engine/core.py, v1/executor/multiproc_executor.py (its issues
	// 32468, 42362), engine/async_llm_engine.py and engine/multiprocessing/client.py of V0.
	{name: HealthCheck, word: "EngineDeadError", mark: regexp.MustCompile(`\bEngineDeadError: `)},
	{name: HealthCheck, word: "died unexpectedly", mark: regexp.MustCompile(`\b(?:Engine core|Worker) proc (?P<process>\S{1,64}) died unexpectedly`)},
	{name: HealthCheck, word: "Engine loop has died", mark: regexp.MustCompile(`\bEngine loop has died\b`)},
	{name: HealthCheck, word: "EngineCore encountered a fatal error", mark: regexp.MustCompile(`\bEngineCore encountered a fatal error\b`)},
}

// hits finds the lines that are worth a second look: every form of package oom and every signature has one of these words.
// They are chosen to be rare in what engines write all day.
var hits = newFinder(" memory", "OfMemory", "MemoryAlloc", "ALLOC_FAILED", "OUT_OF_MEMORY", "max seq len",
	"#retracted_reqs", "preempted by", "Preempting request", "atchdog caught", "atchdog thread", "watchdog got stuck", "atchdog timeout (",
	"NCCL WARN", "ncclRemoteError", "by remote peer", "ibv_modify", "ibv_reg_mr", "ibv_create", "ibv_post_", "ibv_poll_",
	"ealth check failed", "EngineDeadError", "died unexpectedly", "Engine loop has died", "encountered a fatal")

// recognise returns the signature of a line; nil where it has none.
func recognise(text string) *signature {
	for i := range signatures {
		s := &signatures[i]
		if strings.Contains(text, s.word) && s.mark.MatchString(text) {
			return s
		}
	}
	return nil
}

// fields are what the line says, by name.
func (s *signature) fields(text string) map[string]string {
	out := make(map[string]string)
	take(out, s.mark, text)
	for _, re := range s.detail {
		take(out, re, text)
	}
	if s.name == PoolCheck {
		figures(out, text)
	}
	return out
}

func take(into map[string]string, re *regexp.Regexp, text string) {
	m := re.FindStringSubmatch(text)
	if m == nil {
		return
	}
	for i, name := range re.SubexpNames() {
		if name == "" || m[i] == "" {
			continue
		}
		if ms, err := strconv.ParseFloat(m[i], 64); err == nil && strings.HasSuffix(name, "_ms") {
			set(into, strings.TrimSuffix(name, "_ms")+"_seconds", strconv.FormatFloat(math.Round(ms)/1000, 'f', -1, 64))
			continue
		}
		set(into, name, m[i])
	}
}

func set(into map[string]string, name, value string) {
	if len(into) < maxFields && len(name) <= maxFieldLength && len(value) <= maxFieldLength {
		into[name] = value
	}
}

var figure = regexp.MustCompile(`(?:\[(\w{1,16})\] )?\b([a-z][\w.]{0,96})(?:\(\))?=(-?[0-9]{1,19})\b`)

// figures reads the numbers of SGLang's pool check: "self.max_total_num_tokens=5", "self.tree_cache.evictable_size()=0",
// "[swa] total=7, available=3". Objects in front of a name are left out, unless the name alone is taken already.
func figures(into map[string]string, text string) {
	section := ""
	for _, m := range figure.FindAllStringSubmatch(text, maxFields*2) {
		if m[1] != "" {
			section = m[1] + "_"
		}
		path := strings.Split(m[2], ".")
		name := section + path[len(path)-1]
		if _, taken := into[name]; taken && len(path) > 1 {
			name = section + path[len(path)-2] + "_" + path[len(path)-1]
		}
		set(into, name, m[3])
	}
}
