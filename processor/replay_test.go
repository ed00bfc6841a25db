package processor

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/collector/sim"
	"lowtide/event"
	"lowtide/rules"
)

// The verdicts that were planted when the recordings were made; "" is a healthy worker.
var verdicts = map[string]string{
	"healthy": "", "busy_healthy": "", "cache_plateau": "", "adapters": "", "graphs": "", "frag": "",
	"leak": "retention", "expandable": "retention", "malloc_async": "retention", "native_leak": "native_growth",
	"kv_pressure": "kv_pressure", "kv_leak": "kv_block_leak", "spike": "oversize_request", "host_leak": "host_memory",
}

func builtin(t testing.TB) *rules.Pack {
	t.Helper()
	pack, err := rules.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	return pack
}

func replayFile(t testing.TB, path string) []*event.Finding {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var found []*event.Finding
	if _, _, err := Replay(t.Context(), builtin(t), file, path, func(f *event.Finding) { found = append(found, f) }); err != nil {
		t.Fatal(err)
	}
	return found
}

func TestRecordingsGetTheirVerdicts(t *testing.T) {
	for name, class := range verdicts {
		t.Run(name, func(t *testing.T) {
			found := replayFile(t, filepath.Join("testdata", name+".ndjson.gz"))
			if class == "" {
				for _, f := range found {
					t.Errorf("healthy worker: %s %s, %s", f.Class, f.State, f.Summary)
				}
				return
			}
			if len(found) == 0 {
				t.Fatalf("nothing found, want %s", class)
			}
			incidents := map[string]bool{}
			for _, f := range found {
				incidents[f.Incident] = true
				if f.Class != class || f.Worker.GetPid() != 4242 {
					t.Errorf("%s of pid %d, want %s of 4242", f.Class, f.Worker.GetPid(), class)
				}
			}
			if len(incidents) != 1 {
				t.Errorf("%d incidents of one cause", len(incidents))
			}
		})
	}
}

func TestLeakIsCalledEarlyAndPagedWithItsOOM(t *testing.T) {
	found := replayFile(t, "testdata/leak.ndjson.gz")
	first, last := found[0], found[len(found)-1]
	// Quiet points come about every 20 minutes from 0:38 on; the fourth hour is the first in which three hours have passed.
	if hours := first.Time.Sub(first.Onset).Hours(); hours < 2.9 || hours > 3.4 {
		t.Errorf("called %.2f h after the first quiet point, want about 3", hours)
	}
	if first.Severity != event.Ticket {
		t.Errorf("growth alone is a %s", first.Severity)
	}
	if last.Severity != event.Page || len(last.Symptoms) == 0 || last.Symptoms[0].Name != "oom" {
		t.Errorf("with its OOM it is a %s with symptoms %v", last.Severity, last.Symptoms)
	}
	// The worker kept 13 to 15 MiB per aborted request: 5119 MiB over 347 aborts in the recording's own numbers.
	if last.PerAbort == nil || last.PerAbort.Value < 13<<20 || last.PerAbort.Value > 16<<20 {
		t.Errorf("per abort %v", last.PerAbort)
	}
	text, err := event.MarshalFinding(last)
	if err != nil {
		t.Fatal(err)
	}
	back, err := event.UnmarshalFinding(text)
	if err != nil {
		t.Fatal(err)
	}
	again, err := event.MarshalFinding(back)
	if err != nil || !bytes.Equal(text, again) {
		t.Errorf("finding came back as %s, was %s (%v)", again, text, err)
	}
}

func TestReplayIsDeterministic(t *testing.T) {
	one, two := replayFile(t, "testdata/spike.ndjson.gz"), replayFile(t, "testdata/spike.ndjson.gz")
	if len(one) != len(two) {
		t.Fatalf("%d and %d transitions", len(one), len(two))
	}
	for i := range one {
		a, _ := event.MarshalFinding(one[i])
		b, _ := event.MarshalFinding(two[i])
		if !bytes.Equal(a, b) {
			t.Errorf("transition %d differs:\n%s\n%s", i, a, b)
		}
	}
}

// What came before the torn line is judged, and the error names the line.
func TestCorruptRecordingIsNamedAndNothingBeforeItIsLost(t *testing.T) {
	text := plain(t, "testdata/kv_leak.ndjson.gz")
	lines := strings.SplitAfter(text, "\n")
	torn := strings.Join(lines[:900], "") + lines[900][:20] + "\n" + strings.Join(lines[901:], "")
	var found []*event.Finding
	_, _, err := Replay(t.Context(), builtin(t), strings.NewReader(torn), "torn.ndjson", func(f *event.Finding) { found = append(found, f) })
	if err == nil || !strings.HasPrefix(err.Error(), "torn.ndjson:901: ") {
		t.Errorf("error %v does not name line 901", err)
	}
	if len(found) == 0 || found[0].Class != "kv_block_leak" {
		t.Errorf("found %v before the torn line", found)
	}
}

func TestReplayStopsWhenAsked(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Replay(ctx, builtin(t), strings.NewReader(plain(t, "testdata/leak.ndjson.gz")), "x", func(*event.Finding) {}); err == nil {
		t.Error("went on after the end of its context")
	}
}

func plain(t testing.TB, path string) string {
	t.Helper()
	var out bytes.Buffer
	w := event.NewWriter(&out)
	for _, e := range events(t, path) {
		if err := w.Write(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func events(t testing.TB, path string) (all []*event.Event) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, err := event.NewReader(file, path)
	if err != nil {
		t.Fatal(err)
	}
	for {
		e, err := r.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
}

// BenchmarkReplay reports worker-samples (ticks of one worker) a second, from NDJSON and from decoded events.
func BenchmarkReplay(b *testing.B) {
	pack := builtin(b)
	b.Run("ndjson", func(b *testing.B) {
		text := plain(b, "testdata/leak.ndjson.gz")
		for b.Loop() {
			if _, _, err := Replay(b.Context(), pack, strings.NewReader(text), "leak", func(*event.Finding) {}); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(423*float64(b.N)/b.Elapsed().Seconds(), "worker-samples/s")
	})
	b.Run("decoded", func(b *testing.B) {
		all := events(b, "testdata/leak.ndjson.gz")
		for b.Loop() {
			j := NewJudge(pack, func(*event.Finding) {})
			for _, e := range all {
				j.Apply(e)
			}
			j.Flush()
		}
		b.ReportMetric(423*float64(b.N)/b.Elapsed().Seconds(), "worker-samples/s")
	})
	// At a collector's pace most ticks bring no new point.
	b.Run("decoded, every 5 s", func(b *testing.B) {
		var all []*event.Event
		samples := 0
		if _, err := sim.Play(sim.Scenario{Name: "healthy-steady"}, 1, 12, 5*time.Second, func(e *event.Event) error {
			all = append(all, e)
			if e.Engine != nil {
				samples++
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			j := NewJudge(pack, func(*event.Finding) {})
			for _, e := range all {
				j.Apply(e)
			}
			j.Flush()
		}
		b.ReportMetric(float64(samples)*float64(b.N)/b.Elapsed().Seconds(), "worker-samples/s")
		b.ReportMetric(float64(len(all))/float64(samples), "events/sample")
	})
	b.Run("batches, every 5 s", func(b *testing.B) { benchmarkBatches(b, pack) })
}

// benchmarkBatches judges what event.BatchReader made of a healthy worker's messages, a minute of them at a time, as whoever reads a stream does: what is
// judged was decoded just before. Only judging counts in worker-samples/s.
func benchmarkBatches(b *testing.B, pack *rules.Pack) {
	var tick []*event.Event
	var messages [][]byte
	samples := 0
	send := func() {
		data, err := event.EncodeBatch(&event.Batch{Schema: event.Schema, Host: tick[0].Host, Source: "all", Producer: "p", Lane: event.LaneSamples, Sequence: uint64(len(messages) + 1), Events: tick})
		if err != nil {
			b.Fatal(err)
		}
		messages, tick = append(messages, data), nil
	}
	if _, err := sim.Play(sim.Scenario{Name: "healthy-steady"}, 1, 12, 5*time.Second, func(e *event.Event) error {
		if len(tick) > 0 && !tick[0].At().Equal(e.At()) {
			send()
		}
		tick = append(tick, e)
		if e.Engine != nil {
			samples++
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	send()
	var judging time.Duration
	for b.Loop() {
		j, reader := NewJudge(pack, func(*event.Finding) {}), event.NewBatchReader()
		for some := range slices.Chunk(messages, 12) {
			batches := make([]*event.Batch, len(some))
			for i, data := range some {
				var err error
				if batches[i], _, err = reader.Decode("", data); err != nil {
					b.Fatal(err)
				}
			}
			began := time.Now()
			for _, batch := range batches {
				for _, e := range batch.Events {
					j.Apply(e)
				}
			}
			judging += time.Since(began)
		}
		began := time.Now()
		j.Flush()
		judging += time.Since(began)
	}
	b.ReportMetric(float64(samples)*float64(b.N)/judging.Seconds(), "worker-samples/s")
}
