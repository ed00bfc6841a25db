package snapshot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
)

// Read reads one snapshot to the end of the stream, raw or gzipped (told apart by the first two bytes), without seeking. What it
// refuses is a *Fault, which names the byte and the opcode and has a hint. It takes no more memory than a small multiple of what it
// has read, whatever the pickle claims.
func Read(r io.Reader, limits Limits) (*Snapshot, error) {
	s, err := read(r, limits.orDefault())
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	return s, nil
}

func read(r io.Reader, limits Limits) (*Snapshot, error) {
	size := sizeOf(r)
	raw, err := inflate(r)
	if err != nil {
		return nil, err
	}
	m := &machine{in: newInput(raw, limits.Bytes), limits: limits, whole: size, tables: newTables()}
	if err := m.run(); err != nil {
		return nil, err
	}
	if err := m.in.fill(1); err != nil {
		return nil, err
	}
	if m.in.pos < m.in.end {
		return nil, &Fault{Offset: m.in.offset(), Text: "bytes after the pickle's STOP", Kind: ErrMalformed}
	}
	return m.snapshot()
}

// sizeOf is how long the stream is, where it says so: a file, or bytes in memory; else 0. It is a hint, see roomier.
func sizeOf(r io.Reader) int64 {
	switch r := r.(type) {
	case interface{ Len() int }:
		return int64(r.Len())
	case interface{ Stat() (fs.FileInfo, error) }:
		if info, err := r.Stat(); err == nil && info.Mode().IsRegular() {
			return info.Size()
		}
	}
	return 0
}

// inflate takes the gzip off a stream that has one.
func inflate(r io.Reader) (io.Reader, error) {
	head := make([]byte, 2)
	n, err := io.ReadFull(r, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	whole := io.MultiReader(bytes.NewReader(head[:n]), r)
	if n < 2 || head[0] != 0x1f || head[1] != 0x8b {
		return whole, nil
	}
	z, err := gzip.NewReader(whole)
	if err != nil {
		return nil, &Fault{Text: fmt.Sprintf("gzip: %v", err), Kind: ErrMalformed}
	}
	return gzipped{z}, nil
}

// gzipped gives the errors of a gzip stream their kind.
type gzipped struct{ z *gzip.Reader }

// Read is that of the stream.
func (g gzipped) Read(b []byte) (int, error) {
	n, err := g.z.Read(b)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = fmt.Errorf("gzip: %w", ErrTruncated)
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader):
		err = fmt.Errorf("%w: %w", err, ErrMalformed)
	}
	return n, err
}

// snapshot is what the machine has found, once it has stopped.
func (m *machine) snapshot() (*Snapshot, error) {
	m.memo = nil
	last := m.stack[0]
	m.stack = nil
	switch {
	case last.kind == kindTop && m.tops == 1:
	case last.kind == kindSegments:
		m.found = top{segments: last, traces: value{kind: kindEmpty}} // of torch.cuda.memory_snapshot(), a bare list
	default:
		return nil, m.layout("the pickle is of something else: a dict with segments is needed")
	}
	s := &Snapshot{
		Annotations: m.found.annotations, Protocol: m.protocol, Bytes: m.in.offset(), Legacy: m.legacy,
	}
	if m.found.settings {
		s.Settings = m.settings
	}
	var err error
	if s.Segments, err = m.segmentsFound(); err != nil {
		return nil, err
	}
	if s.Traces, err = m.tracesFound(); err != nil {
		return nil, err
	}
	s.Frames, s.Stacks = m.stacksFound()
	for name := range m.unknown {
		word := m.names.bytes(uint32(name))
		s.Unknown = append(s.Unknown, strings.ToValidUTF8(string(word[:min(len(word), maxUnknownName)]), ""))
	}
	slices.Sort(s.Unknown)
	return s, nil
}

func (m *machine) layout(text string) error {
	if m.wrong != "" {
		text += "; " + m.wrong
	}
	return &Fault{Offset: m.in.offset(), Text: text, Kind: ErrLayout}
}

func (m *machine) segmentsFound() ([]Segment, error) {
	switch m.found.segments.kind {
	case kindEmpty, kindNone:
		return nil, nil
	case kindSegments:
	default:
		return nil, m.layout("segments is not a list of segments")
	}
	start, end := span(m.found.segments.n)
	for i := start; i < end; i++ {
		if from, to := span(m.spans[i]); from < to {
			m.segments[i].Blocks = m.blocks[from:to:to]
		}
	}
	return m.segments[start:end:end], nil
}

func (m *machine) tracesFound() ([][]Entry, error) {
	switch m.found.traces.kind {
	case kindEmpty, kindNone:
		return nil, nil
	case kindTraces:
	default:
		return nil, m.layout("device_traces is not a list of lists of entries")
	}
	start, end := span(m.found.traces.n)
	traces := make([][]Entry, end-start)
	for i, n := range m.traces[start:end] {
		if from, to := span(n); from < to {
			traces[i] = m.entries[from:to:to]
		}
	}
	return traces, nil
}

func (m *machine) stacksFound() ([]Frame, []Stack) {
	text := map[uint32]string{}
	name := func(id uint32) string {
		s, ok := text[id]
		if !ok {
			s = m.names.string(id)
			text[id] = s
		}
		return s
	}
	frames := make([]Frame, 1, 1+len(m.frames.keys))
	for _, k := range m.frames.keys {
		frames = append(frames, Frame{Name: name(k.name), File: name(k.file), Line: k.line})
	}
	stacks := make([]Stack, len(m.stacks.ends))
	all := make([]uint32, len(m.stacks.text)/4)
	for i := range all {
		all[i] = binary.LittleEndian.Uint32(m.stacks.text[4*i:])
	}
	for i := 1; i < len(stacks); i++ {
		from, to := m.stacks.ends[i-1]/4, m.stacks.ends[i]/4
		stacks[i] = all[from:to:to]
	}
	return frames, stacks
}
