package variable

// series describes one of the series that a verdict is built on.
type series struct {
	name, unit, sensor, doc, example string
}

func allSeries() []series {
	return []series{
		{"live", "bytes", "allocator", "live tensors (allocated)", "44 * GiB"},
		{"awaiting", "bytes", "allocator", "freed blocks that wait on other streams", "64 * MiB"},
		{"cached", "bytes", "allocator", "memory that the allocator caches or fragments", "18 * GiB"},
		{"inactive_split", "bytes", "allocator", "unused parts of segments in use", "2 * GiB"},
		{"outside", "bytes", "gpu_process", "process memory outside what PyTorch reserves", "6 * GiB"},
		{"orphan", "bytes", "gpu", "device memory of dead or invisible processes", "0.0"},
		{"kv", "ratio", "engine", "KV blocks held, as a part of the pool", "0.42"},
		{"anon", "bytes", "process", "anonymous host memory", "9 * GiB"},
		{"pinned", "bytes", "process", "page-locked host memory", "512 * MiB"},
		{"fds", "1", "process", "open file descriptors", "812.0"},
		{"threads", "1", "process", "threads", "96.0"},
		{"sockets", "1", "process", "sockets in CLOSE_WAIT", "3.0"},
		{"graphs", "bytes", "allocator.private_pool_bytes", "private pools of CUDA graphs", "600 * MiB"},
	}
}

func number(name, unit, sensor, doc, example string) Variable {
	return Variable{Name: name, Kind: Number, Unit: unit, Sensor: sensor, Doc: doc, Example: example, AtMostOne: unit == "ratio" && !multiples[name]}
}

// multiples are the ratios that are no parts of a whole.
var multiples = map[string]bool{"demand.ratio": true, "oom.size": true, "oom.part": true, "cgroup.ratio": true, "headroom.ratio": true}

func flag(name, sensor, doc string) Variable {
	return Variable{Name: name, Kind: Bool, Sensor: sensor, Doc: doc, Example: "true"}
}

func text(name, sensor, doc, example string) Variable {
	return Variable{Name: name, Kind: String, Sensor: sensor, Doc: doc, Example: example}
}

// per appends a divisor to a unit: a count per hour is 1/h.
func per(unit, of string) string { return unit + "/" + of }

func (s series) variables() []Variable {
	level := "level_bytes"
	switch s.unit {
	case "1":
		level = "level_count"
	case "ratio":
		level = "level_ratio"
	}
	n, hour := s.name+".", per(s.unit, "h")
	slopes := [3]string{"64 * MiB", "48 * MiB", "80 * MiB"}
	each := "8 * MiB"
	switch s.unit {
	case "1":
		slopes, each = [3]string{"12.0", "9.0", "15.0"}, "0.2"
	case "ratio":
		slopes, each = [3]string{"0.02", "0.01", "0.03"}, "0.001"
	}
	out := []Variable{
		number(n+"now", s.unit, s.sensor, "newest value of "+s.doc, s.example),
		number(n+level, s.unit, s.sensor, "newest quiet level of "+s.doc, s.example),
		number(n+"growth", hour, s.sensor, "slope of the quiet levels of "+s.doc+", per hour", slopes[0]),
		number(n+"growth_low", hour, s.sensor, "lower 95 % bound of that slope", slopes[1]),
		number(n+"growth_high", hour, s.sensor, "upper 95 % bound of that slope", slopes[2]),
		number(n+"z", "1", s.sensor, "Mann–Kendall z of the quiet levels, corrected for serial correlation", "3.0"),
		flag(n+"early", s.sensor, "the early call: every comparable quiet point rises"),
		flag(n+"steady", s.sensor, "the steady call: the trend is significant though noisy or slow"),
		flag(n+"level", s.sensor, "growth has ended: the last third rises less than 0.6 of the mean"),
		flag(n+"filling", s.sensor, "growth inside warm-up or a declared cache"),
		flag(n+"step", s.sensor, "one jump, then level"),
	}
	for _, work := range []string{"request", "abort", "error", "token", "adapter"} {
		out = append(out, number(n+"per_"+work, per(s.unit, work), s.sensor, "slope against "+work+"s; unknown when not significant", each))
	}
	return append(out,
		number(n+"hours_to_limit", "hours", s.sensor, "forecast until the limit, a risk indicator", "8.0"),
		number(n+"hours_to_limit_low", "hours", s.sensor, "lower bound of the forecast", "6.0"),
		number(n+"hours_to_limit_high", "hours", s.sensor, "upper bound of the forecast", "12.0"))
}

func declare() []Variable {
	var all []Variable
	for _, s := range allSeries() {
		all = append(all, s.variables()...)
	}
	all = append(all,
		number("quiet.count", "1", "engine", "comparable quiet points since warm-up", "4.0"),
		number("quiet.hours", "hours", "engine", "from the first to the last of them", "3.0"),
		flag("quiet.matched", "engine", "levels are residuals at matched load, because the worker never drains"),
		flag("quiet.inferred", "engine", "quiet was inferred from utilisation, not seen"),
		number("kv.quiet", "ratio", "engine", "KV held at the last two quiet points, the lower", "0.0"),
		flag("kv.may_evict", "engine.kv_evictable", "held blocks may be evictable ones; unknown when the engine does not tell them apart"),
		number("awaiting.quiet", "bytes", "allocator", "awaiting at the last two quiet points, the lower", "0.0"),

		number("headroom.ratio", "ratio", "allocator", "headroom as a part of the limit", "0.2"),
		number("headroom.bytes", "bytes", "allocator", "limit − (reserved peak + outside)", "8 * GiB"),
		number("headroom.spare_bytes", "bytes", "allocator", "headroom beyond a reserve of a tenth of the limit: what the KV pool may grow by", "2 * GiB"),
		number("headroom.limit_bytes", "bytes", "allocator", "the smallest limit that is known", "78 * GiB"),
		number("prefill.peak_bytes", "bytes", "allocator", "rise of the peak in ticks where prompt tokens moved", "2 * GiB"),
		number("decode.peak_bytes", "bytes", "allocator", "rise of the peak in ticks where only generation tokens moved", "256 * MiB"),
		number("demand.ratio", "ratio", "engine", "arrivals × tokens against the worker's own baseline", "1.0"),
		number("demand.waiting_growth", "1/h", "engine", "slope of the waiting requests per hour", "0.0"),

		flag("load.rising", "engine", "more runs than a quarter of an hour ago, so that more memory in use says nothing"),
		number("kv.busy", "ratio", "engine", "KV blocks held, newest value, under load", "0.9"),
		number("waiting.now", "1", "engine", "requests that wait", "0.0"),
		number("running.now", "1", "engine", "requests that run", "8.0"),
		flag("kv.full", "engine", "kv at or above 0.9 in at least half of the samples of the last 30 minutes"),
		flag("queue.held", "engine", "something waited while something ran in at least half of the samples of the last 30 minutes"),
		number("queue.seconds", "seconds", "engine", "what a request waits for its turn at the rate at which requests finish, over the last half hour (Little's law)", "2.0"),
		number("preemptions.hour", "1", "engine", "preemptions in the last hour", "0.0"),
		number("preemptions.per_request", "1", "engine", "preemptions for each finished request, over the last half hour", "0.05"),
		number("retries.hour", "1", "allocator", "times in the last hour that the allocator flushed its cache to find room", "0.0"),
		number("split.ratio", "ratio", "allocator", "unused parts of segments in use, of what is reserved", "0.1"),
		number("still.seconds", "seconds", "allocator", "while work is accepted and no token comes out: since what PyTorch holds or has counted, or the process's memory on the device, last moved", "0.0"),
		number("frozen.seconds", "seconds", "engine", "since any field of the engine's metrics moved", "5.0"),
		number("utilization.now", "ratio", "gpu", "utilisation of the busiest of the worker's GPUs, or of the card", "0.8"),
		flag("device.idle", "gpu", "utilisation was at most 0.02 in every sample since the last progress, three at least"),
		flag("device.spinning", "gpu", "utilisation was at least 0.98 in every sample since the last progress, three at least"),
		flag("grew.before_oom", "allocator", "live, outside or anon was called or rising before the last OOM, and live memory was two thirds of the limit or more, where that is known"),
	)
	for _, s := range [][3]string{
		{"oom", "oom", "an allocation failed"},
		{"latency", "engine", "latency broke the worker's own load-matched baseline"},
		{"slo", "engine", "the share of requests inside the objective fell"},
		{"preemption", "engine", "a preemption storm"},
		{"restart", "lifecycle", "the process was started again"},
		{"device", "xid", "the device reported a fault"},
		{"kill", "lifecycle", "the process was ended from outside"},
		{"stalled", "engine", "work is accepted and no token comes out"},
	} {
		all = append(all, flag("symptom."+s[0], s[1], s[2]+"; true for `pair` after it"))
	}
	all = append(all, text("oom.kind", "oom", "kind of the last OOM: cuda, kernel, cgroup, engine", `"cuda"`))
	for _, s := range [][2]string{
		{"requested_bytes", "what the failed allocation asked for"},
		{"free_bytes", "free on the device at the failure"},
		{"limit_bytes", "the limit that held"},
		{"allocated_bytes", "live at the failure"},
		{"reserved_unallocated_bytes", "reserved but not allocated at the failure"},
		{"private_pool_free_bytes", "free inside private pools at the failure"},
		{"other_processes_bytes", "memory of other processes at the failure"},
	} {
		all = append(all, number("oom."+s[0], "bytes", "oom", s[1], "2 * GiB"))
	}
	all = append(all,
		flag("oom.before_ready", "oom", "the last OOM came before the engine was ready, or in the first ten minutes of a process without an engine"),
		flag("oom.fits_without_others", "oom", "what the last OOM asked for would have fitted had other processes held nothing; their memory is the larger part of what was missing"),
		flag("oom.of_device", "oom", "the last OOM was the device's or its allocator's, not the host's (kernel, cgroup)"),
		flag("oom.room_in_total", "oom", "the last OOM asked for no more than was free and loose together, under every cap, though not for less than was free in one piece"),
		flag("oom.room_deduced", "oom", "that room is deduced: the last OOM does not say what was loose, but the card would have given it and more than the cap allows, and live memory was under the cap"),
		number("oom.age_seconds", "seconds", "oom", "since the last OOM, in whole minutes", "60.0"),
		number("oom.part", "ratio", "oom", "what the last OOM asked for, of the limit; without one, of all that PyTorch held and the card had free", "0.02"),
		number("oom.size", "ratio", "oom", "what the last OOM asked for, of what was live", "0.1"),
		number("capacity.asked_bytes", "bytes", "config", "weights, KV pool, graph pools and declared caches on the card, as configured", "70 * GiB"),
		number("capacity.limit_bytes", "bytes", "config", "what the card or gpu_memory_utilization leaves for them", "72 * GiB"),
		number("capacity.spare_ratio", "ratio", "config", "part of each card that gpu_memory_utilization leaves, for peaks and for all that is not planned for", "0.1"),
		number("capacity.host_asked_bytes", "bytes", "config", "declared caches in host memory", "24 * GiB"),
		number("capacity.host_limit_bytes", "bytes", "process", "the cgroup's limit", "6 * GiB"),
		number("cgroup.ratio", "ratio", "process", "memory of the cgroup, of its limit", "0.6"),
		number("imminent.growth", "bytes/h", "allocator", "slope of what cannot be given back (live, awaiting, outside) over the last dozen minutes", "0.0"),
		number("imminent.hours_low", "hours", "allocator", "lower bound of the time until it reaches the limit; unknown while it does not rise in a line", "0.3"),
		number("imminent.hours_high", "hours", "allocator", "upper bound of that time", "0.8"),
		number("imminent.host_hours_low", "hours", "process", "the same of anonymous host memory against the cgroup's limit, lower bound", "0.3"),
		number("imminent.host_hours_high", "hours", "process", "its upper bound", "0.8"))
	all = append(all, number("oom.count", "1", "oom", "OOMs within the rule's `pair`, one hour unless said otherwise", "1.0"))
	for _, s := range [][2]string{
		{"reserved_bytes", "reserved"}, {"live_bytes", "live"}, {"pending_bytes", "waiting on streams"}, {"free_bytes", "free inside segments"},
		{"largest_free_bytes", "the largest free block"}, {"releasable_bytes", "in wholly free segments"},
	} {
		all = append(all, number("snapshot."+s[0], "bytes", "snapshot", s[1]+", in the last snapshot of this epoch", "1 * GiB"))
	}
	all = append(all,
		number("snapshot.fragmentation", "ratio", "snapshot", "1 − largest / free, in the last snapshot of this epoch", "0.3"),
		number("snapshot.private_free_bytes", "bytes", "snapshot", "free in private pools (CUDA graphs, MemPool), which eager code cannot use", "200 * MiB"),
		number("snapshot.private_bytes", "bytes", "snapshot", "reserved in private pools", "800 * MiB"),
		number("snapshot.private_growth", "bytes/h", "snapshot", "growth of that since an earlier snapshot of this epoch, at least five minutes before", "0.0"),
		number("snapshot.stuck_bytes", "bytes", "snapshot", "free outside private pools, in segments that live blocks hold, so that it is not given back", "1 * GiB"),
		number("snapshot.hole_bytes", "bytes", "snapshot", "the largest free block outside private pools", "128 * MiB"),
		number("snapshot.waste_bytes", "bytes", "snapshot", "of live blocks, above what was asked for", "16 * MiB"),
		number("snapshot.stack_bytes", "bytes", "snapshot", "live memory of the largest stack that is known; only what was allocated while history was recorded has one", "2 * GiB"),
		text("snapshot.stack", "snapshot", "where that was allocated; unknown once snapshot.grower is known, which tells more", `"worker.py:91 alloc, from worker.py:153 serve"`),
		number("snapshot.stack_growth", "bytes", "snapshot", "largest growth of one stack since an earlier snapshot of the process", "240 * MiB"),
		text("snapshot.grower", "snapshot", "where that was allocated", `"worker.py:91 alloc, from worker.py:153 serve"`),
		number("snapshot.stack_share", "ratio", "snapshot", "part of it in what the stacks grew by that are told", "0.9"),
		number("snapshot.growth_seconds", "seconds", "snapshot", "since that earlier snapshot", "600.0"),
		number("snapshot.grad_tensors", "1", "snapshot", "live CUDA tensors with a grad_fn, by the census", "0.0"),
		number("snapshot.grad_bytes", "bytes", "snapshot", "memory of those", "0.0"),
		number("snapshot.age_seconds", "seconds", "snapshot", "since the snapshot was taken, in whole minutes", "60.0"),
		number("snapshot.oom_bytes", "bytes", "snapshot", "what the last failed allocation in the snapshot's trace asked for", "2 * GiB"),
		number("snapshot.oom_largest_free_bytes", "bytes", "snapshot", "the allocator's largest free block at that moment", "128 * MiB"),
		flag("proof.work", "engine", "growth per abort or per request is significant"),
		flag("proof.peer", "engine", "peers of another release at the same load do not grow"),
		flag("proof.cap", "config", "every declared cap is exceeded"),
		flag("proof.restart", "lifecycle", "the same slope came back after a restart"),
		flag("graphs.moved", "allocator", "CUDA-graph pools moved between the quiet points"),
		flag("adapters.moved", "engine", "the loaded adapters changed between the quiet points"),
		flag("compiles.moved", "allocator", "something was compiled between the quiet points"),
		flag("prompts.moved", "engine", "prompt lengths moved between the quiet points"),
		flag("kv.moved", "engine", "KV usage moved between the quiet points"),
		flag("pools.moved", "allocator", "allocator pools moved between the quiet points"),
		number("xid.first", "1", "xid", "first Xid code of this epoch", "79.0"),
		flag("xid.application", "xid", "that code blames the program (13, 31, 43 …)"),
		number("xid.last", "1", "xid", "newest Xid code of this epoch", "45.0"),
		number("xid.count", "1", "xid", "Xids in the last hour", "1.0"),
		number("ecc.uncorrected_delta", "1", "gpu", "uncorrected ECC errors of this epoch", "0.0"),
		number("ecc.corrected_delta", "1", "gpu", "corrected ECC errors of this epoch", "0.0"),
		flag("ecc.first", "gpu", "uncorrected ECC errors were counted before the first Xid of this epoch"),
		number("remap.rows_delta", "1", "gpu", "rows remapped in this epoch", "0.0"),
		flag("remap.pending", "gpu", "a row waits for a reset of the GPU to be remapped"),
		number("orphan.ratio", "ratio", "gpu", "memory of dead or invisible processes, of the card's", "0.0"),
		number("restarts.hour", "1", "lifecycle", "unclean restarts of the slot in the last hour, rollouts left out", "0.0"),
		number("kill.signal", "1", "lifecycle", "signal that ended the last process of the slot", "9.0"),
		text("kill.by", "lifecycle", "who sent it: kernel, cgroup, parent, unknown", `"cgroup"`),
		flag("kill.proven", "lifecycle", "the kernel, a cgroup or SIGKILL ended it, rather than a request to end"),
		number("kill.victim_bytes", "bytes", "process", "anonymous memory of the process that was ended, at its last reading", "11 * GiB"),
		number("kill.culprit_bytes", "bytes", "process", "anonymous memory of the watched process of that host that grew most", "90 * GiB"),
		flag("kill.by_growth", "process", "the process that was ended is the one that grew"),
		number("peers.same", "1", "engine", "other workers of the same model, role and release with enough quiet points to compare", "3.0"),
		number("peers.same_growing", "1", "engine", "those among them in which the same series grows", "0.0"),
		number("peers.other", "1", "engine", "workers of another release at a like load, with enough quiet points", "2.0"),
		number("peers.other_growing", "1", "engine", "those among them in which the same series grows", "0.0"),
		number("blind.seconds", "seconds", "source", "since the sensor was last well, of a host that is heard", "900.0"),
		text("blind.source", "source", "name of the sensor", `"nvml"`),
		text("blind.status", "source", "what it says of itself: lost, timeout", `"lost"`),
		number("quality.late", "1", "engine", "events of this epoch that came after their tick was judged", "0.0"),
		number("quality.gap_seconds", "seconds", "engine", "longest silence of this epoch", "60.0"),
		number("quality.resets", "1", "engine", "counters that fell within this epoch", "0.0"),
		flag("quality.accounting", "gpu_process", "process memory is below what PyTorch reserves: the accounting is broken"),
		number("progress.seconds", "seconds", "engine", "since the last token or finished request", "0.5"),
		number("age.hours", "hours", "lifecycle", "age of the process", "12.0"),
		text("engine", "config", "engine name", `"vllm"`),
		text("model", "config", "model name", `"llama-70b"`),
		text("release", "config", "release of the instance", `"2026.11.1"`),
		text("role", "config", "role of the instance: prefill, decode, …", `"decode"`),
		number("rank", "1", "config", "rank of the process in its instance", "0.0"),
		text("cluster", "config", "cluster of the host", `"eu-1"`),
		text("host", "config", "name of the host", `"gpu-17"`),
		Variable{Name: "labels", Kind: Labels, Sensor: "config", Doc: "labels that the configuration adds; the only map", Example: `{"team": "search"}`},
	)
	return all
}
