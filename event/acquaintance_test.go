package event

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// tickOf is what a host of the fleet says at a tick: two workers with a card each, and their texts.
func tickOf(t testing.TB, host, tick int, workers ...int) []byte {
	t.Helper()
	b := &Batch{Host: &Host{Cluster: "c", Name: fmt.Sprint("host-", host), BootId: fmt.Sprint("boot-", host)}, Source: AllSources, Producer: fmt.Sprint("p", host), Lane: LaneSamples, Sequence: uint64(tick)}
	stamp := &timestamppb.Timestamp{Seconds: int64(1_800_000_000 + tick)}
	for _, n := range workers {
		card := fmt.Sprintf("GPU-%d-%d", host, n)
		w := &Worker{Pid: int64(1000*host + n + 1), Unit: fmt.Sprint("unit-", n), GpuUuids: []string{card}}
		b.Events = append(b.Events, &Event{Time: stamp, Gpu: &Gpu{Uuid: card, Name: "H200"}},
			&Event{Time: stamp, Worker: w, Allocator: &Allocator{GpuUuid: card, Backend: "native", AllocatedBytes: Ptr(uint64(tick))}},
			&Event{Time: stamp, Worker: w, Process: &Process{RssBytes: Ptr(uint64(tick))}})
	}
	text, err := EncodeBatch(b)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func workersOf(b *Batch) (out []*Worker) {
	for _, e := range b.Events {
		if e.Process != nil {
			out = append(out, e.Worker)
		}
	}
	return out
}

// Hosts that take turns are known at their next tick, whichever of their workers come, and in whatever order.
func TestBatchReaderKnowsAFleet(t *testing.T) {
	const hosts = 300
	r := NewBatchReader()
	first := make([]*Batch, hosts)
	for tick := 1; tick <= 4; tick++ {
		for n := range hosts {
			workers := [][]int{{0, 1, 2}, {2, 0, 1}, {1}, {2, 1, 0}}[tick-1]
			text := tickOf(t, n, tick, workers...)
			alike(t, r, "", text)
			b := r.plain(text)
			if b == nil {
				t.Fatal("not in the plain form")
			}
			if tick == 1 {
				first[n] = b
				continue
			}
			if b.Host != first[n].Host {
				t.Fatalf("host %d is read anew", n)
			}
			known := workersOf(first[n])
			for i, w := range workersOf(b) {
				if w != known[workers[i]] {
					t.Fatalf("host %d: worker %d is read anew", n, workers[i])
				}
			}
		}
	}
}

// With room for about 100 of 1000 hosts, the room is not exceeded, every message is right, and some of the hosts are known again.
func TestBatchReaderForgets(t *testing.T) {
	r := NewBatchReader()
	r.plain(tickOf(t, 0, 1, 0, 1))
	r.known.most = 100 * r.known.bytes
	again, seen := 0, map[int]*Host{}
	for tick := 1; tick <= 3; tick++ {
		for n := range 1000 {
			text := tickOf(t, n, tick, 0, 1)
			alike(t, r, "", text)
			b := r.plain(text)
			if seen[n] == b.Host && tick > 1 {
				again++
			}
			seen[n] = b.Host
			if r.known.bytes > r.known.most || len(r.known.hosts) > 110 {
				t.Fatalf("%d bytes of %d hosts are held, the limit is %d", r.known.bytes, len(r.known.hosts), r.known.most)
			}
		}
	}
	total := 0
	for _, a := range r.known.hosts {
		total += a.bytes
	}
	if total != r.known.bytes {
		t.Errorf("%d bytes are counted, and %d are held", r.known.bytes, total)
	}
	if len(r.known.hosts) < 90 || again == 2000 {
		t.Errorf("%d hosts are held, %d were known again", len(r.known.hosts), again)
	}
}

// Of a host whose workers are others all the time, no more than maxWorkers are known, and those that stay are not forgotten for them.
func TestBatchReaderForgetsWorkers(t *testing.T) {
	r := NewBatchReader()
	stays := workersOf(r.plain(tickOf(t, 1, 0, 0)))[0]
	for tick := 1; tick < 5*maxWorkers; tick++ {
		text := tickOf(t, 1, tick, 0, tick)
		alike(t, r, "", text)
		if got := workersOf(r.plain(text)); got[0] != stays {
			t.Fatalf("tick %d: the worker that stays is read anew", tick)
		}
	}
	for _, a := range r.known.hosts {
		if n := len(a.workers); n > maxWorkers {
			t.Errorf("%d workers are known", n)
		}
	}
	var many []int
	for n := range 3 * maxWorkers {
		many = append(many, n)
	}
	alike(t, r, "", tickOf(t, 1, 9999, many...))
	slices.Reverse(many)
	alike(t, r, "", tickOf(t, 1, 9999, many...))
}

// What is believed to be held of a host is what the heap says, within a third.
func TestAcquaintancesWeighWhatIsBelieved(t *testing.T) {
	const hosts = 2000
	var texts [][]byte
	for n := range hosts {
		texts = append(texts, tickOf(t, n, 1, 0, 1, 2, 3, 4, 5, 6, 7))
	}
	held := func() uint64 {
		runtime.GC()
		var now runtime.MemStats
		runtime.ReadMemStats(&now)
		return now.HeapAlloc
	}
	before := held()
	r := NewBatchReader()
	for _, text := range texts {
		if r.plain(text) == nil {
			t.Fatal("not in the plain form")
		}
	}
	grown := float64(held() - before)
	runtime.KeepAlive(texts)
	if believed := float64(r.known.bytes); believed < grown/1.33 || believed > grown*1.33 {
		t.Errorf("%.0f bytes of a host are believed to be held, and %.0f are", believed/hosts, grown/hosts)
	} else {
		t.Logf("%.0f bytes of a host, believed %.0f", grown/hosts, believed/hosts)
	}
	runtime.KeepAlive(r)
}
