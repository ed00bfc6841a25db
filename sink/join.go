package sink

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

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

// Block is a run of messages of one partition that is inserted as a whole, or again with the same token.
type Block struct {
	Token    string // stream:partition:first-last; each table appends its name
	Messages []Message
}

// maxRefused is how much of a refused message is kept, in bytes.
const maxRefused = 4 << 10

type sampleKey struct {
	time                       int64
	cluster, host, worker, gpu string
}

// Join returns the rows of a block, table by table, in an order that depends on the block alone, since a retry must send the
// same rows in the same order. Samples of one worker, card and tick stand in one row, whichever source they came from. What
// belongs to the process rather than to a card (engine, process) stands on the row of the worker's first card, so that a sum
// over rows counts it once. Samples that come in another block make another partial row; the view `workers` merges them.
func Join(b Block) []Rows {
	j := joiner{workers: map[sampleKey][]any{}, gpus: map[sampleKey][]any{}, hosts: map[sampleKey][]any{}}
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
		{TableWorkers, workerLayout.columns, ordered(j.workers)},
		{TableGpus, gpuLayout.columns, ordered(j.gpus)},
		{TableHosts, hostLayout.columns, ordered(j.hosts)},
		{TableEvents, eventColumns, j.events},
		{TableFindings, findingColumns, j.findings},
		{TableIncidents, findingColumns, j.findings},
	}
	return slices.DeleteFunc(tables, func(r Rows) bool { return len(r.Values) == 0 })
}

type joiner struct {
	workers, gpus, hosts map[sampleKey][]any
	events, findings     [][]any
}

func (j *joiner) event(m *Message, e *event.Event) {
	at := e.At()
	if !storable(at) {
		j.refuse(m, m.Time, "time "+at.Format(time.RFC3339)+" is outside the years 1971 to 2100", nil)
		return
	}
	key := sampleKey{time: at.UnixNano(), cluster: e.Host.GetCluster(), host: e.Host.GetName()}
	switch {
	case e.GpuProcess != nil:
		j.worker(key, e, cmp.Or(e.GpuProcess.GpuUuid, onlyCard(e.Worker)), e.GpuProcess)
	case e.Allocator != nil:
		j.worker(key, e, cmp.Or(e.Allocator.GpuUuid, onlyCard(e.Worker)), e.Allocator)
	case e.Engine != nil:
		j.worker(key, e, firstCard(e.Worker), e.Engine)
	case e.Process != nil:
		j.worker(key, e, firstCard(e.Worker), e.Process)
	case e.Gpu != nil:
		key.gpu = e.Gpu.Uuid
		row := j.gpus[key]
		if row == nil {
			row = gpuLayout.blank()
			fillHost(row, at, e.Host)
			row[len(hostColumns)] = e.Gpu.Uuid
			j.gpus[key] = row
		}
		gpuLayout.fill(row, e.Gpu)
	case e.Machine != nil:
		row := j.hosts[key]
		if row == nil {
			row = hostLayout.blank()
			fillHost(row, at, e.Host)
			j.hosts[key] = row
		}
		hostLayout.fill(row, e.Machine)
	default:
		j.events = append(j.events, eventRow(m.Sequence, at, e))
	}
}

func (j *joiner) worker(key sampleKey, e *event.Event, card string, body any) {
	key.worker, key.gpu = event.WorkerKey(e.Host, e.Worker), card
	row := j.workers[key]
	if row == nil {
		row = workerLayout.blank()
		j.workers[key] = row
	}
	fillHost(row, e.At(), e.Host)
	fillWorker(row[len(hostColumns):], key.worker, e)
	row[workerLayout.key-1] = card
	workerLayout.fill(row, body)
}

// adoptCardless moves readings whose event names no card to the worker's first card of the same tick, when there is one.
func (j *joiner) adoptCardless() {
	first := map[sampleKey]string{}
	for key := range j.workers {
		if card := key.gpu; card != "" {
			key.gpu = ""
			if have, ok := first[key]; !ok || card < have {
				first[key] = card
			}
		}
	}
	for key, card := range first {
		lone, ok := j.workers[key]
		if !ok {
			continue
		}
		to := key
		to.gpu = card
		row := j.workers[to]
		for i := workerLayout.key; i < len(row); i++ {
			if row[i] == nil || row[i] == "" {
				row[i] = lone[i]
			}
		}
		delete(j.workers, key)
	}
}

// refuse keeps what cannot be read as an event `refused`, with its reason, so that it neither blocks the stream nor vanishes.
func (j *joiner) refuse(m *Message, at time.Time, reason string, data []byte) {
	cluster, host, _ := event.SplitSubject(m.Subject)
	row := blankEvent()
	fillHost(row, at, &event.Host{Cluster: cluster, Name: host})
	set := func(column string, value any) { row[slices.Index(eventColumns, column)] = value }
	set("sequence", m.Sequence)
	set("event", "refused")
	set("text", strings.ToValidUTF8(reason, "?"))
	set("body", strings.ToValidUTF8(string(data[:min(len(data), maxRefused)]), "?"))
	j.events = append(j.events, row)
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

func fillHost(row []any, at time.Time, h *event.Host) {
	row[0], row[1], row[2], row[3] = at, h.GetCluster(), h.GetName(), h.GetBootId()
}

func fillWorker(row []any, key string, e *event.Event) {
	w := e.Worker
	row[0], row[1], row[2], row[4] = key, event.SlotKey(e.Host, w), w.GetPid(), w.GetRole()
	if w.GetStartTime() != nil && storable(w.StartTime.AsTime()) {
		row[3] = w.StartTime.AsTime()
	}
	row[5], row[6], row[7] = optional(w.Rank), w.GetEngine(), optional(w.EngineIndex)
	row[8], row[9], row[10], row[11], row[12] = w.GetUnit(), w.GetModel(), w.GetRelease(), w.GetPod(), w.GetContainerId()
}

// optional keeps an absent field an untyped nil.
func optional[T any](v *T) any {
	if v == nil {
		return nil
	}
	return *v
}

func blankEvent() []any {
	row := make([]any, len(eventColumns))
	for i, column := range eventColumns {
		switch column {
		case "worker_key", "slot", "role", "engine", "unit", "model", "release", "pod", "container_id", "event", "gpu_uuid", "name", "kind",
			"state", "status", "signature", "by", "text", "body":
			row[i] = ""
		case "pid":
			row[i] = int64(0)
		}
	}
	return row
}

func eventRow(sequence uint64, at time.Time, e *event.Event) []any {
	row := blankEvent()
	fillHost(row, at, e.Host)
	if e.Worker != nil {
		fillWorker(row[len(hostColumns):], event.WorkerKey(e.Host, e.Worker), e)
	}
	hot := row[len(hostColumns)+len(workerColumns):]
	hot[0], hot[1] = sequence, e.Body()
	switch {
	case e.Xid != nil:
		hot[2], hot[8], hot[17] = e.Xid.GpuUuid, optional(e.Xid.Code), e.Xid.Text
	case e.Oom != nil:
		o := e.Oom
		hot[2] = o.GpuUuid
		hot[4], hot[12], hot[13], hot[14] = o.Kind, optional(o.RequestedBytes), optional(o.FreeBytes), optional(o.LimitBytes)
		hot[15], hot[16], hot[17] = optional(o.AllocatedBytes), optional(o.ReservedUnallocatedBytes), o.Text
	case e.Lifecycle != nil:
		hot[5], hot[9], hot[10], hot[11] = e.Lifecycle.State, optional(e.Lifecycle.ExitCode), optional(e.Lifecycle.Signal), e.Lifecycle.By
	case e.Snapshot != nil:
		s := e.Snapshot
		hot[2], hot[3], hot[4], hot[13], hot[15] = s.GpuUuid, s.File, s.Reason, optional(s.FreeBytes), optional(s.LiveBytes)
	case e.Mark != nil:
		hot[3], hot[4], hot[17] = e.Mark.Name, e.Mark.Kind, e.Mark.Note
	case e.Log != nil:
		hot[7], hot[17] = e.Log.Signature, e.Log.Text
	case e.Source != nil:
		hot[3], hot[6], hot[17] = e.Source.Name, e.Source.Status, e.Source.Error
	}
	body, err := event.MarshalEvent(e)
	if err != nil {
		// A body of another version that is no JSON: its bytes are kept as a JSON string.
		body, _ = json.Marshal(map[string]string{"unreadable": err.Error(), "body": string(e.GetOtherBody().GetJson())})
	}
	hot[18] = string(body)
	return row
}

func ordered(rows map[sampleKey][]any) [][]any {
	keys := make([]sampleKey, 0, len(rows))
	for key := range rows {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b sampleKey) int {
		return cmp.Or(strings.Compare(a.cluster, b.cluster), strings.Compare(a.host, b.host), strings.Compare(a.worker, b.worker),
			strings.Compare(a.gpu, b.gpu), cmp.Compare(a.time, b.time))
	})
	out := make([][]any, len(keys))
	for i, key := range keys {
		out[i] = rows[key]
	}
	return out
}
