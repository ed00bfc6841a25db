package event

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestRecordingReadsWhatWasRecorded(t *testing.T) {
	file, err := os.Open("testdata/leak.ndjson.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	reader, err := NewReader(file, "leak")
	if err != nil {
		t.Fatal(err)
	}
	bodies := map[string]int{}
	var out bytes.Buffer
	writer := NewWriter(&out)
	var events []*Event
	for {
		e, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		bodies[e.Body()]++
		events = append(events, e)
		if err := writer.Write(e); err != nil {
			t.Fatal(err)
		}
	}
	for _, body := range []string{"gpu", "gpu_process", "allocator", "engine", "process"} {
		if bodies[body] != 423 { // counted with zcat | grep -c
			t.Errorf("%d events of %s, want 423", bodies[body], body)
		}
	}
	if err := writer.Flush(); err != nil {
		t.Fatal(err)
	}
	if got := reader.Warnings(); len(got) != 0 {
		t.Errorf("warnings %v", got)
	}
	again, err := NewReader(&out, "again")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range events {
		got, err := again.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got, want) {
			t.Fatalf("event %d came back as %v, was %v", i, got, want)
		}
	}
}

const head = `{"time":"2026-11-01T00:00:00Z","host":{"cluster":"lab","name":"a"},`

func TestReaderNamesTheLine(t *testing.T) {
	good := head + `"gpu":{"uuid":"GPU-1","used_bytes":1}}` + "\n"
	for _, test := range []struct{ name, text, want string }{
		{"not JSON", good + "{oops\n", "r:2: "},
		{"no time", good + good + `{"host":{"cluster":"lab","name":"a"},"gpu":{"uuid":"x"}}`, "r:3: field time: missing"},
		{"no host", `{"time":"2026-11-01T00:00:00Z","gpu":{"uuid":"x"}}`, "r:1: field host: missing"},
		{"no body", head[:len(head)-1] + "}", "r:1: no body"},
		{"two bodies", head + `"gpu":{"uuid":"x"},"machine":{"fds":1}}`, "r:1: 2 bodies"},
		{"dotted host", `{"time":"2026-11-01T00:00:00Z","host":{"cluster":"lab","name":"a.b"},"gpu":{"uuid":"x"}}`, `r:1: field host.name: "a.b"`},
		{"negative bytes", head + `"gpu":{"uuid":"x","used_bytes":-1}}`, "r:1: field gpu.used_bytes:"},
		{"half a byte", head + `"gpu":{"uuid":"x","used_bytes":1.5}}`, "r:1: field gpu.used_bytes:"},
		{"text for a number", head + `"gpu":{"uuid":"x","used_bytes":"1"}}`, "r:1: field gpu.used_bytes:"},
		{"process without worker", head + `"process":{"fds":1}}`, "r:1: field worker: missing"},
		{"more than anything is", head + `"worker":{"pid":1},"engine":{"kv_usage":1e39}}`, "r:1: field engine.kv_usage: 1e+39 is no measurement"},
		{"in a part of a body", head + `"snapshot":{"pools":[{"name":"x","fragmentation":-2e18}]}}`, "r:1: field snapshot.pools.fragmentation: -2e+18 is no measurement"},
		{"a long name", head + `"gpu":{"uuid":"` + strings.Repeat("x", 4097) + `"}}`, "r:1: field gpu.uuid: 4097 bytes, at most 4096"},
		{"a long unit", head + `"worker":{"pid":1,"unit":"` + strings.Repeat("x", 4097) + `"},"process":{"fds":1}}`, "r:1: field worker.unit: 4097 bytes, at most 4096"},
		{"a long boot id", `{"time":"2026-11-01T00:00:00Z","host":{"cluster":"lab","name":"a","boot_id":"` + strings.Repeat("x", 4097) + `"},"gpu":{"uuid":"x"}}`, "r:1: field host.boot_id: 4097 bytes"},
		{"a long value", head + `"log":{"signature":"s","fields":{"b":"` + strings.Repeat("x", 5000) + `","a":"` + strings.Repeat("x", 4097) + `"}}}`, "r:1: field log.fields.a: 4097 bytes"},
		{"a long text", head + `"oom":{"kind":"cuda","text":"` + strings.Repeat("x", 65537) + `"}}`, "r:1: field oom.text: 65537 bytes, at most 65536"},
		{"too long", head + `"mark":{"note":"` + strings.Repeat("x", MaxLine) + `"}}`, "r:1: event is"},
	} {
		t.Run(test.name, func(t *testing.T) {
			reader, err := NewReader(strings.NewReader(test.text), "r")
			if err != nil {
				t.Fatal(err)
			}
			for err == nil {
				_, err = reader.Next()
			}
			if !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("got %q, want it to begin with %q", err, test.want)
			}
		})
	}
}

func TestTornGzipNamesTheLine(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	for range 5000 {
		io.WriteString(z, head+`"gpu":{"uuid":"GPU-1"}}`+"\n")
	}
	z.Close()
	reader, err := NewReader(bytes.NewReader(zipped.Bytes()[:zipped.Len()/2]), "torn")
	for err == nil {
		_, err = reader.Next()
	}
	if errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "torn:") || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("a torn file ended with %v", err)
	}
}

func TestUnknownFieldsAndBodies(t *testing.T) {
	text := head + `"worker":{"pid":7,"colour":"red"},"process":{"fds":5.0,"rss_bytes":1e9,"smell":1}}` + "\n" +
		head + `"fan":{"rpm":12}}` + "\n"
	reader, err := NewReader(strings.NewReader(text), "r")
	if err != nil {
		t.Fatal(err)
	}
	e, err := reader.Next()
	if err != nil {
		t.Fatal(err)
	}
	if *e.Process.Fds != 5 || *e.Process.RssBytes != 1_000_000_000 {
		t.Errorf("process is %v", e.Process)
	}
	warnings := strings.Join(reader.Warnings(), "\n")
	for _, want := range []string{"r:1: unknown field worker.colour left out", "r:1: unknown field process.smell left out"} {
		if !strings.Contains(warnings, want) {
			t.Errorf("warnings %q lack %q", warnings, want)
		}
	}
	other, err := reader.Next()
	if err != nil {
		t.Fatal(err)
	}
	back, err := MarshalEvent(other)
	if err != nil {
		t.Fatal(err)
	}
	if other.Body() != "fan" || string(back) != `{"time":"2026-11-01T00:00:00Z","host":{"cluster":"lab","name":"a"},"fan":{"rpm":12}}` {
		t.Errorf("unknown body came back as %s", back)
	}
}

func TestBatchRoundTrip(t *testing.T) {
	e, _, err := UnmarshalEvent([]byte(head + `"gpu":{"uuid":"GPU-1","used_bytes":9007199254740993}}`))
	if err != nil {
		t.Fatal(err)
	}
	b := &Batch{Host: e.Host, Source: "nvml", Producer: "p", Lane: LaneSamples, Sequence: 3, Events: []*Event{e}}
	wire, err := EncodeBatch(b)
	if err != nil {
		t.Fatal(err)
	}
	byJSON := `{"host":{"cluster":"lab","name":"a"},"source":"nvml","producer":"p","lane":"samples","sequence":3,` +
		`"events":[{"time":"2026-11-01T00:00:00Z","gpu":{"uuid":"GPU-1","used_bytes":9007199254740993}}]}`
	for kind, data := range map[string][]byte{"": wire, "application/json; charset=utf-8": []byte(byJSON)} {
		got, _, err := DecodeBatch(kind, data)
		if err != nil {
			t.Fatalf("%q: %v", kind, err)
		}
		if !proto.Equal(got.Events[0], e) || got.Sequence != 3 {
			t.Errorf("%q: got %v, want %v", kind, got, e)
		}
	}
	if _, _, err := DecodeBatch("", []byte("garbage")); !errors.Is(err, ErrEnvelope) {
		t.Errorf("garbage gave %v", err)
	}
}

func FuzzUnmarshalEvent(f *testing.F) {
	f.Add([]byte(head + `"worker":{"pid":7,"colour":"red"},"process":{"fds":5.0}}`))
	f.Add([]byte(head + `"fan":{"rpm":12}}`))
	f.Add([]byte(head + `"snapshot":{"pools":[{"name":"x","free_bytes":1e3}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, _, err := UnmarshalEvent(text)
		if err != nil {
			return
		}
		back, err := MarshalEvent(e)
		if err != nil {
			t.Fatalf("cannot write what was read: %v", err)
		}
		again, warnings, err := UnmarshalEvent(back)
		if err != nil || len(warnings) > 0 || !proto.Equal(e, again) {
			t.Fatalf("%s came back as %v (%v, %v)", back, again, warnings, err)
		}
	})
}

func FuzzDecodeBatch(f *testing.F) {
	f.Add("", []byte{8, 1})
	f.Add("application/json", []byte(`{"host":{"cluster":"c","name":"n"},"source":"s","lane":"samples","events":[]}`))
	f.Fuzz(func(t *testing.T, kind string, data []byte) {
		b, _, err := DecodeBatch(kind, data)
		if err != nil {
			return
		}
		if _, err := EncodeBatch(b); err != nil {
			t.Fatalf("cannot write what was read: %v", err)
		}
	})
}

func BenchmarkUnmarshalEvent(b *testing.B) {
	text := []byte(head + `"worker":{"pid":4242,"start_time":"2026-11-01T00:00:00Z","engine":"vllm","engine_index":0,"gpu_uuids":["GPU-1"],"model":"m","release":"r"},"allocator":{"backend":"native","allocated_bytes":8623751168,"reserved_bytes":8896118784,"active_bytes":8623751168,"ooms_total":0}}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := UnmarshalEvent(text); err != nil {
			b.Fatal(err)
		}
	}
}

func TestFormatQuantity(t *testing.T) {
	for _, test := range []struct {
		value      float64
		unit, want string
	}{
		{2 << 30, "bytes/h", "2 GiB/h"}, {1.5 * (1 << 20), "bytes/abort", "1.5 MiB/abort"}, {0.125, "ratio", "12.5 %"},
		{44.5117, "seconds", "44.5 s"}, {12, "1", "12"}, {3.2, "hours", "3.2 h"}, {-512, "bytes", "-512 B"},
	} {
		if got := FormatQuantity(test.value, test.unit); got != test.want {
			t.Errorf("%v %s is %q, want %q", test.value, test.unit, got, test.want)
		}
	}
}

// What a double may hold on the wire and JSON cannot write is refused; what is only long or large is taken.
func TestBoundsOfABatch(t *testing.T) {
	for _, test := range []struct {
		name string
		body *Event
		want string
	}{
		{"no number", &Event{Gpu: &Gpu{Uuid: "x", Utilization: Ptr(math.NaN())}}, "field gpu.utilization: NaN is no measurement"},
		{"infinite", &Event{Worker: &Worker{Pid: 1}, Process: &Process{CpuSecondsTotal: Ptr(math.Inf(1))}}, "field process.cpu_seconds_total: +Inf"},
		{"infinite beside", &Event{Source: &SourceStatus{Name: "x", TookSeconds: Ptr(math.Inf(-1))}}, "field source.took_seconds: -Inf"},
		{"of a rare body", &Event{Config: &Config{GpuMemoryUtilization: Ptr(math.Inf(1))}}, "field config.gpu_memory_utilization: +Inf"},
		{"large", &Event{Gpu: &Gpu{Uuid: strings.Repeat("x", 4096), PowerWatts: Ptr(1e18), UsedBytes: Ptr(uint64(math.MaxUint64))}}, ""},
		{"a long text", &Event{Source: &SourceStatus{Name: "x", Error: strings.Repeat("x", 9000)}}, ""},
		{"many names", &Event{Worker: &Worker{Pid: 1, GpuUuids: slices.Repeat([]string{strings.Repeat("x", 100)}, 64)}, Process: &Process{Fds: Ptr(uint64(1))}}, ""},
	} {
		test.body.Time = timestamppb.New(time.Unix(1_790_000_000, 0))
		wire, err := EncodeBatch(&Batch{Host: &Host{Cluster: "c", Name: "n"}, Source: "s", Lane: LaneSamples, Events: []*Event{test.body}})
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = DecodeBatch("", wire)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}
