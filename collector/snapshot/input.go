package snapshot

import (
	"fmt"
	"io"
)

const (
	bufferSize = 256 << 10
	lookahead  = 16 // bytes that may be looked at without asking; the longest opcode but strings takes 11
)

// input is the bytes at hand. Up to lookahead bytes past end can be read and are zero at the end of the stream, so that the machine
// needs one check for each opcode: a position beyond end is a truncated pickle.
type input struct {
	reader io.Reader
	buffer []byte
	pos    int
	end    int
	before int64 // bytes of the stream before buffer[0]
	limit  int64
	over   bool // the stream has no more
}

func newInput(r io.Reader, limit int64) *input {
	return &input{reader: r, buffer: make([]byte, bufferSize+lookahead), limit: limit}
}

func (in *input) offset() int64 { return in.before + int64(in.pos) }

// fill has at least need bytes at hand when it returns, fewer only at the end of the stream. need is at most bufferSize.
func (in *input) fill(need int) error {
	if in.over || in.pos > in.end {
		return nil
	}
	copy(in.buffer, in.buffer[in.pos:in.end])
	in.before += int64(in.pos)
	in.end -= in.pos
	in.pos = 0
	for idle := 0; in.end < need; {
		n, err := in.reader.Read(in.buffer[in.end:bufferSize])
		in.end += n
		if in.before+int64(in.end) > in.limit {
			return &Fault{Offset: in.limit, Text: fmt.Sprintf("more than %d bytes", in.limit), Kind: ErrLimit}
		}
		if err == io.EOF {
			in.over = true
			break
		}
		if err != nil {
			return fmt.Errorf("byte %d: %w", in.before+int64(in.end), err)
		}
		if n > 0 {
			idle = 0
		} else if idle++; idle == 100 {
			return fmt.Errorf("byte %d: %w", in.before+int64(in.end), io.ErrNoProgress)
		}
	}
	clear(in.buffer[in.end : in.end+lookahead])
	return nil
}

// text passes over n bytes and returns the first of them, at most maxName; they hold until the next call. It returns false where
// the stream ends before.
func (in *input) text(n int) ([]byte, bool, error) {
	keep := min(n, maxName)
	if in.end-in.pos < keep {
		if err := in.fill(keep); err != nil {
			return nil, false, err
		}
		if in.end-in.pos < keep {
			return nil, false, nil
		}
	}
	kept := in.buffer[in.pos : in.pos+keep]
	in.pos += keep
	return kept, true, nil
}

// skip passes over n bytes, or returns false where the stream ends before.
func (in *input) skip(n int) (bool, error) {
	for n > 0 {
		if in.pos >= in.end {
			if err := in.fill(1); err != nil {
				return false, err
			}
			if in.pos >= in.end {
				return false, nil
			}
		}
		step := min(n, in.end-in.pos)
		in.pos += step
		n -= step
	}
	return true, nil
}
