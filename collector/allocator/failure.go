package allocator

import (
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/collector/oom"
	"lowtide/event"
)

// failure is a failed allocation that PyTorch's observer told, in exact numbers and before the exception had a text.
type failure struct {
	at    time.Time
	event *event.Oom
	gpu   string
	until time.Time // the text is waited for until then; afterwards, it is told to be of this failure until then
}

// observed makes a failure of the observer's line. limit_bytes is what the process may have, never the card's capacity.
func observed(l *line) *failure {
	return &failure{at: l.at(), gpu: l.GPU, event: &event.Oom{
		Kind: oom.CUDA, RequestedBytes: l.Wanted, FreeBytes: l.Free, LimitBytes: l.Limit, AllocatedBytes: l.Live, ReservedUnallocatedBytes: l.Loose,
	}}
}

// excepted reads the exception's text. The probe says that memory ran out, so a text in an unknown form is one without numbers.
func excepted(l *line) *event.Oom {
	o, ok := oom.Parse(l.Text)
	if !ok {
		o = &event.Oom{Text: event.Shorten(l.Text, oom.MaxText)}
	}
	if o.Kind != oom.Engine {
		o.Kind = oom.CUDA
	}
	o.VictimPid, o.GpuUuid = nil, l.GPU
	fill(o, &event.Oom{RequestedBytes: l.Wanted, FreeBytes: l.Free, LimitBytes: l.Limit, AllocatedBytes: l.Live, ReservedUnallocatedBytes: l.Loose})
	return o
}

// same says whether a text is of the observer's failure: PyTorch prints the very number it hands the observer, to two decimals.
func (f *failure) same(o *event.Oom) bool {
	if f.event.RequestedBytes == nil || o.RequestedBytes == nil {
		return o.Kind == oom.CUDA
	}
	a, b := float64(*f.event.RequestedBytes), float64(*o.RequestedBytes)
	return max(a, b)-min(a, b) <= max(512, 0.01*max(a, b))
}

// merge joins both into one event: the observer's numbers are exact, the text has more of them.
func (f *failure) merge(o *event.Oom) *event.Oom {
	merged := proto.CloneOf(o)
	merged.GpuUuid = f.gpu
	if f.event.RequestedBytes != nil {
		merged.RequestedBytes = f.event.RequestedBytes
	}
	if f.event.FreeBytes != nil {
		merged.FreeBytes = f.event.FreeBytes
	}
	if f.event.LimitBytes != nil {
		merged.LimitBytes = f.event.LimitBytes
	}
	fill(merged, f.event)
	return merged
}

// fill gives o the numbers it lacks.
func fill(o, from *event.Oom) {
	for _, n := range []struct{ to, from **uint64 }{
		{&o.RequestedBytes, &from.RequestedBytes}, {&o.FreeBytes, &from.FreeBytes}, {&o.LimitBytes, &from.LimitBytes},
		{&o.AllocatedBytes, &from.AllocatedBytes}, {&o.ReservedUnallocatedBytes, &from.ReservedUnallocatedBytes},
	} {
		if *n.to == nil {
			*n.to = *n.from
		}
	}
}

// alone is the event of a failure whose text did not come: the program has caught it, or did not live to print it.
func (f *failure) alone() *event.Oom {
	o := proto.CloneOf(f.event)
	o.GpuUuid = f.gpu
	return o
}

// line takes one line of the peer. Only its goroutine calls it.
func (p *peer) line(text []byte, now time.Time) {
	l, err := parse(text)
	if err != nil {
		p.source.count(p.pid, bad, 1, event.Shorten(err.Error(), 200))
		return
	}
	switch l.Kind {
	case "hello":
		p.greeted(l)
	case "read":
		p.reported(l, now)
	case "oom":
		p.failed(l, now)
	case "mark":
		name := l.Name
		if name == "" {
			name = "probe"
		}
		p.source.enqueue(p.pid, l.at(), &event.Event{Worker: p.worker(), Mark: &event.Mark{Name: name, Kind: l.Mark}})
	case "snapshot", "recording":
		p.heard(l, now)
	case "bye":
		p.tell()
		p.source.enqueue(p.pid, l.at(), &event.Event{Worker: p.worker(), Lifecycle: &event.Lifecycle{
			State: "draining", SaidBye: event.Ptr(true), ExitCode: l.ExitCode,
		}})
	}
}

func (p *peer) greeted(l *line) {
	s := p.source
	s.mu.Lock()
	defer s.mu.Unlock()
	said := hello{torch: l.Torch, cuda: l.CUDA, backend: l.Backend, allocConf: l.Conf}
	if p.hello != nil { // said again without a change
		said.told, said.at = p.hello.told, p.hello.at
		if *p.hello == said {
			return
		}
		said.told = false
	}
	p.hello = &said
	s.notify()
}

// reported keeps the newest read. One that the tick has waited for in vain asks for a Collect of its own.
func (p *peer) reported(l *line, now time.Time) {
	read := l.sample()
	s := p.source
	if off := read.at.Sub(now).Abs(); off > max(s.o.Interval, 10*time.Second) {
		read.at = now // a clock of its own: what arrives now was read now
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.read, p.last, p.missed = read, read.at, false
	if p.gpu = ""; len(read.devices) == 1 {
		p.gpu = read.devices[0].GpuUuid
	}
	p.interval = time.Duration(l.Interval * float64(time.Second))
	if !s.waits && s.slotOf(read.at) <= s.slot && p.emitted != s.slot {
		s.fire()
	}
	s.notify()
}

// failed holds the observer's numbers for the exception's text, which follows at once when nobody catches it. A text that comes
// after they went out is no second failure: it is kept as a `log` event.
func (p *peer) failed(l *line, now time.Time) {
	if l.Source == "observer" {
		p.tell()
		p.held = observed(l)
		p.held.until = now.Add(textWait)
		return
	}
	if p.source.full(p.pid) {
		return // reading the text costs more than all else of the line
	}
	o := excepted(l)
	switch {
	case p.held != nil && p.held.same(o):
		merged, at := p.held.merge(o), p.held.at
		p.held = nil
		p.source.enqueue(p.pid, at, &event.Event{Worker: p.worker(), Oom: merged})
	case p.told != nil && now.Before(p.told.until) && p.told.same(o):
		p.told = nil
		p.source.enqueue(p.pid, l.at(), &event.Event{Worker: p.worker(), Log: &event.Log{Signature: "oom_text", Text: o.Text}})
	default:
		p.source.enqueue(p.pid, l.at(), &event.Event{Worker: p.worker(), Oom: o})
	}
}

// tell sends the observer's numbers out without a text.
func (p *peer) tell() {
	if p.held == nil {
		return
	}
	f := p.held
	p.held = nil
	p.source.enqueue(p.pid, f.at, &event.Event{Worker: p.worker(), Oom: f.alone()})
	f.until = f.until.Add(textAfter)
	p.told = f
}
