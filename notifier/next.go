package notifier

import (
	"strings"

	"lowtide/event"
)

// questions are the saved investigations that answer what a class leaves open, most useful first, and what each of them is asked about.
var questions = map[string][]struct{ name, about string }{
	"retention":        {{"per-abort", "slot"}, {"peers", "slot"}},
	"stream_backlog":   {{"quiet-points", "slot"}},
	"fragmentation":    {{"oom-minutes", "slot"}, {"stacks", "slot"}},
	"graph_pools":      {{"quiet-points", "slot"}},
	"native_growth":    {{"quiet-points", "slot"}, {"peers", "slot"}},
	"oversize_request": {{"oom-minutes", "slot"}},
	"kv_pressure":      {{"kv-ttft", "slot"}},
	"kv_block_leak":    {{"quiet-points", "slot"}},
	"host_memory":      {{"quiet-points", "slot"}},
	"pinned_memory":    {{"quiet-points", "slot"}},
	"fd_leak":          {{"quiet-points", "slot"}},
	"thread_leak":      {{"quiet-points", "slot"}},
	"device_fault":     {{"first-xid", "host"}},
	"software_fault":   {{"first-xid", "host"}},
	"external_kill":    {{"ends", "slot"}},
	"stall":            {{"before", "incident"}},
	"exhaustion":       {{"card-budget", "host"}, {"quiet-points", "slot"}},
	"crash_loop":       {{"ends", "slot"}},
	"cotenant":         {{"card-budget", "host"}, {"orphans", "host"}},
	"capacity":         {{"card-budget", "host"}},
	"blind":            {{"sources", "host"}},
}

// nextSteps are the commands that look closer, ready to paste: what happened around the incident, what its class leaves open, and the
// incident as a recording.
func nextSteps(f *event.Finding) []string {
	steps := []string{"lowtide investigate incident --incident " + word(f.Incident)}
	about := map[string]string{"slot": f.Slot, "host": hostOf(f), "incident": f.Incident}
	for _, one := range questions[f.Class] {
		if value := about[one.about]; value != "" {
			steps = append(steps, "lowtide investigate "+one.name+" --"+one.about+" "+word(value))
		}
	}
	return append(steps, "lowtide export "+word(f.Incident)+" --out "+word(fileName(f.Incident)+".ndjson.gz"))
}

// word makes text one word of a shell's command line that means only itself. A quote becomes an underscore, so that nothing in a name can end
// the word or be run.
func word(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || bidi(r) || r == '\'' {
			return '_'
		}
		return r
	}, text)
	safe := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._:@%+=-", r)
	}
	if text != "" && text[0] != '-' && strings.IndexFunc(text, func(r rune) bool { return !safe(r) }) < 0 {
		return text
	}
	return "'" + text + "'"
}

// Flag is a flag with its value, as a command line takes it.
func Flag(name, value string) string { return "--" + name + " " + word(value) }

// fileName is text as a name in a folder.
func fileName(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, clip(text, 64))
}
