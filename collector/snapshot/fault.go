package snapshot

import (
	"errors"
	"fmt"
)

// What an error of Read is about, for errors.Is.
var (
	ErrTruncated = errors.New("the snapshot ends too early")
	ErrOpcode    = errors.New("an opcode that snapshots do not need")
	ErrLimit     = errors.New("over a limit")
	ErrMalformed = errors.New("not a well-formed pickle")
	ErrLayout    = errors.New("not an allocator snapshot")
)

// Fault is what Read refuses, and where.
type Fault struct {
	Offset int64  // byte of the uncompressed pickle at which the opcode stands
	Opcode string // in Python's words; empty where none is to blame
	Text   string
	Kind   error // one of the errors above
}

// Error names the byte, the opcode and the problem.
func (f *Fault) Error() string {
	if f.Opcode == "" {
		return fmt.Sprintf("byte %d: %s", f.Offset, f.Text)
	}
	return fmt.Sprintf("byte %d: %s: %s", f.Offset, f.Opcode, f.Text)
}

// Unwrap is the kind.
func (f *Fault) Unwrap() error { return f.Kind }

// Hint says what to do about it.
func (f *Fault) Hint() string {
	switch f.Kind {
	case ErrTruncated:
		return "the writer was stopped or the disk was full: take another snapshot"
	case ErrOpcode:
		return "only files of torch.cuda.memory._dump_snapshot are read; do not open this one with Python's pickle unless you trust its writer"
	case ErrLimit:
		return "take a smaller snapshot: a lower max_entries in torch.cuda.memory._record_memory_history, or stacks=\"python\""
	}
	return "give a file that torch.cuda.memory._dump_snapshot wrote, as it is or gzipped"
}
