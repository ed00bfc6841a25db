package sink

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor/broker/brokertest"
)

// The same against a real engine, which is ended and started again between: by id, every row is there once. The seed is printed.
func TestEngineHasEveryRowOnceWhateverDiesWhen(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	o := &onceStore{t: t, folder: t.TempDir()}
	o.start()
	defer func() { o.end() }()
	for _, table := range []string{TableWorkers, TableGpus, TableHosts, TableEvents} {
		if err := o.store.exec(t.Context(), "ALTER TABLE lowtide."+table+" REMOVE TTL"); err != nil {
			t.Fatal(err)
		}
	}
	// Some rows are refused by the table: 1 of 11 ticks.
	if err := o.store.exec(t.Context(), "ALTER TABLE lowtide.gpu_samples ADD CONSTRAINT odd CHECK toUnixTimestamp(time) % 11 != 0"); err != nil {
		t.Fatal(err)
	}
	_, _, js := brokertest.Start(t)
	f := fleetOf{t, js}
	next := map[string]uint64{}
	findings := map[string]bool{}
	publish := func(n int) {
		for range n {
			if random.IntN(10) == 0 {
				id := "f" + strconv.Itoa(random.IntN(20))
				findings[id] = true
				f.publish(f.finding(id))
			}
			host := "gpu-" + strconv.Itoa(random.IntN(30))
			next[host]++
			m := f.message(host, next[host])
			f.publish(m)
			if random.IntN(5) == 0 {
				f.publish(m)
			}
		}
	}
	for round := range 6 {
		publish(60)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		if err := live(ctx, js, o.store, 8+random.IntN(60), random.IntN(2) == 0); err != nil {
			t.Error(err)
		}
		cancel()
		if round%3 == 2 {
			o.end()
			o.start()
		}
	}
	publish(100)
	total, marksWanted, refusedWanted := uint64(0), uint64(0), uint64(0)
	for _, n := range next {
		total, marksWanted = total+n, marksWanted+n/3
		for i := uint64(1); i <= n; i++ {
			if (uint64(tick.Unix())+i)%11 == 0 {
				refusedWanted++
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- live(ctx, js, o.store, -1, false) }()
	tally := func() map[string]uint64 {
		return map[string]uint64{
			"worker_samples": o.count("SELECT count() FROM lowtide.worker_samples"), "gpu_samples": o.count("SELECT count() FROM lowtide.gpu_samples"),
			"host_samples": o.count("SELECT count() FROM lowtide.host_samples"), "marks": o.count("SELECT count() FROM lowtide.events WHERE event = 'mark'"),
			"refused":  o.count("SELECT count() FROM lowtide.events WHERE event = 'refused' AND name = 'gpu_samples' AND JSONExtractString(body, 'uuid') = 'GPU-a'"),
			"findings": o.count("SELECT count() FROM lowtide.findings"), "distinct": o.count("SELECT uniqExact(id) FROM lowtide.findings"), "incidents": o.count("SELECT count() FROM lowtide.incidents FINAL"),
		}
	}
	n := uint64(len(findings))
	want := fmt.Sprint(map[string]uint64{"worker_samples": total, "gpu_samples": total - refusedWanted, "host_samples": total, "marks": marksWanted, "refused": refusedWanted,
		"findings": n, "distinct": n, "incidents": n})
	got := ""
	for deadline := time.Now().Add(time.Minute); got != want && time.Now().Before(deadline); {
		got = fmt.Sprint(tally())
		if pause(t.Context(), 100*time.Millisecond) != nil {
			break
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got = fmt.Sprint(tally()); got != want {
		t.Errorf("seed %d\n got %s\nwant %s", seed, got, want)
	}
	for _, table := range []string{TableWorkers, TableGpus, TableHosts} {
		if twice := o.count("SELECT count() FROM (SELECT host, time FROM lowtide." + table + " GROUP BY host, time HAVING count() > 1)"); twice != 0 {
			t.Errorf("seed %d: %d rows of %s are there twice", seed, twice, table)
		}
	}
}

// BenchmarkInsert is a block of 8,000 workers' ticks, joined and stored in a real engine.
func BenchmarkInsert(b *testing.B) {
	o := &onceStore{t: b, folder: b.TempDir()}
	o.start()
	defer o.end()
	sequence := uint64(0)
	block := busy(&sequence, 1000)
	n := 0
	for b.Loop() {
		n++
		block.Token = "bench" + strconv.Itoa(n)
		if err := o.store.Insert(b.Context(), block); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n*8000)/b.Elapsed().Seconds(), "worker-samples/s")
}

// busy is a block of hosts with eight workers each, one tick.
func busy(sequence *uint64, hosts int) Block {
	now := time.Now().UTC().Truncate(time.Second)
	b := Block{Token: "bench" + strconv.FormatUint(*sequence, 10) + "-" + strconv.FormatInt(now.UnixNano(), 10)}
	for h := range hosts {
		*sequence++
		m := tickBatch(*sequence, now.Add(time.Duration(*sequence)*time.Millisecond))
		host := &event.Host{Cluster: "prod", Name: "gpu-" + strconv.Itoa(h), BootId: "b1"}
		one := m.Batch.Events
		m.Batch.Host, m.Batch.Events = host, nil
		for w := range 8 {
			worker := &event.Worker{Pid: int64(100 + w), StartTicks: event.Ptr(uint64(7)), Role: "worker", Rank: event.Ptr(int64(w)), Engine: "vllm", Unit: "vllm", Model: "m", Release: "r1", GpuUuids: []string{"GPU-" + strconv.Itoa(w)}}
			for _, e := range one[:4] {
				c := &event.Event{Time: timestamppb.New(m.Time), Host: host, Worker: worker, Process: e.Process, Allocator: e.Allocator, Engine: e.Engine, GpuProcess: e.GpuProcess}
				if c.GpuProcess != nil {
					c.GpuProcess = &event.GpuProcess{GpuUuid: worker.GpuUuids[0], UsedBytes: event.Ptr(uint64(700))}
				}
				m.Batch.Events = append(m.Batch.Events, c)
			}
		}
		b.Messages = append(b.Messages, m)
	}
	return b
}
