package snapshot

import "testing"

// BenchmarkSummarise summarises a real snapshot, whose history has 12,000 entries that are played backwards.
func BenchmarkSummarise(b *testing.B) {
	s := recordedFile(b, "leak-oom")
	b.ReportAllocs()
	for b.Loop() {
		if r := Summarise(s, Options{}); len(r) != 1 || r[0].LastOom == nil {
			b.Fatal("no OOM is found")
		}
	}
}
