package processor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"lowtide/processor/ownership"
)

// ErrFenced says that another processor has the partition by now. Nothing was acknowledged since, and nothing may be any more. Fences are
// the revisions of the bucket of leases: where that was deleted and made again while the states were kept, all states are fenced,
// until the bucket LOWTIDE_STATE is deleted too and they are made anew from the stream.
var ErrFenced = fmt.Errorf("the partition is another's by now: %w", ownership.ErrLost)

const (
	uploadWait = time.Minute // for one checkpoint
	casTries   = 4
)

// image is a state as it was between two events, ready to be saved.
type image struct {
	state    []byte
	sequence uint64 // the newest event in it
	through  uint64
	findings uint64
	stream   time.Time // when the stream was made that they are of
	at       time.Time
	share    []byte // of the board, for the other processors
}

// hold is a processor's claim to one partition. Save is called by one goroutine at a time; verify by any.
type hold struct {
	archive   *archive
	partition int
	fence     uint64
	log       *slog.Logger

	entry    entry  // the newest that was written
	revision uint64 // of it
}

// claim makes the partition this processor's: it writes the own fence into the entry, from when on no other can save. A fence of 0 stands for
// the one after that of the owner before. What is wrong with the entry that it found is returned as found; err is what
// prevented the claim.
func (h *hold) claim(ctx context.Context) (found, err error) {
	wanted := h.fence
	for range casTries {
		e, revision, err := h.archive.read(ctx, h.partition)
		found = nil
		switch {
		case errors.Is(err, errNoEntry):
		case errors.Is(err, errEntry):
			found = err
		case err != nil:
			return nil, err
		}
		if wanted == 0 {
			h.fence = e.Fence + 1
		}
		if e.Fence > h.fence {
			return nil, h.fenced(e)
		}
		e.Fence = h.fence
		next, err := h.archive.write(ctx, h.partition, e, revision)
		if errors.Is(err, errRaced) {
			continue
		}
		if err != nil {
			return nil, err
		}
		h.entry, h.revision = e, next
		return found, nil
	}
	return nil, fmt.Errorf("claim partition %d: %w", h.partition, errRaced)
}

func (h *hold) fenced(e entry) error {
	return fmt.Errorf("partition %d: %w: fence %d, mine is %d", h.partition, ErrFenced, e.Fence, h.fence)
}

// verify says whether the partition is still this processor's.
func (h *hold) verify(ctx context.Context) error {
	e, _, err := h.archive.read(ctx, h.partition)
	if err != nil && !errors.Is(err, errNoEntry) && !errors.Is(err, errEntry) {
		return err
	}
	if e.Fence > h.fence {
		return h.fenced(e)
	}
	return nil
}

// save uploads a state and makes the entry name it. Nil means that it did, and that what is in the state may be acknowledged. After any
// other error than ErrFenced it may be called again, with a newer state.
func (h *hold) save(ctx context.Context, s image) error {
	ctx, cancel := context.WithTimeout(ctx, uploadWait)
	defer cancel()
	e := entry{Fence: h.fence, Sequence: s.sequence, Through: s.through, Findings: s.findings, Stream: s.stream.UTC(), At: s.at.UTC()}
	if err := h.archive.put(ctx, h.partition, &e, s.state); err != nil {
		return err
	}
	revision := h.revision
	for range casTries {
		next, err := h.archive.write(ctx, h.partition, e, revision)
		if err == nil {
			h.won(ctx, e, next)
			return nil
		}
		// It lost, or nobody heard how it went: the entry tells.
		now, at, readErr := h.archive.read(ctx, h.partition)
		switch {
		case readErr != nil && !errors.Is(readErr, errNoEntry) && !errors.Is(readErr, errEntry):
			return errors.Join(err, readErr)
		case readErr == nil && now.Blob == e.Blob:
			h.won(ctx, e, at)
			return nil
		case now.Fence > h.fence:
			h.discard(context.WithoutCancel(ctx), e)
			return h.fenced(now)
		case !errors.Is(err, errRaced):
			return err
		}
		revision = at // an earlier try of ours that nobody heard of, or the bucket was emptied
	}
	// The blob stays: of a replicated bucket one may read what was, and the entry may name it by now. If it does not, it is swept.
	return fmt.Errorf("save partition %d: %w", h.partition, errRaced)
}

// won makes the new entry the one that counts, and lets go of the state before it.
func (h *hold) won(ctx context.Context, e entry, revision uint64) {
	before := h.entry
	h.entry, h.revision = e, revision
	h.discard(ctx, before)
}

// discard deletes a blob that no entry names. What cannot be deleted now is swept later.
func (h *hold) discard(ctx context.Context, e entry) {
	if err := h.archive.drop(ctx, e); err != nil && ctx.Err() == nil {
		h.log.Debug("saved state not deleted, it is swept later", "blob", e.Blob, "error", err)
	}
}
