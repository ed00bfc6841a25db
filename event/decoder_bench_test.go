package event

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
)

// BenchmarkRead reads a whole recording of one worker. A worker-sample is a tick of one worker: here five lines.
func BenchmarkRead(b *testing.B) {
	zipped, err := os.ReadFile("testdata/leak.ndjson.gz")
	if err != nil {
		b.Fatal(err)
	}
	for _, form := range []struct {
		name string
		text []byte
	}{{"plain", recorded(b)}, {"gzip", zipped}} {
		b.Run(form.name, func(b *testing.B) {
			b.ReportAllocs()
			lines, samples := 0, 0
			for b.Loop() {
				reader, err := NewReader(bytes.NewReader(form.text), "leak")
				if err != nil {
					b.Fatal(err)
				}
				for {
					e, err := reader.Next()
					if errors.Is(err, io.EOF) {
						break
					}
					if err != nil {
						b.Fatal(err)
					}
					lines++
					if e.Process != nil {
						samples++
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(lines), "ns/line")
			b.ReportMetric(float64(samples)/b.Elapsed().Seconds(), "worker-samples/s")
		})
	}
}

// BenchmarkDecodeBatch reads one message of 100 events in both of its forms.
func BenchmarkDecodeBatch(b *testing.B) {
	lines := bytes.SplitN(recorded(b), []byte("\n"), 101)[:100]
	form := []byte(`{"host":{"cluster":"lab","name":"h200-a"},"source":"s","lane":"samples","events":[` + string(bytes.Join(lines, []byte(","))) + `]}`)
	batch, _, err := DecodeBatch("application/json", form)
	if err != nil {
		b.Fatal(err)
	}
	wire, err := EncodeBatch(batch)
	if err != nil {
		b.Fatal(err)
	}
	for kind, text := range map[string][]byte{"application/json": form, "application/protobuf": wire} {
		b.Run(kind, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := DecodeBatch(kind, text); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(100*b.N), "ns/event")
		})
	}
}
