package logs

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector/oom"
	"lowtide/event"
)

const (
	maxLine     = 16 << 10 // bytes of a line that are looked at
	maxText     = 2 << 10  // bytes of a `log` event's text
	followLines = 8        // looked at for what belongs to a text of several lines
	followSpan  = time.Second
	perMinute   = 10 // events of a signature and stream
	oncePer     = 10 * time.Second
	maxRecent   = 256
	lateBound   = 10 * time.Minute // a line with an older stamp is dated to its reading
)

// stream recognises the lines of one file or unit. It is told when, never asks.
type stream struct {
	worker  *event.Worker // what the configuration says; may be nil
	held    *held
	buckets map[string]*bucket
	recent  map[failure]time.Time
	weighed int // bytes of the lines that were parsed, which the reader sets back
	out     func(*event.Event)
}

// held is a text whose further lines may still come.
type held struct {
	signature *signature // nil: a failed allocation
	text      string
	who       speaker
	worker    *event.Worker
	at        time.Time // for the event
	read      time.Time
	more      *regexp.Regexp
	done      *regexp.Regexp // complete once it matches; nil: nobody knows
	left      int
}

// bucket bounds the rate of one signature.
type bucket struct {
	since time.Time
	n     int
	over  int
	last  *event.Event // of those over
}

// A failed allocation in several lines: cudaMallocAsync's, and SGLang's with its tokens.
var several = []struct{ begins, more, done *regexp.Regexp }{
	{regexp.MustCompile(`would exceed allowed memory\. \(out of memory\)`),
		regexp.MustCompile(`^\s*(?:Currently allocated|Requested|Device limit|Free \(according to CUDA\)|PyTorch limit|:)`),
		regexp.MustCompile(`PyTorch limit[^:]*:\s*[0-9]`)},
	{regexp.MustCompile(`ut of memory\. Try to lower your batch size`),
		regexp.MustCompile(`^\s*(?:Try to allocate|Avai?l[ai]*able )`), nil},
}

// region looks through complete lines, which were read at this time.
func (s *stream) region(b []byte, now time.Time) {
	for i := 0; i < len(b); {
		begin := i
		if s.held == nil {
			hit := hits.next(b, i)
			if hit < 0 {
				return
			}
			begin = i + bytes.LastIndexByte(b[i:hit], '\n') + 1
			begin = max(begin, hit-maxLine/4) // of a line that is too long, the part around the word
			i = hit
		}
		end := len(b)
		if n := bytes.IndexByte(b[i:], '\n'); n >= 0 {
			end = i + n
		}
		s.line(b[begin:min(end, begin+maxLine)], now)
		i = end + 1
	}
}

// line looks at one line.
func (s *stream) line(line []byte, now time.Time) {
	text, at := tidy(line)
	if at.After(now) || at.Before(now.Add(-lateBound)) { // whoever writes the log may write any time
		at = now
	}
	s.text(text, at, now)
}

func (s *stream) text(text string, at, now time.Time) {
	if h := s.held; h != nil {
		_, rest := introduce(text)
		h.left--
		belongs := h.more.MatchString(rest)
		if belongs && len(h.text) < maxLine {
			h.text += "\n" + rest
		}
		if h.left <= 0 || h.done != nil && h.done.MatchString(h.text) {
			s.release()
		}
		if belongs {
			return
		}
	}
	if hits.next([]byte(text), 0) < 0 || quotes(text) {
		return
	}
	s.weighed += len(text)
	if o, ok := oom.Parse(text); ok {
		s.allocation(o, text, at, now)
		return
	}
	if sig := recognise(text); sig != nil {
		who, rest := introduce(text)
		h := &held{signature: sig, text: rest, who: who, at: at, read: now, more: sig.more, left: followLines}
		s.begin(h)
	}
}

func (s *stream) allocation(o *event.Oom, text string, at, now time.Time) {
	if o.Kind == oom.Kernel || o.Kind == oom.Cgroup {
		return // the kernel log's own line is the witness, not somebody's copy
	}
	who, rest := introduce(text)
	h := &held{text: rest, who: who, at: at, read: now, left: followLines}
	for _, m := range several {
		if m.begins.MatchString(rest) && (m.done == nil || !m.done.MatchString(rest)) {
			h.more, h.done = m.more, m.done
		}
	}
	s.begin(h)
}

// begin holds what may go on, and lets go of anything else.
func (s *stream) begin(h *held) {
	s.release()
	h.worker = s.of(h.who)
	s.held = h
	if h.more == nil {
		s.release()
	}
}

// settle lets go of what was held long enough, and of what the rates held back.
func (s *stream) settle(now time.Time) {
	if s.held != nil && now.Sub(s.held.read) >= followSpan {
		s.release()
	}
	for name, b := range s.buckets {
		if now.Sub(b.since) >= time.Minute {
			s.spill(b)
			delete(s.buckets, name)
		}
	}
}

// release makes the event of what is held.
func (s *stream) release() {
	h := s.held
	if s.held = nil; h == nil {
		return
	}
	e := &event.Event{Time: timestamppb.New(h.at), Worker: h.worker}
	if h.signature != nil {
		text := strings.Join(strings.Fields(h.text), " ")
		fields := h.signature.fields(text)
		if h.who.pid != "" {
			set(fields, "pid", h.who.pid) // in its own namespace, so that it can be no Worker's
		}
		if h.who.index != nil {
			set(fields, "engine_index", strconv.FormatInt(*h.who.index, 10))
		}
		if h.who.rank != nil {
			set(fields, "rank", strconv.FormatInt(*h.who.rank, 10))
		}
		e.Log = &event.Log{Signature: h.signature.name, Text: event.Shorten(text, maxText), Fields: fields}
		s.rate(h.signature.name, e, h.read)
		return
	}
	o, ok := oom.Parse(h.text)
	if !ok || s.repeats(o, h.read) {
		return
	}
	e.Oom = o
	s.rate(oomName, e, h.read)
}

// of is the worker that the configuration names, made more exact by the line.
func (s *stream) of(who speaker) *event.Worker {
	if s.worker == nil {
		return nil
	}
	w := proto.CloneOf(s.worker)
	if w.EngineIndex == nil && who.index != nil {
		w.EngineIndex = event.Ptr(*who.index)
	}
	if w.Rank == nil && who.rank != nil {
		w.Rank = event.Ptr(*who.rank)
	}
	return w
}

// failure is what makes two texts the same failed allocation: the device and all numbers.
type failure struct {
	kind, device string
	values       [7]uint64
	known        [7]bool
}

var device = regexp.MustCompile(`\b(?:GPU|device) ([0-9]{1,4})\b`)

func failureOf(o *event.Oom) failure {
	f := failure{kind: o.Kind, device: device.FindString(o.Text)}
	for i, v := range []*uint64{o.RequestedBytes, o.FreeBytes, o.LimitBytes, o.AllocatedBytes, o.ReservedUnallocatedBytes, o.PrivatePoolFreeBytes, o.OtherProcessesBytes} {
		if v != nil {
			f.values[i], f.known[i] = *v, true
		}
	}
	return f
}

// repeats says whether the same failure was told a moment ago: a worker's exception is logged again by the engine's core and by
// the server in front of it.
func (s *stream) repeats(o *event.Oom, at time.Time) bool {
	same := failureOf(o)
	if last, ok := s.recent[same]; ok && at.Sub(last) < oncePer {
		return true
	}
	for f, last := range s.recent {
		if at.Sub(last) >= oncePer {
			delete(s.recent, f)
		}
	}
	if s.recent == nil {
		s.recent = make(map[failure]time.Time)
	}
	if len(s.recent) < maxRecent {
		s.recent[same] = at
	}
	return false
}

// rate lets ten events of a signature pass a minute. Of the others the last one leaves at the minute's end and says how many.
func (s *stream) rate(name string, e *event.Event, at time.Time) {
	b := s.buckets[name]
	if b != nil && at.Sub(b.since) >= time.Minute {
		s.spill(b)
		b = nil
	}
	if b == nil {
		b = &bucket{since: at}
		if s.buckets == nil {
			s.buckets = make(map[string]*bucket)
		}
		s.buckets[name] = b
	}
	if b.n++; b.n <= perMinute {
		s.out(e)
		return
	}
	b.over++
	b.last = e
}

func (s *stream) spill(b *bucket) {
	if b.over == 0 {
		return
	}
	if others := b.over - 1; others > 0 {
		if b.last.Log != nil {
			b.last.Log.Fields["held_back"] = strconv.Itoa(others)
		} else {
			b.last.Oom.Text += fmt.Sprintf(" [%d more within the minute]", others)
		}
	}
	s.out(b.last)
	b.over, b.last = 0, nil
}
