package event

// member reads the value of one member of an object.
type member[T any] struct {
	name string
	read func(d *decoder, at int, into *T) int
}

// order remembers which member followed which in the last object of its kind, counted from 1, so that 0 is before the first and
// after the last: whoever writes objects writes the next one in the same order. It has room for objects of 63 members.
type order [64]uint8

type orders struct {
	host, worker, gpu, gpuProcess, allocator, engine, process, machine, source order
}

// object reads an object that has only these members, at least one.
func object[T any](d *decoder, at int, into *T, members []member[T], follows *order) int {
	text, last := d.text, 0
	if at = take(text, at, '{'); at < 0 {
		return odd
	}
	for {
		guess := int(follows[last])
		if guess > 0 && starts(text, at, members[guess-1].name) {
			at += len(members[guess-1].name) + len(`"":`)
		} else {
			if guess, at = find(text, at, members, last); at < 0 {
				return odd
			}
			follows[last] = uint8(guess)
		}
		if at = members[guess-1].read(d, at, into); at < 0 {
			return odd
		}
		if at >= len(text) || text[at] != ',' {
			if at = skip(text, at); at >= len(text) || text[at] != ',' {
				return take(text, at, '}')
			}
		}
		at++
		last = guess
	}
}

// find looks for the member that comes next, first behind the last one. It returns its place, from 1, and the position of its value.
func find[T any](text []byte, at int, members []member[T], last int) (place, value int) {
	for i := range members {
		place = (last+i)%len(members) + 1
		if value = named(text, at, members[place-1].name); value >= 0 {
			return place, value
		}
	}
	return 0, odd
}

// Each of these reads the object of its name. A field that is missing here costs time, since the strict reader takes the line, but
// no correctness.

var hostMembers = []member[Host]{
	{"cluster", func(d *decoder, at int, h *Host) int { return d.string(at, &h.Cluster) }},
	{"name", func(d *decoder, at int, h *Host) int { return d.string(at, &h.Name) }},
	{"boot_id", func(d *decoder, at int, h *Host) int { return d.string(at, &h.BootId) }},
}

var workerMembers = []member[Worker]{
	{"pid", func(d *decoder, at int, w *Worker) int { return d.pid(at, &w.Pid) }},
	{"start_ticks", func(d *decoder, at int, w *Worker) int { return d.uint(at, &w.StartTicks) }},
	{"start_time", func(d *decoder, at int, w *Worker) int { return d.time(at, &w.StartTime) }},
	{"role", func(d *decoder, at int, w *Worker) int { return d.string(at, &w.Role) }},
	{"rank", func(d *decoder, at int, w *Worker) int { return d.int(at, &w.Rank) }},
	{"gpu_uuids", func(d *decoder, at int, w *Worker) int { return d.strings(at, &w.GpuUuids) }},
	{"engine", func(d *decoder, at int, w *Worker) int { return d.string(at, &w.Engine) }},
	{"engine_index", func(d *decoder, at int, w *Worker) int { return d.int(at, &w.EngineIndex) }},
	{"unit", func(d *decoder, at int, w *Worker) int { return d.string(at, &w.Unit) }},
	{"model", func(d *decoder, at int, w *Worker) int { return d.string(at, &w.Model) }},
	{"release", func(d *decoder, at int, w *Worker) int { return d.string(at, &w.Release) }},
	{"pod", func(d *decoder, at int, w *Worker) int { return d.string(at, &w.Pod) }},
	{"container_id", func(d *decoder, at int, w *Worker) int { return d.string(at, &w.ContainerId) }},
}

var gpuMembers = []member[Gpu]{
	{"uuid", func(d *decoder, at int, g *Gpu) int { return d.string(at, &g.Uuid) }},
	{"index", func(d *decoder, at int, g *Gpu) int { return d.int(at, &g.Index) }},
	{"name", func(d *decoder, at int, g *Gpu) int { return d.string(at, &g.Name) }},
	{"total_bytes", func(d *decoder, at int, g *Gpu) int { return d.uint(at, &g.TotalBytes) }},
	{"used_bytes", func(d *decoder, at int, g *Gpu) int { return d.uint(at, &g.UsedBytes) }},
	{"free_bytes", func(d *decoder, at int, g *Gpu) int { return d.uint(at, &g.FreeBytes) }},
	{"driver_reserved_bytes", func(d *decoder, at int, g *Gpu) int { return d.uint(at, &g.DriverReservedBytes) }},
	{"processes_complete", func(d *decoder, at int, g *Gpu) int { return d.bool(at, &g.ProcessesComplete) }},
	{"power_watts", func(d *decoder, at int, g *Gpu) int { return d.float(at, &g.PowerWatts) }},
	{"temperature_celsius", func(d *decoder, at int, g *Gpu) int { return d.float(at, &g.TemperatureCelsius) }},
	{"utilization", func(d *decoder, at int, g *Gpu) int { return d.float(at, &g.Utilization) }},
	{"ecc_corrected_total", func(d *decoder, at int, g *Gpu) int { return d.uint(at, &g.EccCorrectedTotal) }},
	{"ecc_uncorrected_total", func(d *decoder, at int, g *Gpu) int { return d.uint(at, &g.EccUncorrectedTotal) }},
	{"remapped_rows", func(d *decoder, at int, g *Gpu) int { return d.uint(at, &g.RemappedRows) }},
	{"remap_pending", func(d *decoder, at int, g *Gpu) int { return d.bool(at, &g.RemapPending) }},
	{"mig", func(d *decoder, at int, g *Gpu) int { return d.string(at, &g.Mig) }},
}

var gpuProcessMembers = []member[GpuProcess]{
	{"gpu_uuid", func(d *decoder, at int, g *GpuProcess) int { return d.string(at, &g.GpuUuid) }},
	{"used_bytes", func(d *decoder, at int, g *GpuProcess) int { return d.uint(at, &g.UsedBytes) }},
}

var allocatorMembers = []member[Allocator]{
	{"gpu_uuid", func(d *decoder, at int, a *Allocator) int { return d.string(at, &a.GpuUuid) }},
	{"backend", func(d *decoder, at int, a *Allocator) int { return d.string(at, &a.Backend) }},
	{"expandable_segments", func(d *decoder, at int, a *Allocator) int { return d.bool(at, &a.ExpandableSegments) }},
	{"allocated_bytes", func(d *decoder, at int, a *Allocator) int { return d.uint(at, &a.AllocatedBytes) }},
	{"reserved_bytes", func(d *decoder, at int, a *Allocator) int { return d.uint(at, &a.ReservedBytes) }},
	{"active_bytes", func(d *decoder, at int, a *Allocator) int { return d.uint(at, &a.ActiveBytes) }},
	{"requested_bytes", func(d *decoder, at int, a *Allocator) int { return d.uint(at, &a.RequestedBytes) }},
	{"allocated_peak_bytes", func(d *decoder, at int, a *Allocator) int { return d.uint(at, &a.AllocatedPeakBytes) }},
	{"reserved_peak_bytes", func(d *decoder, at int, a *Allocator) int { return d.uint(at, &a.ReservedPeakBytes) }},
	{"limit_bytes", func(d *decoder, at int, a *Allocator) int { return d.uint(at, &a.LimitBytes) }},
	{"inactive_split_bytes", func(d *decoder, at int, a *Allocator) int { return d.uint(at, &a.InactiveSplitBytes) }},
	{"private_pool_bytes", func(d *decoder, at int, a *Allocator) int { return d.uint(at, &a.PrivatePoolBytes) }},
	{"graph_pools", func(d *decoder, at int, a *Allocator) int { return d.uint(at, &a.GraphPools) }},
	{"alloc_retries_total", func(d *decoder, at int, a *Allocator) int { return d.uint(at, &a.AllocRetriesTotal) }},
	{"ooms_total", func(d *decoder, at int, a *Allocator) int { return d.uint(at, &a.OomsTotal) }},
	{"device_allocs_total", func(d *decoder, at int, a *Allocator) int { return d.uint(at, &a.DeviceAllocsTotal) }},
	{"device_frees_total", func(d *decoder, at int, a *Allocator) int { return d.uint(at, &a.DeviceFreesTotal) }},
	{"segments", func(d *decoder, at int, a *Allocator) int { return d.uint(at, &a.Segments) }},
	{"pinned_allocated_bytes", func(d *decoder, at int, a *Allocator) int { return d.uint(at, &a.PinnedAllocatedBytes) }},
	{"pinned_active_bytes", func(d *decoder, at int, a *Allocator) int { return d.uint(at, &a.PinnedActiveBytes) }},
	{"compiles_total", func(d *decoder, at int, a *Allocator) int { return d.uint(at, &a.CompilesTotal) }},
}

var engineMembers = []member[Engine]{
	{"kv_usage", func(d *decoder, at int, e *Engine) int { return d.float(at, &e.KvUsage) }},
	{"kv_evictable", func(d *decoder, at int, e *Engine) int { return d.float(at, &e.KvEvictable) }},
	{"kv_blocks_total", func(d *decoder, at int, e *Engine) int { return d.uint(at, &e.KvBlocksTotal) }},
	{"kv_tokens_total", func(d *decoder, at int, e *Engine) int { return d.uint(at, &e.KvTokensTotal) }},
	{"running", func(d *decoder, at int, e *Engine) int { return d.uint(at, &e.Running) }},
	{"waiting", func(d *decoder, at int, e *Engine) int { return d.uint(at, &e.Waiting) }},
	{"preemptions_total", func(d *decoder, at int, e *Engine) int { return d.uint(at, &e.PreemptionsTotal) }},
	{"evicted_tokens_total", func(d *decoder, at int, e *Engine) int { return d.uint(at, &e.EvictedTokensTotal) }},
	{"finished_total", func(d *decoder, at int, e *Engine) int { return d.uint(at, &e.FinishedTotal) }},
	{"aborted_total", func(d *decoder, at int, e *Engine) int { return d.uint(at, &e.AbortedTotal) }},
	{"errors_total", func(d *decoder, at int, e *Engine) int { return d.uint(at, &e.ErrorsTotal) }},
	{"prompt_tokens_total", func(d *decoder, at int, e *Engine) int { return d.uint(at, &e.PromptTokensTotal) }},
	{"generation_tokens_total", func(d *decoder, at int, e *Engine) int { return d.uint(at, &e.GenerationTokensTotal) }},
	{"ttft_p50_seconds", func(d *decoder, at int, e *Engine) int { return d.float(at, &e.TtftP50Seconds) }},
	{"ttft_p95_seconds", func(d *decoder, at int, e *Engine) int { return d.float(at, &e.TtftP95Seconds) }},
	{"ttft_p99_seconds", func(d *decoder, at int, e *Engine) int { return d.float(at, &e.TtftP99Seconds) }},
	{"itl_p50_seconds", func(d *decoder, at int, e *Engine) int { return d.float(at, &e.ItlP50Seconds) }},
	{"itl_p95_seconds", func(d *decoder, at int, e *Engine) int { return d.float(at, &e.ItlP95Seconds) }},
	{"itl_p99_seconds", func(d *decoder, at int, e *Engine) int { return d.float(at, &e.ItlP99Seconds) }},
	{"e2e_p95_seconds", func(d *decoder, at int, e *Engine) int { return d.float(at, &e.E2EP95Seconds) }},
	{"slo_ok_total", func(d *decoder, at int, e *Engine) int { return d.uint(at, &e.SloOkTotal) }},
	{"slo_total", func(d *decoder, at int, e *Engine) int { return d.uint(at, &e.SloTotal) }},
	{"prompt_tokens_p95", func(d *decoder, at int, e *Engine) int { return d.float(at, &e.PromptTokensP95) }},
	{"output_tokens_p95", func(d *decoder, at int, e *Engine) int { return d.float(at, &e.OutputTokensP95) }},
	{"sleeping", func(d *decoder, at int, e *Engine) int { return d.bool(at, &e.Sleeping) }},
	{"loaded_adapters", func(d *decoder, at int, e *Engine) int { return d.uint(at, &e.LoadedAdapters) }},
	{"prefix_cache_hit_ratio", func(d *decoder, at int, e *Engine) int { return d.float(at, &e.PrefixCacheHitRatio) }},
}

var processMembers = []member[Process]{
	{"rss_bytes", func(d *decoder, at int, p *Process) int { return d.uint(at, &p.RssBytes) }},
	{"anon_bytes", func(d *decoder, at int, p *Process) int { return d.uint(at, &p.AnonBytes) }},
	{"swap_bytes", func(d *decoder, at int, p *Process) int { return d.uint(at, &p.SwapBytes) }},
	{"shmem_bytes", func(d *decoder, at int, p *Process) int { return d.uint(at, &p.ShmemBytes) }},
	{"pinned_kernel_bytes", func(d *decoder, at int, p *Process) int { return d.uint(at, &p.PinnedKernelBytes) }},
	{"fds", func(d *decoder, at int, p *Process) int { return d.uint(at, &p.Fds) }},
	{"fds_limit", func(d *decoder, at int, p *Process) int { return d.uint(at, &p.FdsLimit) }},
	{"sockets_close_wait", func(d *decoder, at int, p *Process) int { return d.uint(at, &p.SocketsCloseWait) }},
	{"threads", func(d *decoder, at int, p *Process) int { return d.uint(at, &p.Threads) }},
	{"cpu_seconds_total", func(d *decoder, at int, p *Process) int { return d.float(at, &p.CpuSecondsTotal) }},
	{"cgroup_bytes", func(d *decoder, at int, p *Process) int { return d.uint(at, &p.CgroupBytes) }},
	{"cgroup_limit_bytes", func(d *decoder, at int, p *Process) int { return d.uint(at, &p.CgroupLimitBytes) }},
}

var machineMembers = []member[Machine]{
	{"memory_total_bytes", func(d *decoder, at int, m *Machine) int { return d.uint(at, &m.MemoryTotalBytes) }},
	{"memory_available_bytes", func(d *decoder, at int, m *Machine) int { return d.uint(at, &m.MemoryAvailableBytes) }},
	{"fds", func(d *decoder, at int, m *Machine) int { return d.uint(at, &m.Fds) }},
	{"fds_limit", func(d *decoder, at int, m *Machine) int { return d.uint(at, &m.FdsLimit) }},
	{"driver_version", func(d *decoder, at int, m *Machine) int { return d.string(at, &m.DriverVersion) }},
	{"kernel_version", func(d *decoder, at int, m *Machine) int { return d.string(at, &m.KernelVersion) }},
}

var sourceStatusMembers = []member[SourceStatus]{
	{"name", func(d *decoder, at int, s *SourceStatus) int { return d.string(at, &s.Name) }},
	{"status", func(d *decoder, at int, s *SourceStatus) int { return d.string(at, &s.Status) }},
	{"error", func(d *decoder, at int, s *SourceStatus) int { return d.string(at, &s.Error) }},
	{"took_seconds", func(d *decoder, at int, s *SourceStatus) int { return d.float(at, &s.TookSeconds) }},
}
