package spool

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Every segment begins with these bytes. Another version of the format has another line.
const (
	magic         = "lowtide spool 1\n"
	headerBytes   = int64(len(magic))
	segmentSuffix = ".seg"
)

// segment is one file of a lane, written once from its beginning to its end and then only read.
type segment struct {
	number uint64
	path   string
	file   *os.File // while it is being written, else nil
	size   int64    // bytes that can be read; what may lie behind them cannot
	left   Amount   // not sent yet
	first  time.Time
	faulty bool // the last write to it failed and could not be taken back: nothing more is written behind it
}

// Amount is how much waits, or was lost.
type Amount struct{ Messages, Events uint64 }

func (a *Amount) add(b Amount) { a.Messages, a.Events = a.Messages+b.Messages, a.Events+b.Events }
func (a *Amount) sub(b Amount) { a.Messages, a.Events = a.Messages-b.Messages, a.Events-b.Events }

func segmentPath(folder string, number uint64) string {
	return filepath.Join(folder, fmt.Sprintf("%016d%s", number, segmentSuffix))
}

// listSegments returns the numbers of the segments in a folder, oldest first.
func listSegments(folder string) ([]uint64, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var numbers []uint64
	for _, e := range entries {
		digits, ok := strings.CutSuffix(e.Name(), segmentSuffix)
		if !ok || !e.Type().IsRegular() {
			continue
		}
		if n, err := strconv.ParseUint(digits, 10, 63); err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// survey is what a segment holds.
type survey struct {
	left  Amount    // of the records from the offset asked for on
	first time.Time // of the first of them
	from  int64     // where they begin: the offset asked for, or the beginning where no record begins there
	size  int64     // behind the last good record
	fault error     // why it ends there: nil at the end of the file, else errTorn, errDamaged or what the disk said
}

// scan reads a segment of so many bytes to its end or its first bad record. It takes memory for one record, and never more than the
// file has bytes.
func scan(in io.Reader, bytes, from int64) survey {
	s := survey{from: headerBytes}
	s.fault = s.read(bufio.NewReaderSize(in, 256<<10), bytes, from)
	if from >= s.size { // all of it was sent
		s.from, s.left, s.first = s.size, Amount{}, time.Time{}
	}
	return s
}

func (s *survey) read(in *bufio.Reader, bytes, from int64) error {
	header := make([]byte, headerBytes)
	if _, err := io.ReadFull(in, header); err != nil {
		return ending(err)
	}
	if string(header) != magic {
		return fmt.Errorf("%w: no segment of this version", errDamaged)
	}
	var record []byte
	for s.size = headerBytes; s.size < bytes; {
		if s.size == from {
			s.from, s.left = from, Amount{}
		}
		frame, err := in.Peek(frameBytes)
		if err != nil {
			return ending(err)
		}
		n, err := bodyLength(frame)
		if err != nil {
			return err
		}
		whole := frameBytes + n
		if int64(whole) > bytes-s.size {
			return errTorn
		}
		record = slices.Grow(record[:0], whole)[:whole]
		if _, err := io.ReadFull(in, record); err != nil {
			return ending(err)
		}
		one, _, err := decodeRecord(record)
		if err != nil {
			return err
		}
		if s.left.Messages == 0 {
			s.first = one.At
		}
		s.left.add(Amount{1, uint64(one.Events)})
		s.size += int64(whole)
	}
	return nil
}

// ending makes the end of a file in the middle of a record a torn one; anything else is the disk's own error.
func ending(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errTorn
	}
	return err
}

// window reads records of one segment, a piece of the file at a time.
type window struct {
	segment *segment
	file    *os.File
	bytes   []byte
	at      int64 // where bytes begin
}

// windowBytes are read at once: records are a few KiB.
const windowBytes = 64 << 10

// read returns the record at an offset below the end, and where the next one begins. Its data is valid until the next call.
func (w *window) read(s *segment, offset, end int64) (Record, int64, error) {
	if w.segment != s {
		w.close()
		file, err := os.Open(s.path)
		if err != nil {
			return Record{}, 0, err
		}
		w.segment, w.file, w.bytes, w.at = s, file, w.bytes[:0], 0
	}
	frame, err := w.take(offset, frameBytes, end)
	if err != nil {
		return Record{}, 0, err
	}
	n, err := bodyLength(frame)
	if err != nil {
		return Record{}, 0, err
	}
	whole, err := w.take(offset, frameBytes+n, end)
	if err != nil {
		return Record{}, 0, err
	}
	r, size, err := decodeRecord(whole)
	return r, offset + int64(size), err
}

func (w *window) take(offset int64, n int, end int64) ([]byte, error) {
	if end-offset < int64(n) {
		return nil, errTorn
	}
	if offset < w.at || offset+int64(n) > w.at+int64(len(w.bytes)) {
		want := int(min(int64(max(n, windowBytes)), end-offset))
		w.bytes = slices.Grow(w.bytes[:0], want)[:want]
		if got, err := w.file.ReadAt(w.bytes, offset); got < want {
			w.bytes = w.bytes[:0]
			return nil, ending(err)
		}
		w.at = offset
	}
	at := offset - w.at
	return w.bytes[at : at+int64(n)], nil
}

func (w *window) close() {
	if w.file != nil {
		_ = w.file.Close() // only read from
	}
	if cap(w.bytes) > 16*windowBytes {
		w.bytes = nil // one large message must not hold its memory for ever
	}
	w.segment, w.file = nil, nil
}
