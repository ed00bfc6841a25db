package process

import (
	"path"
	"regexp"
	"strconv"
	"strings"

	"lowtide/event"
)

// words is what a command line, or the title an engine gives its processes, says. Empty and nil are unknown.
type words struct {
	engine, role, model, port string
	rank, index               *int64
}

var (
	rankPattern  = regexp.MustCompile(`(?:^|[_ ])TP(\d{1,5})\b|(?:^|[_ ])TP(\d{1,5})_`)
	indexPattern = regexp.MustCompile(`(?:^|[_ ])DP(\d{1,5})(?:\b|_)`)
)

// parseWords reads a command line. vLLM and SGLang rename their children (VLLM::EngineCore_DP0, VLLM::Worker_TP1,
// sglang::scheduler_TP0), which is how role and rank are told.
func parseWords(line []string) words {
	var w words
	all := strings.Join(line, " ")
	lower := strings.ToLower(all)
	switch {
	case strings.Contains(lower, "vllm"):
		w.engine = "vllm"
	case strings.Contains(lower, "sglang"):
		w.engine = "sglang"
	case strings.Contains(lower, "trtllm"), strings.Contains(lower, "tensorrt_llm"):
		w.engine = "trtllm"
	case strings.Contains(lower, "llama-server"), strings.Contains(lower, "llama_cpp"):
		w.engine = "llama.cpp"
	}
	switch {
	case strings.HasPrefix(all, "VLLM::EngineCore"):
		w.role = "core"
	case strings.HasPrefix(all, "VLLM::Worker"), strings.HasPrefix(all, "sglang::scheduler"):
		w.role = "worker"
	case strings.HasPrefix(all, "VLLM::"), strings.HasPrefix(all, "sglang::"):
		w.role = "other"
	case w.engine == "llama.cpp":
		w.role = "worker" // one process does everything
	case strings.Contains(lower, "vllm serve"), strings.Contains(lower, "api_server"), strings.Contains(lower, "sglang.launch_server"),
		strings.Contains(lower, "sglang serve"), strings.Contains(lower, "trtllm-serve"):
		w.role = "frontend"
	}
	if strings.HasPrefix(lower, "vllm::") || strings.HasPrefix(lower, "sglang::") {
		w.rank, w.index = digits(rankPattern, all), digits(indexPattern, all)
	}
	for i, word := range line {
		name, value, joined := strings.Cut(word, "=")
		if !joined && i+1 < len(line) {
			value = line[i+1]
		}
		switch name {
		case "--port":
			if _, err := strconv.ParseUint(value, 10, 16); err == nil {
				w.port = value
			}
		case "--model", "--model-path", "--served-model-name", "-m":
			// `python -m module` is no model; a served name is what people know it by, and wins.
			if name == "-m" && w.engine != "llama.cpp" || value == "" || strings.HasPrefix(value, "-") {
				continue
			}
			if w.model == "" || name == "--served-model-name" {
				w.model = value
			}
		case "serve":
			if base := path.Base(line[max(i-1, 0)]); !joined && w.model == "" && i > 0 && (base == "vllm" || base == "sglang") && !strings.HasPrefix(value, "-") {
				w.model = value
			}
		}
	}
	return w
}

// digits returns the first group that matched as a number.
func digits(pattern *regexp.Regexp, text string) *int64 {
	m := pattern.FindStringSubmatch(text)
	if m == nil {
		return nil
	}
	n, err := strconv.ParseInt(first(m[1:]...), 10, 64)
	if err != nil {
		return nil
	}
	return event.Ptr(n)
}
