package worker

import (
	"time"

	"lowtide/event"
	"lowtide/rules/variable"
)

const (
	maxXids      = 32               // of one hour that are told apart
	toldLate     = 10 * time.Second // an error may be told this long after the process that it ended
	engineSilent = 30 * time.Second // an engine that was silent this long, and three of its own intervals, had gone before
)

// note is one Xid.
type note struct {
	Code uint64
	At   time.Time
	Text string
}

// cardErrors are the totals of one device, which are older than the process.
type cardErrors struct {
	UUID                             string
	Corrected, Uncorrected, Remapped counter
	Pending, PendingKnown            bool
}

// faults are the device errors of one process life. The first one counts: an illegal access tears down channels and so causes
// others, and so does a device that fails.
type faults struct {
	New      []note // not weighed yet
	First    note
	Any      bool // First is set
	Last     note
	Times    []time.Time // of the newest, in a ring
	N        int
	DeviceAt time.Time // newest fault of the device
	After    int       // after-effects that were left out

	Seen        bool // a device of the worker is read: its errors are heard
	ReadAt      time.Time
	Cards       []cardErrors
	Corrected   uint64
	Uncorrected uint64
	Remapped    uint64
	ECCKnown    bool
	CorrKnown   bool
	RowsKnown   bool
	ECCFrom     time.Time // the reading before the one that first showed an uncorrected error
	ECCAt       time.Time // the newest reading that showed one more

	Told bool // all of that is in the sample, and neither an Xid nor an error was ever heard of: nothing of it ages

	EngineEvery time.Duration // between the engine's last two samples
	EngineAt    time.Time
}

// observe takes an Xid; it is weighed when the features are computed.
func (f *faults) observe(at time.Time, x *event.Xid) {
	if x.Code == nil || len(f.New) == maxXids {
		return
	}
	f.Told = false
	f.New = append(f.New, note{event.CauseXid(x), at, event.Shorten(x.Text, 200)})
}

// read takes the totals of one device. The first reading is the base, a total that falls was reset.
func (f *faults) read(at time.Time, uuid string, g *event.Gpu) {
	var c *cardErrors
	for i := range f.Cards {
		if f.Cards[i].UUID == uuid || f.Cards[i].UUID == "" {
			c = &f.Cards[i]
			c.UUID = uuid
			break
		}
	}
	if c == nil {
		if len(f.Cards) == maxCards {
			return
		}
		f.Cards = append(f.Cards, cardErrors{UUID: uuid})
		c = &f.Cards[len(f.Cards)-1]
	}
	if f.Told && c.still(g) {
		return
	}
	f.Told = false
	f.Corrected += c.Corrected.step(g.EccCorrectedTotal)
	f.Remapped += c.Remapped.step(g.RemappedRows)
	if more := c.Uncorrected.step(g.EccUncorrectedTotal); more > 0 {
		if f.Uncorrected == 0 {
			f.ECCFrom = f.ReadAt
		}
		f.Uncorrected += more
		f.ECCAt, f.DeviceAt = at, later(f.DeviceAt, at)
	}
	f.CorrKnown, f.RowsKnown, f.ECCKnown = f.CorrKnown || c.Corrected.Known, f.RowsKnown || c.Remapped.Known, f.ECCKnown || c.Uncorrected.Known
	if g.RemapPending != nil {
		c.Pending, c.PendingKnown = *g.RemapPending, true
	}
}

// still says that the device tells what it told before.
func (c *cardErrors) still(g *event.Gpu) bool {
	return c.Corrected.still(g.EccCorrectedTotal) && c.Uncorrected.still(g.EccUncorrectedTotal) && c.Remapped.still(g.RemappedRows) &&
		(g.RemapPending == nil || c.PendingKnown && *g.RemapPending == c.Pending)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// weigh sorts an Xid in. Events may come out of order, the earliest one is first. What comes after the process ended, or blames the
// program once the engine had been silent for a while, is an after-effect: kernels that are ended while they run (real-cases.md, 0xSero:
// 60 to 70 s after the engine was down).
func (f *faults) weigh(x note, exited time.Time, silent bool) {
	if !exited.IsZero() && event.Ago(x.At, exited) > toldLate || silent && event.ApplicationXid(x.Code) {
		f.After++
		return
	}
	if len(f.Times) < maxXids {
		f.Times = append(f.Times, x.At)
	} else {
		f.Times[f.N%maxXids] = x.At
	}
	f.N++
	if !f.Any || x.At.Before(f.First.At) {
		if !event.InformationalXid(x.Code) {
			f.First, f.Any = x, true
		}
	}
	if f.N == 1 || !x.At.Before(f.Last.At) {
		f.Last = x
	}
	if !event.ApplicationXid(x.Code) && !event.InformationalXid(x.Code) {
		f.DeviceAt = later(f.DeviceAt, x.At)
	}
}

func (f *faults) within(at time.Time) (n int) {
	for _, t := range f.Times {
		if event.Ago(at, t) < time.Hour {
			n++
		}
	}
	return n
}

var faultIDs = struct{ first, application, last, count, device, uncorrected, corrected, eccFirst, rows, pending, utilization variable.ID }{
	variable.Must("xid.first"), variable.Must("xid.application"), variable.Must("xid.last"), variable.Must("xid.count"), variable.Must("symptom.device"),
	variable.Must("ecc.uncorrected_delta"), variable.Must("ecc.corrected_delta"), variable.Must("ecc.first"), variable.Must("remap.rows_delta"),
	variable.Must("remap.pending"), variable.Must("utilization.now"),
}

func (w *Worker) faultFeatures(at time.Time) {
	f, s := &w.faults, w.sample
	if w.load.Last.After(f.EngineAt) {
		if !f.EngineAt.IsZero() {
			f.EngineEvery = event.Ago(w.load.Last, f.EngineAt)
		}
		f.EngineAt = w.load.Last
	}
	if f.Told {
		return
	}
	for _, x := range f.New {
		quiet := event.Ago(x.At, f.EngineAt)
		f.weigh(x, w.exited, !f.EngineAt.IsZero() && f.EngineEvery > 0 && quiet > engineSilent && quiet > 3*f.EngineEvery)
	}
	f.New = f.New[:0]
	if f.Any {
		s.SetNumber(faultIDs.first, float64(f.First.Code))
	}
	if f.N > 0 {
		s.SetNumber(faultIDs.last, float64(f.Last.Code))
	}
	if f.N > 0 || f.Seen { // where the device is read, its errors are heard: without that no incident would ever end
		s.SetNumber(faultIDs.count, float64(f.within(at)))
		s.SetBool(faultIDs.application, f.Any && event.ApplicationXid(f.First.Code))
		s.SetBool(faultIDs.device, within(at, f.DeviceAt))
	}
	w.eccFeatures()
	f.Told = f.Seen && f.N == 0 && f.DeviceAt.IsZero()
}

func (w *Worker) eccFeatures() {
	f, s := &w.faults, w.sample
	if f.CorrKnown {
		s.SetNumber(faultIDs.corrected, float64(f.Corrected))
	}
	if f.RowsKnown {
		s.SetNumber(faultIDs.rows, float64(f.Remapped))
	}
	if f.ECCKnown {
		s.SetNumber(faultIDs.uncorrected, float64(f.Uncorrected))
		// Totals are read at ticks: an error and an Xid between the same two readings have no order, and then the device is believed.
		s.SetBool(faultIDs.eccFirst, f.Uncorrected > 0 && (!f.Any || !f.ECCFrom.After(f.First.At)))
	}
	pending, known := false, false
	for i := range f.Cards {
		pending, known = pending || f.Cards[i].Pending, known || f.Cards[i].PendingKnown
	}
	if known {
		s.SetBool(faultIDs.pending, pending)
	}
}
