package kernel

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector/oom"
	"lowtide/event"
)

// What belongs together, and how long it is waited for. The driver writes the lines of one fault in one go; the OOM killer
// writes its summary, then may have to wait for the victim's lock before it says that it killed.
const (
	faultSpan  = 100 * time.Millisecond // by the log's own clock
	faultLines = 8
	maxText    = 2 << 10 // bytes of an Xid's text
	killSpan   = time.Second
	quietSpan  = 50 * time.Millisecond // nothing more came: what is held is complete
)

// assembler makes events of records. A fault's lines become one event, and so do the two lines of a kill.
type assembler struct {
	gpus  *gpus
	fault *held
	kill  *held
}

// held is what may still go on.
type held struct {
	event  *event.Event
	text   string
	lines  int
	uptime time.Duration // of its first record
	read   time.Time     // when that was read
}

// waiting says until when more may come; false where nothing is held.
func (a *assembler) waiting() (time.Time, bool) {
	switch {
	case a.fault != nil:
		return a.fault.read.Add(quietSpan), true
	case a.kill != nil:
		return a.kill.read.Add(killSpan), true
	}
	return time.Time{}, false
}

// take reads the next record, which was written at that time, and returns what is complete.
func (a *assembler) take(r record, at time.Time) (out []*event.Event) {
	if r.facility != 0 {
		return nil // written to /dev/kmsg by a program: the kernel never lets one pass for its own
	}
	if a.fault != nil {
		if a.goesOn(r) {
			a.fault.text += " " + r.text
			a.fault.lines++
			return nil
		}
		out = a.endFault(out)
	}
	if a.kill != nil && r.uptime-a.kill.uptime > killSpan {
		out = a.endKill(out)
	}
	// At the beginning only: other messages carry names that came from outside, of processes or of a stick that was plugged in.
	switch {
	case strings.HasPrefix(r.text, "NVRM:"):
		a.driver(r, at)
	case strings.HasPrefix(r.text, "oom-kill:constraint="):
		out = a.endKill(out)
		if e := killed(r.text, at); e != nil {
			a.kill = &held{event: e, text: r.text, uptime: r.uptime, read: time.Now()}
		}
	case strings.HasPrefix(r.text, "Out of memory"), strings.HasPrefix(r.text, "Memory cgroup out of memory"):
		out = a.victim(out, r, at)
	}
	return out
}

// settle returns what is held and has waited long enough at this time.
func (a *assembler) settle(now time.Time) (out []*event.Event) {
	if a.fault != nil && now.Sub(a.fault.read) >= quietSpan {
		out = a.endFault(out)
	}
	if a.kill != nil && now.Sub(a.kill.read) >= killSpan {
		out = a.endKill(out)
	}
	return out
}

func (a *assembler) driver(r record, at time.Time) {
	if m := gpuLine.FindStringSubmatch(r.text); m != nil {
		a.gpus.learn(canonical(m[1]), m[2])
		return
	}
	x := ParseXid(r.text)
	if x == nil {
		x = parseLost(r.text)
	}
	if x == nil {
		return
	}
	e := &event.Event{Time: timestamppb.New(at), Xid: x}
	if x.Pid != nil {
		e.Worker = &event.Worker{Pid: *x.Pid}
	}
	a.fault = &held{event: e, text: r.text, lines: 1, uptime: r.uptime, read: time.Now()}
}

// goesOn says whether the record belongs to the fault that is held: a fragment of it, or a further line of the driver that
// begins nothing of its own and names no other device.
func (a *assembler) goesOn(r record) bool {
	f := a.fault
	if f.lines >= faultLines || len(f.text) >= maxText || r.uptime < f.uptime || r.uptime-f.uptime > faultSpan {
		return false
	}
	if r.fragment {
		return true
	}
	text := strings.TrimLeft(r.text, " ")
	return strings.HasPrefix(text, "NVRM:") && !xidLine.MatchString(text) && !strings.HasPrefix(text, "NVRM: GPU at ") &&
		!strings.HasPrefix(text, "NVRM: GPU Board Serial") && !namesOther(text, f.event.Xid.Pci)
}

func (a *assembler) endFault(out []*event.Event) []*event.Event {
	f := a.fault
	if a.fault = nil; f == nil {
		return out
	}
	x := f.event.Xid
	if xidLine.FindStringIndex(f.text) == nil && !saysLost(f.text) {
		return out // "The NVIDIA GPU …" had some other trouble, which has no code
	}
	x.Text = clean(f.text)
	x.GpuUuid = a.gpus.uuid(x.Pci)
	return append(out, f.event)
}

var exiting = regexp.MustCompile(`OOM victim ([0-9]{1,10}) .{0,64}is already exiting`)

// victim reads "Killed process", which ends what the summary began. With memory.oom.group there are more victims than summaries.
func (a *assembler) victim(out []*event.Event, r record, at time.Time) []*event.Event {
	if m := exiting.FindStringSubmatch(r.text); m != nil {
		if a.kill != nil && strconv.FormatInt(a.kill.event.Oom.GetVictimPid(), 10) == m[1] {
			a.kill = nil // it ended by itself
		}
		return out
	}
	e := killed(r.text, at)
	if e == nil {
		return out
	}
	if a.kill != nil && a.kill.event.Oom.GetVictimPid() == e.Oom.GetVictimPid() {
		if both := killed(r.text+" "+a.kill.text, at); both != nil {
			e = both
		}
		a.kill = nil
	}
	return append(out, e)
}

func (a *assembler) endKill(out []*event.Event) []*event.Event {
	if a.kill == nil {
		return out
	}
	out = append(out, a.kill.event)
	a.kill = nil
	return out
}

// killed makes the event of a kill; nil where the text names no victim.
func killed(text string, at time.Time) *event.Event {
	o, ok := oom.Parse(text)
	if !ok || o.VictimPid == nil {
		return nil
	}
	return &event.Event{Time: timestamppb.New(at), Worker: &event.Worker{Pid: *o.VictimPid}, Oom: o}
}

// clean makes one line of a text and bounds it.
func clean(text string) string {
	return event.Shorten(strings.Join(strings.Fields(text), " "), maxText)
}
