package process

import (
	"path"
	"regexp"
	"strconv"
	"strings"
)

// DefaultMatch finds the programs of the known engines, and python, by their command line. It looks at the program and not at its
// arguments: whoever pages through vllm.log serves no model.
const DefaultMatch = `(?i)^\S*python[0-9.]*(\s|$)|^(vllm|sglang|ray)::|^(\S*/)?(vllm|sglang|trtllm-serve|\S*executorworker|tritonserver|triton_python_backend_stub|` +
	`text-generation-(launcher|router|server)|lmdeploy|llama-server|llama_cpp\S*)(\s|$)`

// words is what a command line, or the title an engine gives its processes, says. Empty and nil are unknown.
type words struct {
	engine, role, model, port string
	tp, pp, dp                *int64 // of a title; an expert-parallel rank repeats them and is left out
	tpSize                    int64  // of a command line, 0 when it does not say
	serves                    bool   // its socket is the engine's endpoint
	combined                  bool   // a front end that may do the work as well
	configured                bool   // a file says what the command line does not, so that no default may be assumed
	launcher                  bool   // starts ranks that are one program: mpirun, torchrun
	host                      bool   // runs other people's programs, which are not one instance: jupyter, supervisord
	ray                       bool   // a worker that a node daemon started, not its front end
}

// The ports that engines listen on when nobody says.
var defaultPorts = map[string]string{
	"vllm": "8000", "sglang": "30000", "trtllm": "8000", "llama.cpp": "8080", "lmdeploy": "23333", "tgi": "3000", "triton": "8000", "dynamo": "8000",
}

// metricsPort is where Triton serves its metrics, apart from its API.
const metricsPort = "8002"

var (
	titlePattern = regexp.MustCompile(`^([A-Za-z0-9_.-]+)::([A-Za-z0-9]+)(\S*)`)
	hostPattern  = regexp.MustCompile(`^(jupyter\S*|supervisord|circusd|celery|airflow|honcho|ansible\S*|ipcluster|code-server|raylet)$`)
)

var launchers = map[string]bool{
	"mpirun": true, "mpiexec": true, "mpiexec.hydra": true, "hydra_pmi_proxy": true, "orterun": true, "orted": true, "prterun": true, "prte": true,
	"prted": true, "torchrun": true, "accelerate": true, "deepspeed": true, "torch.distributed.run": true, "torch.distributed.launch": true,
	"accelerate.commands.launch": true, "deepspeed.launcher.launch": true, "slurmstepd:": true,
}

// parseWords reads a command line. vLLM and SGLang rename their children (VLLM::EngineCore_DP0, VLLM::Worker_DP0_PP1_TP3_EP3,
// sglang::scheduler_TP0), which is how role and rank are told; in front of :: stands what VLLM_PROCESS_NAME_PREFIX says.
func parseWords(line []string) words {
	if len(line) == 0 {
		return words{}
	}
	if m := titlePattern.FindStringSubmatch(line[0]); m != nil {
		return title(m[1], m[2], strings.ReplaceAll(line[0], " ", "_"))
	}
	name, rest := program(line)
	w := words{launcher: launchers[name], host: hostPattern.MatchString(name)}
	if w.launcher || w.host {
		return w
	}
	sub := ""
	if len(rest) > 0 {
		sub = rest[0]
	}
	front := func(engine string) { w.engine, w.role, w.serves = engine, "frontend", true }
	positional := -1 // argument that names the model
	switch {
	case name == "vllm" && sub == "serve":
		front("vllm")
		positional = 1
	case name == "vllm" && sub == "run-batch":
		w.engine, w.role = "vllm", "frontend"
	case strings.HasPrefix(name, "vllm.entrypoints."):
		front("vllm")
	case name == "sglang" && sub == "serve", name == "sglang.launch_server":
		front("sglang")
	case name == "trtllm-serve", name == "tensorrt_llm.commands.serve":
		front("trtllm")
		w.combined = true
		positional = 0
		if sub == "serve" {
			positional = 1
		}
	case strings.EqualFold(name, "trtllmExecutorWorker"), strings.EqualFold(name, "executorWorker"), strings.HasPrefix(name, "tensorrt_llm.llmapi.mgmn_"):
		w.engine, w.role = "trtllm", "worker"
	case name == "tritonserver":
		w.engine, w.role, w.serves = "triton", "worker", true // one process does everything
	case name == "triton_python_backend_stub":
		w.engine = "triton"
	case name == "text-generation-launcher":
		w.engine, w.role = "tgi", "other"
	case name == "text-generation-router":
		front("tgi")
	case name == "text-generation-server":
		w.engine, w.role = "tgi", "worker"
	case name == "lmdeploy" && sub == "serve":
		front("lmdeploy")
		w.combined = true
		positional = 2 // lmdeploy serve api_server MODEL
	case name == "llama-server", strings.HasPrefix(name, "llama_cpp"):
		w.engine, w.role, w.serves = "llama.cpp", "worker", true
	case name == "dynamo.frontend":
		front("dynamo")
	case name == "dynamo.vllm", name == "dynamo.sglang", name == "dynamo.trtllm":
		// What it serves itself has a port that only its environment tells.
		front(strings.TrimPrefix(name, "dynamo."))
		w.combined, w.configured = name == "dynamo.trtllm", true
	}
	w.options(rest)
	if w.model == "" && positional >= 0 && positional < len(rest) && !strings.HasPrefix(rest[positional], "-") {
		w.model = rest[positional]
	}
	return w
}

// title reads a name that an engine gave its process.
func title(prefix, name, all string) words {
	var w words
	switch {
	case prefix == "ray":
		w.ray = true
		if strings.HasPrefix(name, "RayWorker") {
			w.engine, w.role = "vllm", "worker"
		}
		return w
	case prefix == "sglang" && name == "scheduler":
		w.engine, w.role = "sglang", "worker"
	case prefix == "sglang":
		w.engine, w.role = "sglang", "other"
	case strings.HasPrefix(name, "EngineCore"):
		w.engine, w.role = "vllm", "core"
	case strings.HasPrefix(name, "Worker"):
		w.engine, w.role = "vllm", "worker"
	case strings.EqualFold(name, "APIServer"):
		w.engine, w.role, w.serves = "vllm", "frontend", true
	case strings.EqualFold(prefix, "vllm"):
		w.engine, w.role = "vllm", "other"
	default:
		return w // somebody else's ::
	}
	for part := range strings.SplitSeq(all, "_") {
		for kind, to := range map[string]**int64{"TP": &w.tp, "PP": &w.pp, "DP": &w.dp} {
			if number, ok := strings.CutPrefix(part, kind); ok && len(number) <= 5 {
				if n, err := strconv.ParseUint(number, 10, 32); err == nil {
					rank := int64(n)
					*to = &rank
				}
			}
		}
	}
	return w
}

// program names what is run: a program, a python script or a python module, and the arguments after it. A child that python's
// multiprocessing made has no name of its own.
func program(line []string) (name string, rest []string) {
	base := path.Base(line[0])
	if !strings.HasPrefix(base, "python") && !strings.HasPrefix(base, "pypy") {
		return base, line[1:]
	}
	for i := 1; i < len(line); i++ {
		word := line[i]
		switch {
		case word == "-c", word == "-":
			return "", nil
		case word == "-m":
			if i+1 < len(line) {
				return line[i+1], line[i+2:]
			}
			return "", nil
		case word == "-W", word == "-X", word == "--check-hash-based-pycs":
			i++
		case strings.HasPrefix(word, "-"):
		default:
			return path.Base(word), line[i+1:]
		}
	}
	return "", nil
}

func (w *words) options(rest []string) {
	for i, word := range rest {
		if !strings.HasPrefix(word, "-") {
			continue
		}
		name, value, joined := strings.Cut(word, "=")
		if !joined && i+1 < len(rest) {
			value = rest[i+1]
		}
		if value == "" || strings.HasPrefix(value, "-") {
			continue
		}
		switch strings.ReplaceAll(name, "_", "-") {
		case "--port", "--http-port", "--server-port":
			if _, err := strconv.ParseUint(value, 10, 16); err == nil {
				w.port = value
			}
		case "--config", "--config-file", "--extra-llm-api-options":
			w.configured = true
		case "--tensor-parallel-size", "-tp", "--tp-size", "--tp":
			if n, err := strconv.ParseUint(value, 10, 16); err == nil && w.engine != "" {
				w.tpSize = int64(n)
			}
		case "-m", "-hf", "-hfr", "--hf-repo":
			if w.engine == "llama.cpp" && w.model == "" {
				w.model = value
			}
		case "--model", "--model-path", "--model-id":
			if w.model == "" {
				w.model = value
			}
		case "--served-model-name", "--alias", "--model-name":
			w.model = value // what people know it by
		}
	}
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
