package processor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"reflect"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"

	"lowtide/event"
)

func TestEnvelopeKeepsEverything(t *testing.T) {
	p := newPartition(testPartition, Options{Pack: probePack(t), Log: slog.New(slog.DiscardHandler)}, NewBoard(), nil)
	at := time.Date(2026, 11, 30, 17, 0, 0, 123, time.UTC)
	f := transition("i", "retention", event.Suspected, event.Page)
	f.ID = "finding-1"
	p.applied, p.clock, p.ticked, p.idled, p.pruned = 42, at, at.Add(-time.Second), at.Add(time.Second), at.Add(-time.Minute)
	p.refused, p.missing, p.trimmed, p.lost, p.published = 1, 2, 3, 4, 5
	p.marks = map[string]mark{"c/h/p/samples": {9, at}, "c/h/p/urgent": {1, at.Add(time.Hour)}}
	p.findings = []*event.Finding{f}
	state, err := encodeEnvelope(p.ledger(), []byte("the judge"))
	if err != nil {
		t.Fatal(err)
	}
	l, judge, err := decodeEnvelope(state, testPartition)
	if err != nil || string(judge) != "the judge" {
		t.Fatalf("judge %q (%v)", judge, err)
	}
	q := newPartition(testPartition, Options{Pack: probePack(t), Log: slog.New(slog.DiscardHandler)}, NewBoard(), nil)
	if err := q.resume(l); err != nil {
		t.Fatal(err)
	}
	if got, want := q.ledger(), p.ledger(); !reflect.DeepEqual(got, want) {
		t.Errorf("came back as\n%+v, was\n%+v", got, want)
	}
	if _, _, err := decodeEnvelope(state, testPartition+1); !errors.Is(err, errEnvelope) {
		t.Errorf("of another partition: %v", err)
	}
	for size := range state {
		if _, _, err := decodeEnvelope(state[:size], testPartition); !errors.Is(err, errEnvelope) {
			t.Fatalf("cut off after %d bytes: %v", size, err)
		}
	}
	state[len(envelopeMark)] = 2
	if _, _, err := decodeEnvelope(state, testPartition); !errors.Is(err, errEnvelopeVersion) {
		t.Errorf("of version 2: %v", err)
	}
}

func FuzzEnvelope(f *testing.F) {
	good, err := encodeEnvelope(ledger{Partition: testPartition, Applied: 7, Marks: map[string]savedMark{"c/h/p/samples": {1, time.Unix(1, 0).UTC()}}}, []byte("judge"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte("LTPART\x01"))
	text := []byte(`{"partition":7,"pending":[{"id":"x"}],"refused":-1}`)
	packed := s2.Encode(nil, text)
	f.Add(append(binary.AppendUvarint([]byte("LTPART\x01"), uint64(len(packed))), packed...))
	f.Add(append([]byte("LTPART\x01"), bytes.Repeat([]byte{0xff}, 20)...))
	board, pack := NewBoard(), probePack(f)
	f.Fuzz(func(t *testing.T, state []byte) {
		l, judge, err := decodeEnvelope(state, testPartition)
		if err != nil {
			if !errors.Is(err, errEnvelope) && !errors.Is(err, errEnvelopeVersion) {
				t.Errorf("unnamed error %v", err)
			}
			return
		}
		if len(judge) > len(state) {
			t.Errorf("%d bytes of judge in %d", len(judge), len(state))
		}
		p := newPartition(testPartition, Options{Pack: pack, Log: slog.New(slog.DiscardHandler)}, board, nil)
		if err := p.resume(l); err != nil {
			return
		}
		if _, err := encodeEnvelope(p.ledger(), judge); err != nil {
			t.Errorf("what was read cannot be written: %v", err)
		}
	})
}
