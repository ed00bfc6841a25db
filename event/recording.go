package event

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
)

// maxWarnings bounds what one recording may complain about; the rest is only counted.
const maxWarnings = 20

// Reader reads a recording: one event a line, gzip or plain. It is not safe for concurrent use.
type Reader struct {
	name     string
	lines    *bufio.Reader
	events   *decoder
	line     int
	warned   map[string]int
	warnings []string
	more     int
}

// NewReader starts reading. The name stands before every error and warning, as name:line.
func NewReader(r io.Reader, name string) (*Reader, error) {
	buffered := bufio.NewReaderSize(r, 64<<10)
	if magic, _ := buffered.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		unzipped, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("%s: read gzip: %w", name, err)
		}
		buffered = bufio.NewReaderSize(unzipped, 256<<10)
	}
	return &Reader{name: name, lines: buffered, events: newDecoder(), warned: make(map[string]int)}, nil
}

// Next returns the next event, io.EOF after the last. After any other error the recording is at its end: what follows a torn
// line cannot be trusted to be in order. Events share the Time, the Host and the Worker that they have in common: these may be
// replaced in an event, but never changed.
func (r *Reader) Next() (*Event, error) {
	for {
		text, err := r.next()
		if err != nil {
			return nil, err
		}
		text = bytes.TrimSpace(text)
		if len(text) == 0 {
			continue
		}
		e, warnings, err := r.events.event(text)
		if err == nil && e.Host == nil {
			err = errors.New("field host: missing")
		}
		if err != nil {
			return nil, r.fail(err)
		}
		r.warn(warnings)
		return e, nil
	}
}

func (r *Reader) next() ([]byte, error) {
	r.line++
	text, err := r.lines.ReadSlice('\n')
	if err == nil || errors.Is(err, io.EOF) && len(text) > 0 {
		return text, nil
	}
	if errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	if !errors.Is(err, bufio.ErrBufferFull) {
		return nil, r.fail(fmt.Errorf("%w; is the file cut off?", err))
	}
	long := bytes.Clone(text)
	for errors.Is(err, bufio.ErrBufferFull) && len(long) <= MaxLine {
		text, err = r.lines.ReadSlice('\n')
		long = append(long, text...)
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
		return nil, r.fail(err)
	}
	return long, nil // too long is the decoder's to refuse
}

func (r *Reader) fail(err error) error { return fmt.Errorf("%s:%d: %w", r.name, r.line, err) }

func (r *Reader) warn(found []string) {
	for _, text := range found {
		if r.warned[text]++; r.warned[text] > 1 {
			continue
		}
		if len(r.warnings) == maxWarnings {
			r.more++
			continue
		}
		r.warnings = append(r.warnings, fmt.Sprintf("%s:%d: %s", r.name, r.line, text))
	}
}

// Warnings returns what was left out so far, each once with the line where it was first seen.
func (r *Reader) Warnings() []string {
	if r.more == 0 {
		return r.warnings
	}
	return append(r.warnings[:len(r.warnings):len(r.warnings)], fmt.Sprintf("%s: %d more", r.name, r.more))
}

// Writer writes a recording. It is not safe for concurrent use.
type Writer struct {
	out *bufio.Writer
}

// NewWriter starts a recording on w, which stays the caller's to close.
func NewWriter(w io.Writer) *Writer { return &Writer{out: bufio.NewWriter(w)} }

// Write appends one event, which must be valid and name its host.
func (w *Writer) Write(e *Event) error {
	if err := Validate(e); err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	if err := ValidateHost(e.Host); err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	text, err := MarshalEvent(e)
	if err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	if _, err := w.out.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	return nil
}

// Flush writes out what is buffered.
func (w *Writer) Flush() error {
	if err := w.out.Flush(); err != nil {
		return fmt.Errorf("write recording: %w", err)
	}
	return nil
}
