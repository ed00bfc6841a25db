package processor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/klauspost/compress/s2"

	"lowtide/event"
)

// A saved partition is its mark, a version byte, and two parts, each behind its length: what the partition itself remembers, as
// JSON in s2, and what its judge remembers, in the judge's own form.
const (
	envelopeMark    = "LTPART"
	envelopeVersion = 1
	maxLedger       = 64 << 20 // bytes of the first part, unpacked
	maxPending      = 100_000  // findings that were not published
	maxMarks        = 1_000_000
)

// Errors of a saved partition.
var (
	errEnvelope        = errors.New("saved partition is damaged")
	errEnvelopeVersion = errors.New("saved partition is of another version")
)

// ledger is what a partition remembers beside its judge.
type ledger struct {
	Partition int                  `json:"partition"`
	Applied   uint64               `json:"applied"`          // stream sequence of the newest event
	Clock     time.Time            `json:"clock,omitzero"`   // broker's time of it
	Ticked    time.Time            `json:"ticked,omitzero"`  // that the judge was told last with an event
	Idled     time.Time            `json:"idled,omitzero"`   // and without one
	Pruned    time.Time            `json:"pruned,omitzero"`  // at which marks were pruned
	Refused   int                  `json:"refused,omitzero"` // messages
	Missing   uint64               `json:"missing,omitzero"` // messages that never came, by the sequences of their lanes
	Trimmed   uint64               `json:"trimmed,omitzero"` // stream sequences that were gone before they were read
	Lost      int                  `json:"lost,omitzero"`    // findings
	Published int                  `json:"published,omitzero"`
	Marks     map[string]savedMark `json:"marks,omitempty"`
	Pending   []jsontext.Value     `json:"pending,omitempty"` // findings, in order
}

type savedMark struct {
	Sequence uint64    `json:"sequence"`
	At       time.Time `json:"at"`
}

// encodeEnvelope puts both parts together.
func encodeEnvelope(l ledger, judge []byte) ([]byte, error) {
	text, err := json.Marshal(l)
	if err != nil {
		return nil, fmt.Errorf("save partition %d: %w", l.Partition, err)
	}
	if len(text) > maxLedger {
		return nil, fmt.Errorf("save partition %d: %d bytes beside the judge, the limit is %d", l.Partition, len(text), maxLedger)
	}
	packed := s2.Encode(nil, text)
	out := make([]byte, 0, len(envelopeMark)+1+2*binary.MaxVarintLen64+len(packed)+len(judge))
	out = append(append(out, envelopeMark...), envelopeVersion)
	out = append(binary.AppendUvarint(out, uint64(len(packed))), packed...)
	return append(binary.AppendUvarint(out, uint64(len(judge))), judge...), nil
}

// decodeEnvelope takes it apart. The errors are errEnvelope and errEnvelopeVersion.
func decodeEnvelope(state []byte, partition int) (ledger, []byte, error) {
	fail := func(what string, args ...any) (ledger, []byte, error) {
		return ledger{}, nil, fmt.Errorf("%w: %s", errEnvelope, fmt.Sprintf(what, args...))
	}
	if len(state) <= len(envelopeMark) || string(state[:len(envelopeMark)]) != envelopeMark {
		return fail("it does not begin as one")
	}
	if version := state[len(envelopeMark)]; version != envelopeVersion {
		return ledger{}, nil, fmt.Errorf("%w: %d, this is %d", errEnvelopeVersion, version, envelopeVersion)
	}
	packed, rest, ok := piece(state[len(envelopeMark)+1:])
	if !ok {
		return fail("its first part is cut off")
	}
	judge, rest, ok := piece(rest)
	if !ok || len(rest) > 0 {
		return fail("its second part does not end where it should")
	}
	if size, err := s2.DecodedLen(packed); err != nil || size > maxLedger {
		return fail("its first part is of no sensible size")
	}
	text, err := s2.Decode(nil, packed)
	if err != nil {
		return fail("its first part: %v", err)
	}
	var l ledger
	if err := json.Unmarshal(text, &l); err != nil {
		return fail("its first part: %v", err)
	}
	switch {
	case l.Partition != partition:
		return fail("it is of partition %d", l.Partition)
	case len(l.Marks) > maxMarks, len(l.Pending) > maxPending:
		return fail("%d marks and %d findings are too many", len(l.Marks), len(l.Pending))
	case l.Refused < 0 || l.Lost < 0 || l.Published < 0:
		return fail("it counts below zero")
	}
	return l, judge, nil
}

// piece cuts off what stands behind its length.
func piece(b []byte) (one, rest []byte, ok bool) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return nil, nil, false
	}
	return b[n : n+int(size)], b[n+int(size):], true
}

// ledger returns what the partition remembers now.
func (p *partition) ledger() ledger {
	l := ledger{Partition: p.number, Applied: p.applied, Clock: p.clock, Ticked: p.ticked, Idled: p.idled, Pruned: p.pruned, Refused: p.refused,
		Missing: p.missing, Trimmed: p.trimmed, Lost: p.lost, Published: p.published, Marks: make(map[string]savedMark, len(p.marks))}
	for key, m := range p.marks {
		l.Marks[key] = savedMark{m.sequence, m.at}
	}
	for _, f := range p.findings {
		text, err := event.MarshalFinding(f)
		if err != nil {
			continue // it cannot be published either, which publish says and counts
		}
		l.Pending = append(l.Pending, text)
	}
	return l
}

// resume takes over what a partition remembered.
func (p *partition) resume(l ledger) error {
	pending := make([]*event.Finding, 0, len(l.Pending))
	for _, text := range l.Pending {
		f, err := event.UnmarshalFinding(text)
		if err != nil {
			return fmt.Errorf("%w: a finding that was not published: %w", errEnvelope, err)
		}
		pending = append(pending, f)
	}
	p.applied, p.clock, p.ticked, p.idled, p.pruned = l.Applied, l.Clock, l.Ticked, l.Idled, l.Pruned
	p.refused, p.missing, p.trimmed, p.lost, p.published = l.Refused, l.Missing, l.Trimmed, l.Lost, l.Published
	p.findings = pending
	p.marks = make(map[string]mark, len(l.Marks))
	for key, m := range l.Marks {
		p.marks[key] = mark{m.Sequence, m.At}
	}
	return nil
}
