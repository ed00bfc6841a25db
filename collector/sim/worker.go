package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// Kind is what a simulated worker has.
type Kind uint8

// The kinds of worker.
const (
	Healthy   Kind = iota // load in bursts that drain; memory comes back to where it was
	Leaking               // the same load; every aborted request keeps 24 MiB of tensors
	KVPressed             // more work than the KV pool holds: it never drains, queues and preempts
)

// String names the kind as the model of its workers does.
func (k Kind) String() string {
	return [...]string{"healthy", "leaking", "kv-pressed"}[k]
}

const (
	mib = uint64(1 << 20)
	gib = uint64(1 << 30)

	cardBytes     = 80 * gib
	reservedBytes = 512 * mib // by the driver
	weightBytes   = 16 * gib  // weights and KV pool: what is live at rest
	limitBytes    = 64 * gib  // of the allocator
	outsideBytes  = 600 * mib // CUDA context
	abortBytes    = 24 * mib  // kept per aborted request by a leaking worker
	requestBytes  = 40 * mib  // of activations per running request
	blocks        = 4096      // of the KV pool
	cycle         = 10 * time.Minute
	busy          = 7 * time.Minute // of each cycle; then the worker drains
	finishSeconds = 20.0            // of one request
)

// worker is the state of one simulated process. Every draw is from its own generator, so that workers do not depend on the order
// in which they are asked.
type worker struct {
	kind     Kind
	identity *event.Worker
	index    int64
	start    time.Time
	draw     *rand.Rand

	reserved, peak              uint64
	kept                        uint64 // by the leak
	finished, aborted, preempts uint64
	prompt, generated           uint64
	cpu                         float64
	deviceAllocs                uint64
}

func newWorker(seed uint64, number, index int, kind Kind, start time.Time) *worker {
	gpu := fmt.Sprintf("GPU-51310000-0000-4000-8000-%012d", number)
	return &worker{
		kind: kind, index: int64(index), start: start, draw: rand.New(rand.NewPCG(seed, uint64(number))),
		reserved: weightBytes + 256*mib, deviceAllocs: 40,
		identity: &event.Worker{
			Pid: int64(10000 + number), StartTicks: event.Ptr(uint64(1000 + number)), StartTime: timestamppb.New(start), Role: "worker",
			Rank: event.Ptr(int64(0)), GpuUuids: []string{gpu}, Engine: "vllm", EngineIndex: event.Ptr(int64(0)),
			Unit: fmt.Sprintf("sim-%d", index), Model: "sim-" + kind.String(), Release: "sim-a",
		},
	}
}

// load returns how much runs and waits at a time since the start.
func (w *worker) load(since time.Duration) (running, waiting uint64) {
	if w.kind == KVPressed {
		// Full after a quarter of an hour; then a queue that moves but never empties.
		full := min(1, float64(since)/float64(15*time.Minute))
		running = 8 + uint64(40*full) + w.draw.Uint64N(4)
		if full == 1 {
			waiting = 6 + w.draw.Uint64N(12)
		}
		return running, waiting
	}
	if since%cycle < busy {
		return 6 + w.draw.Uint64N(10), 0
	}
	w.draw.Uint64N(10) // the same number of draws whatever the load
	return 0, 0
}

// step moves the worker on and returns its five events.
func (w *worker) step(host *event.Host, at time.Time, step time.Duration) []*event.Event {
	since := at.Sub(w.start)
	running, waiting := w.load(since)
	seconds := step.Seconds()
	done := uint64(float64(running) * seconds / finishSeconds * (0.9 + 0.2*w.draw.Float64()))
	aborted := uint64(0)
	for range done {
		if w.draw.Float64() < 0.04 {
			aborted++
		}
	}
	w.finished += done - aborted
	w.aborted += aborted
	w.prompt += done * 512
	w.generated += running * uint64(25*seconds)
	w.cpu += seconds * (0.05 + 0.02*float64(running))
	usage := 0.018 * float64(running)
	if w.kind == KVPressed {
		if usage = 0.02 * float64(running); waiting > 0 {
			usage = 0.96 + 0.04*w.draw.Float64()
			w.preempts += 1 + w.draw.Uint64N(3)
		}
	}
	if w.kind == Leaking {
		w.kept += aborted * abortBytes
	}
	allocated := min(weightBytes+w.kept+running*requestBytes, limitBytes)
	if grow := allocated + allocated/100; grow > w.reserved {
		w.deviceAllocs += (grow - w.reserved) / (20 * mib)
		w.reserved = min(grow, limitBytes) // a caching allocator gives nothing back by itself
	}
	w.peak = max(w.peak, allocated)
	return w.events(host, at, running, waiting, usage, allocated)
}

func (w *worker) events(host *event.Host, at time.Time, running, waiting uint64, usage float64, allocated uint64) []*event.Event {
	stamp, gpu := timestamppb.New(at), w.identity.GpuUuids[0]
	process := w.reserved + outsideBytes
	latency := 0.08 + 0.01*float64(running)
	if waiting > 0 {
		latency += 0.4 * float64(waiting)
	}
	of := func(e *event.Event) *event.Event {
		e.Time, e.Host, e.Worker = stamp, host, w.identity
		return e
	}
	return []*event.Event{
		{Time: stamp, Host: host, Gpu: &event.Gpu{
			Uuid: gpu, Index: event.Ptr(w.index), Name: "Simulated 80 GB", TotalBytes: event.Ptr(cardBytes), UsedBytes: event.Ptr(process),
			FreeBytes: event.Ptr(cardBytes - reservedBytes - process), DriverReservedBytes: event.Ptr(reservedBytes), ProcessesComplete: event.Ptr(true),
			PowerWatts: event.Ptr(90 + 12*float64(running)), TemperatureCelsius: event.Ptr(35 + float64(running)/2),
			Utilization: event.Ptr(min(1, float64(running)/12)), EccUncorrectedTotal: event.Ptr(uint64(0)),
		}},
		of(&event.Event{GpuProcess: &event.GpuProcess{GpuUuid: gpu, UsedBytes: event.Ptr(process)}}),
		of(&event.Event{Allocator: &event.Allocator{
			GpuUuid: gpu, Backend: "native", ExpandableSegments: event.Ptr(false), AllocatedBytes: event.Ptr(allocated), ReservedBytes: event.Ptr(w.reserved),
			ActiveBytes: event.Ptr(allocated), RequestedBytes: event.Ptr(allocated - allocated/500), AllocatedPeakBytes: event.Ptr(w.peak),
			ReservedPeakBytes: event.Ptr(w.reserved), LimitBytes: event.Ptr(limitBytes), InactiveSplitBytes: event.Ptr((w.reserved - allocated) / 8),
			AllocRetriesTotal: event.Ptr(uint64(0)), OomsTotal: event.Ptr(uint64(0)), DeviceAllocsTotal: event.Ptr(w.deviceAllocs),
			DeviceFreesTotal: event.Ptr(uint64(0)), Segments: event.Ptr(w.deviceAllocs), PinnedAllocatedBytes: event.Ptr(64 * mib),
			PinnedActiveBytes: event.Ptr(64 * mib), PrivatePoolBytes: event.Ptr(uint64(0)), CompilesTotal: event.Ptr(uint64(3)),
		}}),
		of(&event.Event{Engine: &event.Engine{
			KvUsage: event.Ptr(min(1, usage)), KvBlocksTotal: event.Ptr(uint64(blocks)), Running: event.Ptr(running), Waiting: event.Ptr(waiting),
			PreemptionsTotal: event.Ptr(w.preempts), FinishedTotal: event.Ptr(w.finished), AbortedTotal: event.Ptr(w.aborted),
			ErrorsTotal: event.Ptr(uint64(0)), PromptTokensTotal: event.Ptr(w.prompt), GenerationTokensTotal: event.Ptr(w.generated),
			TtftP95Seconds: event.Ptr(latency), ItlP95Seconds: event.Ptr(0.02 + 0.001*float64(running)), LoadedAdapters: event.Ptr(uint64(0)),
			Sleeping: event.Ptr(false),
		}}),
		of(&event.Event{Process: &event.Process{
			RssBytes: event.Ptr(4*gib + w.draw.Uint64N(2)*mib), AnonBytes: event.Ptr(3 * gib), SwapBytes: event.Ptr(uint64(0)), ShmemBytes: event.Ptr(256 * mib),
			PinnedKernelBytes: event.Ptr(uint64(0)), Fds: event.Ptr(120 + running), FdsLimit: event.Ptr(uint64(65536)), SocketsCloseWait: event.Ptr(uint64(0)),
			Threads: event.Ptr(uint64(48)), CpuSecondsTotal: event.Ptr(w.cpu),
		}}),
	}
}
