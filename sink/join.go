package sink

import (
	"cmp"
	"math"
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
	seen    map[*event.Worker]int // number of the series; the decoder gives the same pointer for the same words
	series  map[life]int
	names   []identity     // by number of the series
	numbers map[string]int // of instances
	ranks   []int          // how many series an instance has
	rows    []workerRow
	gpus    map[gpuName]int
	devices []device // by number of the card
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
	// identity has the two keys of a worker, which are long, and of which slot may change within a life; and how to find its rows.
	identity struct {
		home     int
		host     *event.Host
		key      string
		slot     string
		worker   *event.Worker // of which slot was made
		instance int

		newest  int64         // tick
		head    int           // its row that came last, -1 for none
		byPlace map[place]int // of rows, once ticks come out of order
	}
	gpuName struct {
		home int
		uuid string
	}
	device struct {
		host   *event.Host
		uuid   string
		newest int64         // tick
		head   int           // its row that came last
		byTick map[int64]int // of rows, once ticks come out of order
	}
	workerRow struct {
		place
		before    int // the row of this series that came before, -1 for none
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
		device int
		host   *event.Host
		gpu    *event.Gpu
	}
	hostRow struct {
		place
		host    *event.Host
		machine *event.Machine
	}
)

func newJoiner() *joiner {
	return &joiner{homes: map[home]int{}, series: map[life]int{}, numbers: map[string]int{}, seen: map[*event.Worker]int{}, gpus: map[gpuName]int{}, hosts: map[place]int{}}
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
		row := j.gpu(nanos, e)
		row.gpu = merged(row.gpu, e.Gpu)
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
	n, ok := j.seen[w]
	if home := j.home(e.Host); !ok || j.names[n].home != home { // two hosts may say the same of a worker
		n = j.life(e, home)
		j.seen[w] = n
	}
	of := &j.names[n]
	if w != of.worker && !sameSlot(w, of.worker) {
		of.worker, of.slot = w, event.SlotKey(e.Host, w)
	}
	r := j.row(of, place{nanos, n, card})
	r.host, r.worker, r.slot = e.Host, w, of.slot
	return r
}

// life returns the number of an event's worker.
func (j *joiner) life(e *event.Event, home int) int {
	w := e.Worker
	at := life{home: home, pid: w.Pid}
	if w.StartTicks != nil && e.Host.GetBootId() != "" {
		at.start, at.by = *w.StartTicks, 't'
	} else if start := w.StartTime; start != nil {
		at.start, at.nanos, at.by = uint64(start.Seconds), start.Nanos, '@'
	}
	n, ok := j.series[at]
	if !ok {
		n = len(j.names)
		j.series[at] = n
		j.names = append(j.names, identity{home: home, host: e.Host, key: event.WorkerKey(e.Host, w), slot: event.SlotKey(e.Host, w), worker: w, instance: j.instance(e.Host, w), newest: math.MinInt64, head: -1})
	}
	return n
}

// row finds or makes a row of a series. Ticks come in order, nearly always: then it is among those that came last.
func (j *joiner) row(of *identity, at place) *workerRow {
	if of.byPlace == nil && at.time < of.newest {
		of.byPlace = map[place]int{}
		for row := of.head; row >= 0; row = j.rows[row].before {
			of.byPlace[j.rows[row].place] = row
		}
	}
	if of.byPlace != nil {
		if row, ok := of.byPlace[at]; ok {
			return &j.rows[row]
		}
		of.byPlace[at] = len(j.rows)
	} else {
		for row := of.head; row >= 0 && j.rows[row].time == at.time; row = j.rows[row].before {
			if j.rows[row].card == at.card {
				return &j.rows[row]
			}
		}
	}
	j.rows = append(j.rows, workerRow{place: at, before: of.head})
	of.head, of.newest = len(j.rows)-1, max(of.newest, at.time)
	return &j.rows[of.head]
}

// gpu is worker for a card of a host.
func (j *joiner) gpu(nanos int64, e *event.Event) *gpuRow {
	home := j.home(e.Host)
	name := gpuName{home, e.Gpu.Uuid}
	n, ok := j.gpus[name]
	if !ok {
		n = len(j.devices)
		j.gpus[name] = n
		j.devices = append(j.devices, device{host: e.Host, uuid: name.uuid, newest: math.MinInt64})
	}
	of := &j.devices[n]
	if of.byTick == nil && nanos < of.newest {
		of.byTick = map[int64]int{}
		for row := range j.cards {
			if j.cards[row].device == n {
				of.byTick[j.cards[row].time] = row
			}
		}
	}
	if nanos == of.newest {
		return &j.cards[of.head]
	}
	if row, ok := of.byTick[nanos]; ok {
		return &j.cards[row]
	}
	j.cards = append(j.cards, gpuRow{place: place{nanos, home, name.uuid}, device: n, host: e.Host})
	row := len(j.cards) - 1
	if of.byTick != nil {
		of.byTick[nanos] = row
	}
	if nanos > of.newest {
		of.newest, of.head = nanos, row
	}
	return &j.cards[row]
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
