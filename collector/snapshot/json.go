package snapshot

import (
	"fmt"
	"io"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"lowtide/event"
)

// description is the form of `snapshot show --json`.
type description struct {
	File     string              `json:"file"`
	Bytes    int64               `json:"bytes"` // of the pickle, uncompressed
	Protocol int                 `json:"protocol"`
	Settings *settingsJSON       `json:"settings,omitzero"` // absent where the snapshot has none
	Devices  []deviceDescription `json:"devices"`
	Timeline []instant           `json:"timeline"`
	OOMs     []failure           `json:"ooms"`
	err      error
}

type settingsJSON struct {
	AllocConf         string  `json:"alloc_conf"`
	MaxSplitSize      *int64  `json:"max_split_size_bytes,omitempty"` // absent: unlimited
	Expandable        bool    `json:"expandable_segments"`
	GarbageCollection float64 `json:"garbage_collection_threshold"`
}

type deviceDescription struct {
	Device  int32          `json:"device"`
	Summary jsontext.Value `json:",embed"` // the event's body
}

// instant is what was there at the end of a piece of the history.
type instant struct {
	Device        int32     `json:"device"`
	Time          time.Time `json:"time"`
	LiveBytes     uint64    `json:"live_bytes"`
	ReservedBytes uint64    `json:"reserved_bytes"`
	PendingBytes  uint64    `json:"pending_bytes,omitzero"`
	LivePeakBytes uint64    `json:"live_peak_bytes"` // within the piece
}

// failure is one failed request. What the allocator had is absent where it cannot be told.
type failure struct {
	Device             int32     `json:"device"`
	Time               time.Time `json:"time"`
	Stream             int64     `json:"stream"`
	RequestedBytes     uint64    `json:"requested_bytes"`
	DeviceFreeBytes    uint64    `json:"device_free_bytes"`              // as CUDA told
	LargestFreeBytes   *uint64   `json:"largest_free_bytes,omitempty"`   // hole of the whole allocator
	LargestUsableBytes *uint64   `json:"largest_usable_bytes,omitempty"` // hole on the request's stream, outside of private pools
	FreeBytes          *uint64   `json:"free_bytes,omitempty"`           // in all holes together
	Holes              *uint64   `json:"holes,omitempty"`
	LiveBytes          *uint64   `json:"live_bytes,omitempty"`
	PendingBytes       *uint64   `json:"pending_bytes,omitempty"`
	ReservedBytes      *uint64   `json:"reserved_bytes,omitempty"`
	UndoneEntries      int       `json:"undone_entries"` // of the history, to get back to it
	Frames             []string  `json:"frames,omitempty"`
}

func describe(name string, s *Snapshot, o Options) *description {
	d := &description{File: name, Bytes: s.Bytes, Protocol: s.Protocol, Devices: []deviceDescription{}, Timeline: []instant{}, OOMs: []failure{}}
	if s.Settings.Known {
		d.Settings = &settingsJSON{AllocConf: s.Settings.AllocConf, Expandable: s.Settings.Expandable, GarbageCollection: s.Settings.GarbageCollection}
		if s.Settings.MaxSplitSize >= 0 {
			d.Settings.MaxSplitSize = &s.Settings.MaxSplitSize
		}
	}
	for _, c := range cards(s) {
		body, err := bodyOf(c.summary(s, o))
		if err != nil {
			d.err = err
			return d
		}
		d.Devices = append(d.Devices, deviceDescription{c.device, body})
		for _, one := range c.past.points {
			d.Timeline = append(d.Timeline, instant{c.device, one.at, one.live, one.reserved, one.pending, one.highest})
		}
		for _, one := range c.past.ooms {
			f := failure{Device: c.device, Time: one.at, Stream: one.stream, RequestedBytes: one.requested, DeviceFreeBytes: one.deviceFree,
				UndoneEntries: one.undone, Frames: one.frames}
			if one.known {
				f.LargestFreeBytes, f.LargestUsableBytes, f.FreeBytes, f.Holes = &one.largest, &one.usable, &one.free, &one.holes
				f.LiveBytes, f.PendingBytes, f.ReservedBytes = &one.live, &one.pending, &one.reserved
			}
			d.OOMs = append(d.OOMs, f)
		}
	}
	return d
}

// bodyOf is a summary as it stands in a recording.
func bodyOf(r *event.Snapshot) (jsontext.Value, error) {
	text, err := event.MarshalEvent(&event.Event{Snapshot: r})
	if err != nil {
		return nil, fmt.Errorf("write summary: %w", err)
	}
	var line struct {
		Snapshot jsontext.Value `json:"snapshot"`
	}
	if err := json.Unmarshal(text, &line); err != nil {
		return nil, fmt.Errorf("write summary: %w", err)
	}
	return line.Snapshot, nil
}

// writeJSON prints one object and a line end.
func writeJSON(out io.Writer, value any) error {
	if d, ok := value.(*description); ok && d.err != nil {
		return d.err
	}
	text, err := json.Marshal(value, json.Deterministic(true))
	if err == nil {
		_, err = out.Write(append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("print snapshot: %w", err)
	}
	return nil
}
