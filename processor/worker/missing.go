package worker

import "lowtide/rules/variable"

// needs are what a class cannot be judged without, in the order of the classes: all of the variables, or one of several.
var needs = []struct {
	class string
	all   []variable.ID
	one   []variable.ID
}{
	{class: "software_fault", all: variables("xid.application")},
	{class: "cotenant", one: variables("orphan.now", "oom.other_processes_bytes")},
	{class: "retention", all: variables("live.now")},
	{class: "native_growth", all: variables("outside.now")},
	{class: "graph_pools", one: variables("graphs.now", "snapshot.private_free_bytes")},
	{class: "stream_backlog", all: variables("awaiting.now")},
	{class: "fragmentation", one: variables("snapshot.fragmentation", "oom.requested_bytes")},
	{class: "oversize_request", all: variables("symptom.oom")},
	{class: "capacity", one: variables("capacity.asked_bytes", "capacity.host_asked_bytes", "oom.before_ready")},
	{class: "kv_block_leak", all: variables("kv.now")},
	{class: "kv_pressure", all: variables("kv.now")},
	{class: "pinned_memory", all: variables("pinned.now")},
	{class: "host_memory", all: variables("anon.now")},
	{class: "fd_leak", one: variables("fds.now", "sockets.now")},
	{class: "thread_leak", all: variables("threads.now")},
	{class: "external_kill", all: variables("symptom.kill")},
	{class: "stall", all: variables("progress.seconds", "utilization.now")},
	{class: "exhaustion", one: variables("headroom.limit_bytes", "capacity.host_limit_bytes")},
}

func variables(names ...string) (all []variable.ID) {
	for _, name := range names {
		all = append(all, variable.Must(name))
	}
	return all
}

// Missing returns the classes that this worker's sensors cannot settle, and the sensor that is missing.
func (w *Worker) Missing() map[string]string {
	w.show()
	out := make(map[string]string)
	for _, n := range needs {
		for _, id := range n.all {
			if !w.sample.Known(id) {
				out[n.class] = w.sensor(id)
				break
			}
		}
		known := len(n.one) == 0
		for _, id := range n.one {
			known = known || w.sample.Known(id)
		}
		if !known {
			out[n.class] = w.sensor(n.one[0])
		}
	}
	if w.now.engine == nil && len(w.quiet.Points) == 0 && !w.marks.Said {
		for _, i := range bySeries { // what a series holds is read, but nobody says when it should be empty
			if class := growthClass[i]; class != "" && out[class] == "" {
				out[class] = "engine"
			}
		}
	}
	return out
}

// growthClass is the class that a series is judged for.
var growthClass = [seriesCount]string{live: "retention", outside: "native_growth", graphs: "graph_pools", awaiting: "stream_backlog", anon: "host_memory",
	pinned: "pinned_memory", fds: "fd_leak", threads: "thread_leak"}

// sensor is the one that a variable lacks. What lies outside PyTorch needs two.
func (w *Worker) sensor(id variable.ID) string {
	if id == ids[outside].now {
		for i := range w.now.cards {
			if p := w.now.cards[i].process; p != nil && p.UsedBytes != nil {
				return "allocator"
			}
		}
	}
	return variable.All()[id].Sensor
}
