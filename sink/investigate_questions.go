package sink

import (
	"strings"
	"time"
)

// investigation is a question with its answer: a view of the store that takes parameters. Its SQL stands in schema/.
type investigation struct {
	name     string
	view     string
	question string        // one line
	needs    []string      // one of these must be given
	may      []string      // these may be given; "" means any
	window   time.Duration // default of since; 0: the view takes no time
	columns  string        // what a person sees; "" is all of them, as with --json
	shown    string        // arguments of the example
}

const day = 24 * time.Hour

// ofWorkers are the parameters of a view that may look at many workers.
var ofWorkers = []string{"worker", "slot", "host", "release"}

// investigations are the saved questions, in the order in which an investigator asks them.
var investigations = []investigation{
	{name: "growth-by-release", view: "growth_by_release", question: "Which release grows at its quiet points, how fast, per abort, and since when?",
		may: ofWorkers, window: day, shown: "--since 24h",
		columns: "release, model, workers, rising, live_bytes_per_hour, live_bytes_per_abort, outside_bytes_per_hour, quiet_points, onset, incidents"},
	{name: "peers", view: "peers", question: "What do the workers of the same model look like beside this one: who grows, who does not?",
		needs: []string{"worker", "slot"}, window: day, shown: "--worker h200-a",
		columns: "slot, release, asked, trend, live_bytes_per_hour, outside_bytes_per_hour, live_bytes_per_abort, requests_per_hour, quiet_points"},
	{name: "quiet-points", view: "quiet_points", question: "What stayed behind each time this worker had drained?",
		needs: []string{"worker", "slot"}, may: []string{"host", "release"}, window: day, shown: "--worker h200-a",
		columns: "time, slot, live_bytes, live_step_bytes, outside_bytes, cached_bytes, anon_bytes, kv_usage, finished_total, aborted_total, warming"},
	{name: "per-abort", view: "per_abort", question: "Does memory follow aborts, requests, or only time?",
		may: ofWorkers, window: day, shown: "--worker h200-a",
		columns: "slot, release, trend, follows, live_bytes_per_abort, abort_fit_ratio, live_bytes_per_request, request_fit_ratio, fit_ratio, aborts, requests"},
	{name: "oom", view: "oom_neighbours", question: "Who was on the card ten minutes before, at and after each OOM?",
		may: []string{"worker", "slot", "host"}, window: 7 * day, shown: "--host h200-a",
		columns: "oom_time, kind, requested_bytes, slot, failed, before_bytes, at_bytes, after_bytes, change_bytes, live_bytes, running"},
	{name: "oom-minutes", view: "oom_minutes", question: "What did a worker do minute by minute from ten minutes before its OOMs to ten after?",
		needs: []string{"worker", "slot"}, may: []string{"host"}, window: 7 * day, shown: "--worker h200-a"},
	{name: "first-xid", view: "first_xid", question: "Which Xid came first on each card, what followed, and who died within ten minutes?",
		may: []string{"host"}, window: 7 * day, shown: "--since 7d"},
	{name: "orphans", view: "orphan_memory", question: "Which cards hold memory of no living process, how much, and who was the last to leave?",
		may: []string{"host"}, window: day, shown: "--since 24h"},
	{name: "card-budget", view: "card_budget", question: "Where does the memory of a card go: driver, each worker's parts, orphans, free?",
		may: []string{"host"}, window: time.Hour, shown: "--host h200-a",
		columns: "host, gpu, part, slot, part_bytes, share_ratio, time"},
	{name: "kv-ttft", view: "kv_ttft", question: "How does the time to first token follow the KV cache's use?",
		needs: []string{"worker", "slot"}, may: []string{"host", "release"}, window: day, shown: "--worker h200-a"},
	{name: "stacks", view: "snapshot_stacks", question: "Which lines of code hold a worker's memory, snapshot by snapshot?",
		needs: []string{"worker", "slot"}, window: 7 * day, shown: "--worker h200-a",
		columns: "time, slot, reason, stack_bytes, change_bytes, blocks, frames"},
	{name: "holders", view: "incident_holders", question: "Who holds the memory of an incident, as its last card says?",
		needs: []string{"incident"}, shown: "--incident af82",
		columns: "class, state, slot, stack_bytes, growth_bytes, blocks, frames"},
	{name: "incident", view: "incident_timeline", question: "What happened to an incident, and around it on its host, in order?",
		needs: []string{"incident"}, shown: "--incident af82"},
	{name: "before", view: "before_incident", question: "What did the worker of an incident look like an hour before it was first called?",
		needs: []string{"incident"}, shown: "--incident af82", columns: "measure, hour_before, at_first, change, unit, slot"},
	{name: "incidents-by-week", view: "incidents_by_week", question: "How many incidents of each class came in each week, and how many paged?",
		may: []string{"host", "release"}, window: 90 * day, shown: "--since 90d"},
	{name: "noisy-rules", view: "noisy_rules", question: "Which rules speak most, and how often without being confirmed?",
		window: 30 * day, shown: "--since 30d"},
	{name: "ends", view: "worker_ends", question: "Which workers ended, by whom, with which signal, and had they said goodbye?",
		may: []string{"worker", "slot", "host", "release"}, window: 7 * day, shown: "--since 7d"},
	{name: "sources", view: "source_health", question: "Which sensors and probes are lost, denied or silent, and since when?",
		may: []string{"host"}, window: day, shown: "--since 24h"},
}

// takes are the flags of the question.
func (i investigation) takes() []string {
	out := append(append([]string{}, i.needs...), i.may...)
	if i.window > 0 {
		out = append(out, "since", "until")
	}
	return out
}

// query calls the view for the columns; every value is a parameter.
func (i investigation) query(columns string) string {
	if columns == "" {
		columns = "*"
	}
	var arguments []string
	for _, name := range i.takes() {
		kind := "String"
		if name == "since" || name == "until" {
			kind = "DateTime64(3, 'UTC')"
		}
		arguments = append(arguments, name+" = {"+name+":"+kind+"}")
	}
	return "SELECT " + columns + " FROM " + i.view + "(" + strings.Join(arguments, ", ") + ") LIMIT {rows:UInt64}"
}

func (i investigation) example() string {
	return "lowtide investigate " + i.name + " " + i.shown
}
