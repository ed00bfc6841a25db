package spool

import (
	"fmt"
	"testing"

	"lowtide/event"
)

// batchBytes is a tick of one source on a host of eight workers.
const batchBytes = 2 << 10

// What waits does not grow: what is written over the bound drops the oldest, as while a broker is away for long.
func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{batchBytes, 64 << 10} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			s := open(b, Options{Folder: b.TempDir(), MaxBytes: 256 << 20})
			defer closeIt(b, s)
			l, r := s.Lane(event.LaneSamples), numbered(1, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if err := l.Append(r); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "batches/s")
		})
	}
}

func BenchmarkRead(b *testing.B) {
	for _, size := range []int{batchBytes, 64 << 10} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			s := open(b, Options{Folder: b.TempDir(), MaxBytes: 256 << 20})
			defer closeIt(b, s)
			l, r := s.Lane(event.LaneSamples), numbered(1, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				one, err := l.Head()
				if err != nil {
					b.Fatal(err)
				}
				if one == nil {
					b.StopTimer()
					for range (128 << 20) / size {
						if err := l.Append(r); err != nil {
							b.Fatal(err)
						}
					}
					b.StartTimer()
					continue
				}
				if err := l.Pop(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "batches/s")
		})
	}
}

// A collector starts over a full spool: every record is read and checked once.
func BenchmarkOpen(b *testing.B) {
	o := Options{Folder: b.TempDir(), MaxBytes: 256 << 20}
	s := open(b, o)
	l, r := s.Lane(event.LaneSamples), numbered(1, batchBytes)
	for range (200 << 20) / batchBytes {
		if err := l.Append(r); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(s.used.Load())
	closeIt(b, s)
	for b.Loop() {
		closeIt(b, open(b, o))
	}
}
