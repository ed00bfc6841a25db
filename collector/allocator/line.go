package allocator

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"lowtide/event"
)

const (
	maxDevices = 64      // of one process; a machine has at most 16 today, MIG makes them up to seven times as many
	maxID      = 64      // bytes
	maxExact   = 1 << 53 // whole numbers from here on are not exact in JSON
)

// line is what a probe sends, all kinds in one: hello, read, oom, mark, bye, and snapshot and recording in answer to an ask. The pid
// that a probe knows for itself is not looked at. Unknown fields are left to later probes.
type line struct {
	V        int     `json:"v"`
	Kind     string  `json:"kind"`
	Time     float64 `json:"time"` // seconds since 1970
	Torch    string  `json:"torch"`
	CUDA     string  `json:"cuda"`
	Backend  string  `json:"backend"`
	Conf     string  `json:"alloc_conf"`
	Interval float64 `json:"interval_seconds"`
	Compiles *uint64 `json:"compiles_total"`
	Devices  devices `json:"devices"`
	Source   string  `json:"source"` // observer or exception
	Text     string  `json:"text"`
	GPU      string  `json:"gpu_uuid"`
	Wanted   *uint64 `json:"requested_bytes"`
	Free     *uint64 `json:"free_bytes"`
	Limit    *uint64 `json:"limit_bytes"`
	Live     *uint64 `json:"allocated_bytes"`
	Loose    *uint64 `json:"reserved_unallocated_bytes"`
	Mark     string  `json:"mark"` // busy or quiet
	Name     string  `json:"name"`
	ExitCode *int64  `json:"exit_code"`

	ID             string   `json:"id"`     // of the ask that a snapshot or recording is about
	Reason         string   `json:"reason"` // asked or oom
	Status         string   `json:"status"`
	Error          string   `json:"error"`
	Passing        bool     `json:"passing"` // of an error: in a minute it may be different
	Bytes          *uint64  `json:"bytes"`
	TookSeconds    *float64 `json:"took_seconds"`
	GILSeconds     *float64 `json:"gil_seconds"` // of took_seconds, that no other Python thread could run
	HistorySeconds *float64 `json:"history_seconds"`
	Note           string   `json:"note"`
	History        string   `json:"history"` // on or off
	Census         *census  `json:"census"`
}

// census is what a snapshot line tells of live tensors that carry a grad_fn.
type census struct {
	Tensors     *uint64  `json:"tensors"`
	Bytes       *uint64  `json:"bytes"`
	Complete    *bool    `json:"complete"`
	TookSeconds *float64 `json:"took_seconds"`
}

// devices are two things of one name: a read has a list of devices, a snapshot the uuids by device.
type devices struct {
	list  []device
	uuids map[string]string
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (d *devices) UnmarshalJSONFrom(from *jsontext.Decoder) error {
	if from.PeekKind() == '{' {
		return json.UnmarshalDecode(from, &d.uuids)
	}
	return json.UnmarshalDecode(from, &d.list)
}

// device is one element of a read's devices: the fields of the vocabulary's allocator body.
type device struct {
	GPU              string  `json:"gpu_uuid"`
	Backend          string  `json:"backend"`
	Expandable       *bool   `json:"expandable_segments"`
	Allocated        *uint64 `json:"allocated_bytes"`
	Reserved         *uint64 `json:"reserved_bytes"`
	Active           *uint64 `json:"active_bytes"`
	Requested        *uint64 `json:"requested_bytes"`
	AllocatedPeak    *uint64 `json:"allocated_peak_bytes"`
	ReservedPeak     *uint64 `json:"reserved_peak_bytes"`
	Limit            *uint64 `json:"limit_bytes"`
	InactiveSplit    *uint64 `json:"inactive_split_bytes"`
	PrivatePool      *uint64 `json:"private_pool_bytes"`
	GraphPools       *uint64 `json:"graph_pools"`
	Retries          *uint64 `json:"alloc_retries_total"`
	OOMs             *uint64 `json:"ooms_total"`
	DeviceAllocs     *uint64 `json:"device_allocs_total"`
	DeviceFrees      *uint64 `json:"device_frees_total"`
	Segments         *uint64 `json:"segments"`
	PinnedAllocated  *uint64 `json:"pinned_allocated_bytes"`
	PinnedActive     *uint64 `json:"pinned_active_bytes"`
	CompilesOfDevice *uint64 `json:"compiles_total"`
}

// body is the device's event; nil when it has no number at all.
func (d *device) body() *event.Allocator {
	a := &event.Allocator{
		GpuUuid: d.GPU, Backend: d.Backend, ExpandableSegments: d.Expandable,
		AllocatedBytes: d.Allocated, ReservedBytes: d.Reserved, ActiveBytes: d.Active, RequestedBytes: d.Requested,
		AllocatedPeakBytes: d.AllocatedPeak, ReservedPeakBytes: d.ReservedPeak, LimitBytes: d.Limit,
		InactiveSplitBytes: d.InactiveSplit, PrivatePoolBytes: d.PrivatePool, GraphPools: d.GraphPools,
		AllocRetriesTotal: d.Retries, OomsTotal: d.OOMs, DeviceAllocsTotal: d.DeviceAllocs, DeviceFreesTotal: d.DeviceFrees,
		Segments: d.Segments, PinnedAllocatedBytes: d.PinnedAllocated, PinnedActiveBytes: d.PinnedActive, CompilesTotal: d.CompilesOfDevice,
	}
	for _, n := range d.numbers() {
		if n.value != nil {
			return a
		}
	}
	return nil
}

// named is a number with its place in the line.
type named struct {
	name  string
	value *uint64
}

func (d *device) numbers() [18]named {
	return [...]named{
		{"allocated_bytes", d.Allocated}, {"reserved_bytes", d.Reserved}, {"active_bytes", d.Active}, {"requested_bytes", d.Requested},
		{"allocated_peak_bytes", d.AllocatedPeak}, {"reserved_peak_bytes", d.ReservedPeak}, {"limit_bytes", d.Limit},
		{"inactive_split_bytes", d.InactiveSplit}, {"private_pool_bytes", d.PrivatePool}, {"graph_pools", d.GraphPools},
		{"alloc_retries_total", d.Retries}, {"ooms_total", d.OOMs}, {"device_allocs_total", d.DeviceAllocs},
		{"device_frees_total", d.DeviceFrees}, {"segments", d.Segments}, {"pinned_allocated_bytes", d.PinnedAllocated},
		{"pinned_active_bytes", d.PinnedActive}, {"compiles_total", d.CompilesOfDevice},
	}
}

// parse reads one line, without its newline. The error names the field.
func parse(text []byte) (*line, error) {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return nil, fmt.Errorf("read line: %w", err)
	}
	if l.V != 1 {
		return nil, fmt.Errorf("field v: %d; this collector reads 1", l.V)
	}
	for _, n := range []named{{"compiles_total", l.Compiles}, {"requested_bytes", l.Wanted}, {"free_bytes", l.Free}, {"limit_bytes", l.Limit},
		{"allocated_bytes", l.Live}, {"reserved_unallocated_bytes", l.Loose}} {
		if n.value != nil && *n.value >= maxExact {
			return nil, fmt.Errorf("field %s: %d is beyond 2^53", n.name, *n.value)
		}
	}
	if l.ExitCode != nil && (*l.ExitCode < 0 || *l.ExitCode > 255) {
		return nil, fmt.Errorf("field exit_code: %d is none", *l.ExitCode)
	}
	if err := uuid(l.GPU); err != nil {
		return nil, err
	}
	if l.Kind != "hello" && !(l.Time > 0 && l.Time < math.MaxUint32) {
		return nil, fmt.Errorf("field time: %v is no time in seconds since 1970", l.Time)
	}
	l.Torch, l.CUDA, l.Backend, l.Conf = event.Shorten(l.Torch, 64), event.Shorten(l.CUDA, 64), event.Shorten(l.Backend, 64), event.Shorten(l.Conf, 1<<10)
	l.Name = event.Shorten(l.Name, 128)
	if l.Devices.uuids != nil && l.Kind != "snapshot" {
		return nil, errors.New("field devices: is no list")
	}
	switch l.Kind {
	case "hello", "bye":
		return &l, nil
	case "read":
		return &l, l.checkRead()
	case "oom":
		if l.Source != "observer" && l.Source != "exception" {
			return nil, fmt.Errorf("field source: %q is neither observer nor exception", event.Shorten(l.Source, 32))
		}
		return &l, nil
	case "mark":
		if l.Mark != "busy" && l.Mark != "quiet" {
			return nil, fmt.Errorf("field mark: %q is neither busy nor quiet", event.Shorten(l.Mark, 32))
		}
		return &l, nil
	case "snapshot":
		return &l, l.checkSnapshot()
	case "recording":
		if l.History != "on" && l.History != "off" {
			return nil, fmt.Errorf("field history: %q is neither on nor off", event.Shorten(l.History, 32))
		}
		return &l, l.checkID()
	}
	return nil, fmt.Errorf("field kind: %q is none of hello, read, oom, mark, bye, snapshot, recording", event.Shorten(l.Kind, 32))
}

func (l *line) checkID() error {
	if l.ID == "" || len(l.ID) > maxID {
		return fmt.Errorf("field id: has %d bytes, of 1 to %d", len(l.ID), maxID)
	}
	return nil
}

func (l *line) checkSnapshot() error {
	if err := l.checkID(); err != nil {
		return err
	}
	switch l.Status {
	case "ok", "refused", "unsupported", "failed":
	default:
		return fmt.Errorf("field status: %q is none of ok, refused, unsupported, failed", event.Shorten(l.Status, 32))
	}
	if l.Reason != "asked" && l.Reason != "oom" {
		return fmt.Errorf("field reason: %q is neither asked nor oom", event.Shorten(l.Reason, 32))
	}
	l.Error, l.Note = event.Shorten(l.Error, 1<<10), event.Shorten(l.Note, 1<<10)
	if l.Devices.list != nil {
		return errors.New("field devices: is no object of uuids by device")
	}
	if len(l.Devices.uuids) > maxDevices {
		return fmt.Errorf("field devices: %d, at most %d", len(l.Devices.uuids), maxDevices)
	}
	for ordinal, id := range l.Devices.uuids {
		if n, err := strconv.Atoi(ordinal); err != nil || n < 0 || n > 1<<16 || strconv.Itoa(n) != ordinal {
			return fmt.Errorf("field devices: %q is no device", event.Shorten(ordinal, 32))
		}
		if err := uuid(id); err != nil {
			return fmt.Errorf("devices.%s: %w", ordinal, err)
		}
	}
	counts := []named{{"bytes", l.Bytes}}
	times := map[string]*float64{"took_seconds": l.TookSeconds, "gil_seconds": l.GILSeconds, "history_seconds": l.HistorySeconds}
	if l.Census != nil {
		counts = append(counts, named{"census.tensors", l.Census.Tensors}, named{"census.bytes", l.Census.Bytes})
		times["census.took_seconds"] = l.Census.TookSeconds
	}
	for _, n := range counts {
		if n.value != nil && *n.value >= maxExact {
			return fmt.Errorf("field %s: %d is beyond 2^53", n.name, *n.value)
		}
	}
	for name, seconds := range times {
		if seconds != nil && !(*seconds >= 0 && *seconds <= 7*24*3600) {
			return fmt.Errorf("field %s: %v is no time that passed here", name, *seconds)
		}
	}
	return nil
}

func (l *line) checkRead() error {
	if !(l.Interval > 0 && l.Interval <= 3600) {
		return fmt.Errorf("field interval_seconds: %v is not between 0 and 3600", l.Interval)
	}
	if len(l.Devices.list) > maxDevices {
		return fmt.Errorf("field devices: %d, at most %d", len(l.Devices.list), maxDevices)
	}
	for i := range l.Devices.list {
		d := &l.Devices.list[i]
		if err := uuid(d.GPU); err != nil {
			return fmt.Errorf("devices.%d: %w", i, err)
		}
		for _, n := range d.numbers() {
			if n.value != nil && *n.value >= maxExact {
				return fmt.Errorf("field devices.%d.%s: %d is beyond 2^53", i, n.name, *n.value)
			}
		}
		d.Backend = event.Shorten(d.Backend, 64)
	}
	return nil
}

// at is the line's time.
func (l *line) at() time.Time {
	seconds, fraction := math.Modf(l.Time)
	return time.Unix(int64(seconds), int64(fraction*1e9)).UTC()
}

// sample is the read as events without time and worker. What the process has once stands in the first device alone, since the
// processor adds up the devices of a worker.
func (l *line) sample() *sample {
	s := &sample{at: l.at()}
	for i := range l.Devices.list {
		if a := l.Devices.list[i].body(); a != nil {
			if len(s.devices) == 0 && a.CompilesTotal == nil {
				a.CompilesTotal = l.Compiles
			}
			s.devices = append(s.devices, a)
		}
	}
	return s
}

func uuid(s string) error {
	if len(s) > 96 || strings.ContainsFunc(s, func(r rune) bool {
		return r != '-' && r != '/' && (r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r))
	}) {
		return errors.New("field gpu_uuid: is no uuid of a device")
	}
	return nil
}
