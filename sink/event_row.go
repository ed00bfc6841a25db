package sink

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"lowtide/event"
)

// refuse keeps what cannot be read as an event `refused`, with its reason, so that it neither blocks the stream nor vanishes.
func (j *joiner) refuse(m *Message, at time.Time, reason string, data []byte) {
	cluster, host, _ := event.SplitSubject(m.Subject)
	row := blankEvent()
	fillHost(row, at, &event.Host{Cluster: cluster, Name: host})
	set := func(column string, value any) {
		row[slices.IndexFunc(eventFields, func(f field) bool { return f.name == column })] = value
	}
	set("sequence", m.Sequence)
	set("event", "refused")
	set("text", strings.ToValidUTF8(reason, "?"))
	set("body", strings.ToValidUTF8(string(data[:min(len(data), maxRefused)]), "?"))
	j.events = append(j.events, row)
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

// blankEvent is a row of `events` without any value.
func blankEvent() []any {
	row := make([]any, len(eventFields))
	for i, f := range eventFields {
		switch {
		case f.kind == kindText || f.kind == kindName:
			row[i] = ""
		case f.name == "pid":
			row[i] = int64(0)
		}
	}
	return row
}

func eventRow(sequence uint64, at time.Time, e *event.Event) []any {
	row := blankEvent()
	fillHost(row, at, e.Host)
	if e.Worker != nil {
		fillWorker(row[len(hostFields):], event.WorkerKey(e.Host, e.Worker), e)
	}
	hot := row[len(hostFields)+len(workerFields):]
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
