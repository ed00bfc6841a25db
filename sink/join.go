package sink

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
)

// Message is one decoded message of a stream. Exactly one of Batch, Finding and Refused is set.
type Message struct {
	Sequence uint64    // in the stream
	Time     time.Time // when the broker stored it
	Subject  string
	Batch    *event.Batch
	Finding  *event.Finding
	Refused  string // why it cannot be read
	Data     []byte // of a refused message
}

// Block is a run of messages of one seat that is inserted as a whole, or again with the same token.
type Block struct {
	Token    string // stream:seat:first-last; each table appends its name
	Number   uint64 // of the block: its samples carry it, by which the rollups tell what they have
	Messages []Message
}

// maxRefused is how much of a refused message is kept, in bytes.
const maxRefused = 4 << 10

// Join returns the rows of a block, table by table, in an order that depends on the block alone, since a retry must send the
// same rows in the same order. Samples of one worker, card and tick stand in one row, whichever source they came from. What
// belongs to the process rather than to a card (engine, process) stands on the row of the worker's first card, so that a sum
// over rows counts it once. Samples that come in another block make another partial row; the view `workers` merges them.
func Join(b Block) []Rows {
	j := newJoiner()
	j.number = b.Number
	for i := range b.Messages {
		m := &b.Messages[i]
		switch {
		case m.Finding != nil:
			j.finding(m)
		case m.Batch != nil:
			for _, e := range m.Batch.Events {
				j.event(m, e)
			}
		default:
			j.refuse(m, m.Time, m.Refused, m.Data)
		}
	}
	j.adoptCardless()
	tables := []Rows{
		j.workerRows(),
		j.gpuRows(),
		j.hostRows(),
		transposed(TableEvents, eventFields, j.events),
		transposed(TableFindings, findingFields, j.findings),
		transposed(TableIncidents, findingFields, j.incidents),
	}
	return slices.DeleteFunc(tables, func(r Rows) bool { return r.Count == 0 })
}

// joiner gathers which bodies stand in which row. The columns are made last, one after the other over all rows.
type joiner struct {
	number  uint64 // of the block
	homes   map[home]int
	last    *event.Host // and its number, since the events of a message share it
	lastOf  int
	series  map[life]int
	names   []identity     // by number of the series
	numbers map[string]int // of instances
	ranks   []int          // how many series an instance has
	workers map[place]int
	rows    []workerRow
	gpus    map[place]int
	cards   []gpuRow
	hosts   map[place]int
	boxes   []hostRow

	events, findings, incidents [][]any
}

type (
	// home is a boot of a host.
	home struct{ cluster, name, boot string }
	// life is what event.WorkerKey makes the key of a worker from, without making it.
	life struct {
		home  int
		pid   int64
		start uint64 // ticks, or seconds since 1970
		nanos int32
		by    byte // which of the two
	}
	// place is the key of a row: tick, series (or host), card.
	place struct {
		time int64
		of   int
		card string
	}
	// identity has the two keys of a worker, which are long, and of which slot may change within a life.
	identity struct {
		host     *event.Host
		key      string
		slot     string
		worker   *event.Worker // of which slot was made
		instance int
	}
	workerRow struct {
		place
		host      *event.Host
		worker    *event.Worker
		slot      string
		device    *event.GpuProcess
		allocator *event.Allocator
		engine    *event.Engine
		process   *event.Process
		bodies    uint16
	}
	gpuRow struct {
		place
		host *event.Host
		gpu  *event.Gpu
	}
	hostRow struct {
		place
		host    *event.Host
		machine *event.Machine
	}
)

func newJoiner() *joiner {
	return &joiner{homes: map[home]int{}, series: map[life]int{}, numbers: map[string]int{}, workers: map[place]int{}, gpus: map[place]int{}, hosts: map[place]int{}}
}

func (j *joiner) event(m *Message, e *event.Event) {
	at := e.At()
	if !storable(at) {
		j.refuse(m, m.Time, "time "+at.Format(time.RFC3339)+" is outside the years 1971 to 2100", nil)
		return
	}
	nanos := at.UnixNano()
	switch {
	case e.GpuProcess != nil:
		row := j.worker(nanos, e, cmp.Or(e.GpuProcess.GpuUuid, onlyCard(e.Worker)))
		row.device, row.bodies = merged(row.device, e.GpuProcess), row.bodies|bodyGpuProcess
		if e.GpuProcess.GpuUuid != "" {
			row.bodies |= namedByGpuProcess
		}
	case e.Allocator != nil:
		row := j.worker(nanos, e, cmp.Or(e.Allocator.GpuUuid, onlyCard(e.Worker)))
		row.allocator, row.bodies = merged(row.allocator, e.Allocator), row.bodies|bodyAllocator
		if e.Allocator.GpuUuid != "" {
			row.bodies |= namedByAllocator
		}
	case e.Engine != nil:
		row := j.worker(nanos, e, firstCard(e.Worker))
		row.engine, row.bodies = merged(row.engine, e.Engine), row.bodies|bodyEngine
	case e.Process != nil:
		row := j.worker(nanos, e, firstCard(e.Worker))
		row.process, row.bodies = merged(row.process, e.Process), row.bodies|bodyProcess
	case e.Gpu != nil:
		at := place{nanos, j.home(e.Host), e.Gpu.Uuid}
		n, ok := j.gpus[at]
		if !ok {
			n = len(j.cards)
			j.gpus[at] = n
			j.cards = append(j.cards, gpuRow{place: at, host: e.Host})
		}
		j.cards[n].gpu = merged(j.cards[n].gpu, e.Gpu)
	case e.Machine != nil:
		at := place{nanos, j.home(e.Host), ""}
		n, ok := j.hosts[at]
		if !ok {
			n = len(j.boxes)
			j.hosts[at] = n
			j.boxes = append(j.boxes, hostRow{place: at, host: e.Host})
		}
		j.boxes[n].machine = merged(j.boxes[n].machine, e.Machine)
	default:
		j.events = append(j.events, eventRow(m.Sequence, at, e))
	}
}

// merged is the later of two readings of one thing and tick, and what only the earlier one has. Both stay as they are.
func merged[M interface {
	comparable
	proto.Message
}](earlier, later M) M {
	var none M
	if earlier == none {
		return later
	}
	if later == none {
		return earlier
	}
	both := proto.Clone(earlier)
	proto.Merge(both, later)
	return both.(M)
}

func (j *joiner) home(h *event.Host) int {
	if h == j.last && h != nil {
		return j.lastOf
	}
	at := home{h.GetCluster(), h.GetName(), h.GetBootId()}
	n, ok := j.homes[at]
	if !ok {
		n = len(j.homes)
		j.homes[at] = n
	}
	j.last, j.lastOf = h, n
	return n
}

func (j *joiner) worker(nanos int64, e *event.Event, card string) *workerRow {
	w := e.Worker
	at := life{home: j.home(e.Host), pid: w.Pid}
	if w.StartTicks != nil && e.Host.GetBootId() != "" {
		at.start, at.by = *w.StartTicks, 't'
	} else if start := w.StartTime; start != nil {
		at.start, at.nanos, at.by = uint64(start.Seconds), start.Nanos, '@'
	}
	n, ok := j.series[at]
	if !ok {
		n = len(j.names)
		j.series[at] = n
		j.names = append(j.names, identity{host: e.Host, key: event.WorkerKey(e.Host, w), slot: event.SlotKey(e.Host, w), worker: w, instance: j.instance(e.Host, w)})
	}
	of := &j.names[n]
	if w != of.worker && !sameSlot(w, of.worker) {
		of.worker, of.slot = w, event.SlotKey(e.Host, w)
	}
	key := place{nanos, n, card}
	row, ok := j.workers[key]
	if !ok {
		row = len(j.rows)
		j.workers[key] = row
		j.rows = append(j.rows, workerRow{place: key})
	}
	r := &j.rows[row]
	r.host, r.worker, r.slot = e.Host, w, of.slot
	return r
}

// instance counts a series as one of its instance's.
func (j *joiner) instance(h *event.Host, w *event.Worker) int {
	key := event.InstanceKey(h, w)
	n, ok := j.numbers[key]
	if !ok {
		n = len(j.ranks)
		j.numbers[key] = n
		j.ranks = append(j.ranks, 0)
	}
	j.ranks[n]++
	return n
}

// sameSlot compares everything that event.SlotKey reads of a worker, but for the rare worker without a unit.
func sameSlot(a, b *event.Worker) bool {
	return a != nil && b != nil && a.Unit != "" && a.Unit == b.Unit && a.Role == b.Role && same(a.Rank, b.Rank) && same(a.EngineIndex, b.EngineIndex)
}

func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// adoptCardless moves readings whose event names no card to the worker's first card of the same tick, when there is one.
func (j *joiner) adoptCardless() {
	if !slices.ContainsFunc(j.rows, func(r workerRow) bool { return r.card == "" }) {
		return
	}
	first := map[place]int{} // of each tick and worker, the row of the smallest card
	for i := range j.rows {
		if r := &j.rows[i]; r.card != "" {
			at := place{r.time, r.of, ""}
			if n, ok := first[at]; !ok || r.card < j.rows[n].card {
				first[at] = i
			}
		}
	}
	for i := range j.rows {
		lone := &j.rows[i]
		n, ok := first[lone.place]
		if !ok {
			continue
		}
		to := &j.rows[n]
		to.device, to.allocator = merged(lone.device, to.device), merged(lone.allocator, to.allocator)
		to.engine, to.process = merged(lone.engine, to.engine), merged(lone.process, to.process)
		to.bodies |= lone.bodies
		lone.worker = nil
	}
	j.rows = slices.DeleteFunc(j.rows, func(r workerRow) bool { return r.worker == nil })
}

// storable keeps out times that have no day in the partition key.
func storable(at time.Time) bool { return at.Year() >= 1971 && at.Year() <= 2100 }

func onlyCard(w *event.Worker) string {
	if cards := w.GetGpuUuids(); len(cards) == 1 {
		return cards[0]
	}
	return ""
}

func firstCard(w *event.Worker) string {
	if cards := w.GetGpuUuids(); len(cards) > 0 {
		return slices.Min(cards)
	}
	return ""
}
