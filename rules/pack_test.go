package rules

import (
	"slices"
	"strings"
	"testing"

	"lowtide/event"
	"lowtide/rules/variable"
)

// Every class has one rule, with the scope that the judge evaluates it in and the severities of design.md, Incidents: a device fault
// and the imminent end of memory page at once, capacity and blind never do.
func TestEveryClassHasItsRule(t *testing.T) {
	pack := shippedPack(t)
	ids := map[string]string{"exhaustion": "imminent"}
	scopes := map[string]string{"kv_pressure": "instance", "kv_block_leak": "instance", "stall": "instance", "device_fault": "gpu", "blind": "host"}
	alone := map[string]string{"device_fault": event.Page, "exhaustion": event.Page}
	with := map[string]string{"capacity": event.Ticket, "blind": event.Ticket}
	or := func(m map[string]string, class, otherwise string) string {
		if v, ok := m[class]; ok {
			return v
		}
		return otherwise
	}
	for _, class := range Classes() {
		r := pack.Rule(or(ids, class, class))
		if r == nil {
			t.Errorf("no rule for %s", class)
			continue
		}
		if r.Class != class || r.Scope != or(scopes, class, "worker") {
			t.Errorf("rule %s is of class %s and scope %s", r.ID, r.Class, r.Scope)
		}
		if r.Alone != or(alone, class, event.Ticket) || r.With != or(with, class, event.Page) {
			t.Errorf("rule %s: severities %s and %s", r.ID, r.Alone, r.With)
		}
		if len(r.against) == 0 || len(r.evidence) == 0 {
			t.Errorf("rule %s: %d explanations against it, %d numbers of evidence", r.ID, len(r.against), len(r.evidence))
		}
	}
}

// The precedence of vocabulary.md, each pair that is named there and is of one trouble; and that nothing that grows explains another
// growth, since two series that rise are two causes.
func TestExplainsFollowsThePrecedence(t *testing.T) {
	pack := shippedPack(t)
	by := map[string]*Rule{}
	for _, r := range pack.Rules {
		by[r.Class] = r
	}
	growth := []string{"retention", "native_growth", "graph_pools", "stream_backlog", "host_memory", "pinned_memory", "fd_leak", "thread_leak", "kv_block_leak"}
	for class, wanted := range map[string][]string{
		"device_fault":     {"software_fault", "external_kill", "stall", "crash_loop"},
		"software_fault":   {"external_kill", "stall", "crash_loop"},
		"cotenant":         {"fragmentation", "oversize_request", "capacity", "stall", "crash_loop", "exhaustion"},
		"retention":        {"fragmentation", "oversize_request", "capacity", "cotenant", "external_kill", "stall", "crash_loop", "exhaustion"},
		"native_growth":    {"fragmentation", "oversize_request", "capacity", "cotenant", "external_kill", "stall", "crash_loop", "exhaustion"},
		"graph_pools":      {"fragmentation", "oversize_request", "capacity", "stall", "crash_loop", "exhaustion"},
		"stream_backlog":   {"fragmentation", "oversize_request", "capacity", "stall", "crash_loop", "exhaustion"},
		"fragmentation":    {"oversize_request", "capacity", "stall", "crash_loop", "exhaustion"},
		"oversize_request": {"capacity", "stall", "crash_loop", "exhaustion"},
		"capacity":         {"oversize_request", "external_kill", "stall", "crash_loop", "exhaustion"},
		"kv_block_leak":    {"kv_pressure", "stall", "crash_loop"},
		"kv_pressure":      {"stall", "crash_loop"},
		"pinned_memory":    {"external_kill", "stall", "crash_loop", "exhaustion"},
		"host_memory":      {"external_kill", "stall", "crash_loop", "exhaustion"},
		"fd_leak":          {"external_kill", "stall", "crash_loop"},
		"thread_leak":      {"external_kill", "stall", "crash_loop"},
		"external_kill":    {"stall", "crash_loop"},
		"exhaustion":       {"external_kill", "stall", "crash_loop"},
	} {
		for _, other := range wanted {
			if !slices.Contains(by[class].Explains, other) {
				t.Errorf("%s does not explain %s", class, other)
			}
		}
	}
	for _, cause := range []string{"cotenant", "fragmentation", "oversize_request", "capacity"} { // found later, it must be told
		if slices.Contains(by["exhaustion"].Explains, cause) {
			t.Errorf("exhaustion, of unproven cause, explains %s", cause)
		}
	}
	for class, r := range by {
		for _, other := range r.Explains {
			own := other == class && class != "crash_loop" && class != "external_kill" // of the other ranks of an instance
			if own || slices.Contains(growth, other) {
				t.Errorf("%s explains %s", class, other)
			}
		}
	}
}

// What is an ordinary request to one class must be one to the others, or an OOM falls between them.
func TestThreeRulesDrawOneLine(t *testing.T) {
	pack := shippedPack(t)
	want := pack.Rule("fragmentation").Thresholds["part"]
	for _, id := range []string{"oversize_request", "capacity"} {
		if got := pack.Rule(id).Thresholds["part"]; got != want || want == 0 {
			t.Errorf("threshold part of %s is %v, of fragmentation %v", id, got, want)
		}
	}
}

// A missing sensor never makes a page: with nothing known no rule is called, confirmed or paired.
func TestNothingKnownSaysNothing(t *testing.T) {
	for _, r := range shippedPack(t).Rules {
		got := r.Evaluate(variable.NewSample())
		if got.When == True || got.Confirm == True || got.With == True || got.Refute == True {
			t.Errorf("rule %s: %+v", r.ID, got)
		}
		if got.When == Unknown && (got.Missing == "" || strings.HasPrefix(got.Missing, "evaluation")) {
			t.Errorf("rule %s names no sensor: %q", r.ID, got.Missing)
		}
		for _, line := range r.AdviceFor(variable.NewSample()) {
			if strings.Contains(line, "{{") || strings.Contains(line, "[[") {
				t.Errorf("rule %s: %s", r.ID, line)
			}
		}
	}
}

// A worker at work, with all its sensors, whose memory is high and level: no rule is called, and every one that it has the sensors for
// says so.
func TestAHealthyWorkerHasNoFinding(t *testing.T) {
	s := healthy()
	for _, r := range shippedPack(t).Rules {
		got := r.Evaluate(s)
		want := False
		if r.ID == "blind" { // of a sample of its own
			want = Unknown
		}
		if got.When != want || got.With == True {
			t.Errorf("rule %s: when %v (%s), with %v", r.ID, got.When, got.Missing, got.With)
		}
	}
}

// healthy is the sample of a vLLM worker on an 80 GiB card: every boolean false, every count and slope nought, but for what runs.
func healthy() *variable.Sample {
	s := variable.NewSample()
	for i, v := range variable.All() {
		id := variable.ID(i)
		prefix, field, _ := strings.Cut(v.Name, ".")
		switch {
		case prefix == "oom" && field != "count", prefix == "snapshot", prefix == "kill", prefix == "blind", prefix == "imminent", v.Name == "grew.before_oom",
			strings.HasPrefix(field, "per_") && v.Name != "preemptions.per_request", strings.HasPrefix(field, "hours_to_limit"), prefix == "xid" && field != "application":
		case v.Kind == variable.Bool:
			s.SetBool(id, false)
		case v.Kind == variable.Number:
			s.SetNumber(id, 0)
		}
	}
	for name, v := range map[string]float64{"live.now": 70 << 30, "live.level_bytes": 68 << 30, "cached.now": 4 << 30, "outside.now": 3 << 30, "anon.now": 9 << 30,
		"kv.busy": 0.7, "running.now": 24, "quiet.count": 40, "quiet.hours": 20, "headroom.ratio": 0.02, "headroom.bytes": 2 << 30, "demand.ratio": 1.1,
		"capacity.asked_bytes": 70 << 30, "capacity.spare_ratio": 0.05, "capacity.limit_bytes": 72 << 30, "capacity.host_asked_bytes": 4 << 30, "capacity.host_limit_bytes": 64 << 30,
		"utilization.now": 0.9, "progress.seconds": 0.4, "age.hours": 30} {
		s.SetNumber(variable.Must(name), v)
	}
	return s
}

func TestAdviceIsFilled(t *testing.T) {
	pack := shippedPack(t)
	s := variable.NewSample()
	line := func(rule, begins string) string {
		for _, l := range pack.Rule(rule).AdviceFor(s) {
			if strings.HasPrefix(l, begins) {
				return l
			}
		}
		t.Errorf("no advice of %s begins with %q", rule, begins)
		return ""
	}
	const pool = "Raise the KV pool by at most the measured headroom beyond a tenth of the limit: "
	if got, want := line("kv_pressure", "Raise the KV"), pool+"not known (no data from allocator). "; !strings.HasPrefix(got, want) {
		t.Errorf("got %s\nwant %s…", got, want)
	}
	s.SetNumber(variable.Must("headroom.spare_bytes"), 2<<30)
	if got, want := line("kv_pressure", "Raise the KV"), pool+"2 GiB. "; !strings.HasPrefix(got, want) {
		t.Errorf("got %s\nwant %s…", got, want)
	}
	const replace = "Replace staggered, while ready capacity remains and with warm replacements, never the whole fleet at once"
	if got := line("retention", "Replace"); got != replace+"." {
		t.Errorf("without peers: %s", got)
	}
	s.SetNumber(variable.Must("peers.same"), 3)
	s.SetNumber(variable.Must("peers.same_growing"), 2)
	if got, want := line("retention", "Replace"), replace+"; the same grows in 2 of 3 other workers of this release."; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if r := one(t, "symptom.oom"); r.AdviceFor(s) != nil {
		t.Errorf("a rule without advice gives %v", r.AdviceFor(s))
	}
}

// What the lessons tell an engineer to do stands in the advice of the class that it is for.
func TestAdviceCarriesTheLessons(t *testing.T) {
	pack := shippedPack(t)
	for rule, actions := range map[string][]string{
		"retention":        {"try/finally", "CPU-only", "inference_mode", "deadline", "staggered", "ready capacity", "known-good", "no restart storm", "snapshot", "public service", "masks", "empty_cache", "grad_fn", "{{snapshot.grower}}"},
		"stream_backlog":   {"Synchronise", "record_stream", "deadline"},
		"fragmentation":    {"expandable_segments:True", "max_split_size_mb` only as a last resort", "never under cudaMallocAsync", "equal test", "10 to 15 %", "empty_cache", "snapshot"},
		"graph_pools":      {"private pool", "warm-up", "equal test"},
		"native_growth":    {"profiler", "known-good", "empty_cache"},
		"oversize_request": {"gpu_memory_utilization", "{{capacity.spare_ratio}}", "max_num_batched_tokens", "10 to 15 %", "max_memory_allocated", "short prompts fair", "retries"},
		"capacity":         {"gpu_memory_utilization", "{{capacity.spare_ratio}}", "0.98", "10 to 15 %", "prefill", "quality and cost"},
		"kv_pressure":      {"max_num_seqs", "max_num_batched_tokens", "measured headroom", "Route long contexts", "short prompts fair", "KV dtype", "quality and cost", "Do not restart"},
		"kv_block_leak":    {"try/finally", "deadline", "evictable"},
		"crash_loop":       {"backoff", "ready capacity", "model downloads"},
		"device_fault":     {"Xid", "diagnostics", "deadline"},
		"stall":            {"progress probe", "ranks", "deadline"},
		"external_kill":    {"a restart alone proves none", "MAX_JOBS", "deadline"},
		"host_memory":      {"try/finally", "cgroup", "caps"},
		"fd_leak":          {"CLOSE_WAIT", "try/finally", "deadline"},
		"imminent":         {"long contexts first", "not proven", "deadline"},
	} {
		text := strings.Join(pack.Rule(rule).Advice, "\n")
		for _, action := range actions {
			if !strings.Contains(text, action) {
				t.Errorf("advice of %s does not speak of %q", rule, action)
			}
		}
	}
}

// A summary says what was seen, never why.
func TestSummariesNameNoCause(t *testing.T) {
	for _, r := range shippedPack(t).Rules {
		text := r.Summary(healthy())
		for _, word := range []string{"caused", "because", "due to", "leads to", "therefore"} {
			if strings.Contains(text, word) {
				t.Errorf("rule %s says %q: %s", r.ID, word, text)
			}
		}
		if strings.Contains(text, "  ") || strings.HasSuffix(text, ".") || strings.ContainsAny(text, "[]{}") {
			t.Errorf("rule %s: %q", r.ID, text)
		}
	}
}

func TestPartsInBracketsAreLeftOutWhenUnknown(t *testing.T) {
	text := "rules:\n  - id: probe\n    class: retention\n    scope: worker\n    severity: {alone: ticket}\n    when: |\n      live.early\n    summary: \"A[[ {{fds.now}} of {{engine}}]] b[[, {{threads.now}}]] ]] c {{anon.now}}[[; {{live.growth}}/h]]\"\n"
	pack, err := load([]Source{{Name: "probe.yaml", Content: []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	r, s := pack.Rules[0], variable.NewSample()
	for _, step := range []struct {
		set  func()
		want string
	}{
		{func() {}, "A b ]] c unknown"},
		{func() { s.SetNumber(variable.Must("fds.now"), 7) }, "A b ]] c unknown"},
		{func() { s.SetString(variable.Must("engine"), "vllm") }, "A 7 of vllm b ]] c unknown"},
		{func() { s.SetNumber(variable.Must("threads.now"), 9); s.SetNumber(variable.Must("live.growth"), 2<<30) }, "A 7 of vllm b, 9 ]] c unknown; 2 GiB/h"},
	} {
		step.set()
		if got := r.Summary(s); got != step.want {
			t.Errorf("got %q, want %q", got, step.want)
		}
	}
}

func shippedPack(t testing.TB) *Pack {
	t.Helper()
	pack, err := Builtin()
	if err != nil {
		t.Fatal(err)
	}
	return pack
}

// All rules on a healthy worker, as if everything they read had changed.
func BenchmarkEvaluateBuiltinHealthy(b *testing.B) {
	pack, s := shippedPack(b), healthy()
	b.ReportAllocs()
	for b.Loop() {
		for _, r := range pack.Rules {
			r.Evaluate(s)
		}
	}
}

func BenchmarkLoadBuiltin(b *testing.B) {
	for b.Loop() {
		shippedPack(b)
	}
}
