package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// The recordings that end in incidents, and those that do not. Their verdicts are part of the repository's tests.
var (
	troubled = []string{"leak", "kv_leak", "spike", "malloc_async", "expandable", "native_leak", "kv_pressure", "host_leak"}
	healthy  = []string{"healthy", "busy_healthy", "adapters", "cache_plateau", "graphs", "frag"}
)

const (
	playedAgo  = 12 * time.Hour // where the first event lies: the hours of a recording are in the past, and due at once
	playChunk  = 2000           // events that a collector plays at each tick
	endingMark = "fault-end"
)

// library is the recordings, read once.
type library map[string][]*event.Event

func openLibrary(folder string) (library, error) {
	all := library{}
	for _, name := range slices.Concat(troubled, healthy) {
		path := filepath.Join(folder, name+".ndjson.gz")
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("open recording: %w", err)
		}
		reader, err := event.NewReader(file, path)
		for err == nil {
			var e *event.Event
			if e, err = reader.Next(); err == nil {
				all[name] = append(all[name], e)
			}
		}
		_ = file.Close()
		if !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read recording: %w", err)
		}
	}
	return all, nil
}

// part is what one collector plays: the hosts that were drawn for it, in the order of recorded time.
type part struct {
	name   string
	events []*event.Event
	origin time.Time // recorded time of the first event of the run
	start  time.Time // to which it is moved
}

// parts draws who plays what. Every host has a model of its own: what peers prove depends on what each process knows of the others at
// that moment, and is no part of the promise that is checked here.
func (all library) parts(p Plan, start time.Time) []*part {
	draw := rand.New(rand.NewPCG(p.Seed, 0xfeed))
	total := p.Collectors * p.Hosts
	chosen := make([]string, total)
	for i := range chosen {
		if i < p.Troubled {
			chosen[i] = troubled[(i+int(p.Seed%8))%len(troubled)]
		} else {
			chosen[i] = healthy[draw.IntN(len(healthy))]
		}
	}
	draw.Shuffle(total, func(a, b int) { chosen[a], chosen[b] = chosen[b], chosen[a] })
	var jumps []Fault
	for _, f := range p.Faults {
		if f.Kind == ClockJump {
			jumps = append(jumps, f)
		}
	}
	out := make([]*part, p.Collectors)
	for c := range out {
		one := &part{name: fmt.Sprintf("c%d", c), start: start}
		hosts := make([][]*event.Event, p.Hosts)
		for h := range hosts {
			i := c*p.Hosts + h
			hosts[h] = urgent(all.host(chosen[i], i), draw)
			one.events = append(one.events, hosts[h]...)
		}
		slices.SortStableFunc(one.events, func(a, b *event.Event) int { return a.At().Compare(b.At()) })
		one.origin = one.events[0].At()
		for _, jump := range jumps { // last, since a clock that is wrong does not change when things happen
			if jump.Target%p.Collectors == c {
				jumped(hosts[int(jump.At.Milliseconds())%p.Hosts], jump.At.Seconds()/p.Play.Seconds(), jump.Jump)
			}
		}
		out[c] = one
	}
	return out
}

// host returns a recording as that of host number i.
func (all library) host(recording string, i int) []*event.Event {
	host := &event.Host{Cluster: "lab", Name: fmt.Sprintf("h%02d-%s", i, event.Token(recording))}
	card := fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", i+1)
	workers := map[*event.Worker]*event.Worker{}
	events := make([]*event.Event, len(all[recording]))
	for n, e := range all[recording] {
		e = proto.CloneOf(e)
		was := all[recording][n].Worker
		if was != nil && workers[was] == nil {
			w := proto.CloneOf(was)
			w.Model, w.Release, w.GpuUuids = fmt.Sprintf("model-%d", i), fmt.Sprintf("release-%d", i), []string{card}
			workers[was] = w
		}
		e.Host, e.Worker = host, workers[was]
		// A few nanoseconds of its own, so that no two readings of a worker ever fall on the same moment by a jump of its clock.
		e.Time = timestamppb.New(e.At().Add(time.Duration(i) * time.Microsecond))
		switch {
		case e.Gpu != nil:
			e.Gpu.Uuid = card
		case e.GpuProcess != nil:
			e.GpuProcess.GpuUuid = card
		case e.Allocator != nil && e.Allocator.GpuUuid != "":
			e.Allocator.GpuUuid = card
		}
		events[n] = e
	}
	return events
}

// jumped sets the host's clock from a place of the recording on; it stays wrong for a fifth of it.
func jumped(events []*event.Event, from float64, by time.Duration) {
	first := int(min(from, 0.75) * float64(len(events)))
	for _, e := range events[first:min(len(events), first+len(events)/5)] {
		e.Time = timestamppb.New(e.At().Add(by + 7*time.Nanosecond))
	}
}

// urgent adds what travels in the other lane: a worker that is ready, and now and then an application's Xid.
func urgent(events []*event.Event, draw *rand.Rand) []*event.Event {
	var worker *event.Worker
	for _, e := range events {
		if e.Worker != nil {
			worker = e.Worker
			break
		}
	}
	add := func(at int, e *event.Event) {
		e.Host, e.Time = events[at].Host, timestamppb.New(events[at].At().Add(time.Microsecond))
		events = slices.Insert(events, at+1, e)
	}
	for _, at := range []int{draw.IntN(len(events) / 4), len(events)/4 + draw.IntN(len(events)/4)} {
		add(at, &event.Event{Worker: worker, Lifecycle: &event.Lifecycle{State: "ready"}})
	}
	if draw.IntN(12) == 0 {
		code := uint64(79)
		add(len(events)/2+draw.IntN(len(events)/4), &event.Event{Xid: &event.Xid{GpuUuid: worker.GetGpuUuids()[0], Code: &code, Text: "GPU has fallen off the bus.", Source: "kmsg"}})
	}
	return events
}

// write leaves what is played from event number first on, with a mark at its end by which it is known that all of it arrived. It
// returns how far back its first event is to lie.
func (p *part) write(path string, first, life int) (shift func(now time.Time) time.Duration, err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("write recording: %w", err)
	}
	writer := event.NewWriter(file)
	first = min(first, len(p.events)-1)
	for _, e := range p.events[first:] {
		if err == nil {
			err = writer.Write(e)
		}
	}
	last := p.events[len(p.events)-1]
	mark := &event.Event{Time: timestamppb.New(last.At().Add(time.Millisecond)), Host: &event.Host{Cluster: "lab", Name: p.name}, Mark: &event.Mark{Name: p.mark(life), Kind: "end"}}
	if err = errors.Join(err, writer.Write(mark), writer.Flush(), file.Close()); err != nil {
		return nil, fmt.Errorf("write recording %s: %w", path, err)
	}
	begins := p.start.Add(p.events[first].At().Sub(p.origin))
	return func(now time.Time) time.Duration { return now.Sub(begins) }, nil
}

// mark is the name of the last event of a life.
func (p *part) mark(life int) string { return fmt.Sprintf("%s-%s-%d", endingMark, p.name, life) }
