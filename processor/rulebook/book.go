package rulebook

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/processor/broker"
)

const (
	keyCurrent = "current"
	outcomes   = "outcome."
	bookWait   = 5 * time.Second // for one question
)

// Book is the bucket LOWTIDE_RULES: the set in force, those before it, and what each processor made of it.
type Book struct{ kv jetstream.KeyValue }

// Open opens the bucket, which broker.Ensure must have made.
func Open(ctx context.Context, js jetstream.JetStream) (*Book, error) {
	ctx, cancel := context.WithTimeout(ctx, bookWait)
	defer cancel()
	kv, err := js.KeyValue(ctx, broker.BucketRules)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, &broker.Failure{What: "the broker has no bucket " + broker.BucketRules, Remedy: "start `lowtide up` or `lowtide process` once: they make it", Err: err}
	}
	if err != nil {
		return nil, broker.Explain("open bucket "+broker.BucketRules, err)
	}
	return &Book{kv}, nil
}

// Edition is a set as it stands in the bucket. Err is why it cannot be read; then Generation is a guess, one more than that of the one before.
type Edition struct {
	Set
	Revision uint64
	Err      error
}

// History returns the sets that the bucket still holds, the newest first; none where nothing was ever pushed. Of what somebody deleted nothing
// is told but by the numbers of the generations, which go on.
func (b *Book) History(ctx context.Context) ([]Edition, error) {
	ctx, cancel := context.WithTimeout(ctx, bookWait)
	defer cancel()
	entries, err := b.kv.History(ctx, keyCurrent)
	if errors.Is(err, jetstream.ErrKeyNotFound) || errors.Is(err, jetstream.ErrNoKeysFound) {
		return nil, nil
	}
	if err != nil {
		return nil, broker.Explain("read the history of the rules", err)
	}
	var all []Edition
	generation := uint64(0)
	for _, entry := range entries {
		e := edition(entry)
		if e.Err != nil && !errors.Is(e.Err, errDeleted) {
			e.Generation = generation + 1
		}
		generation = max(generation, e.Generation)
		all = append(all, e)
	}
	slices.Reverse(all)
	return all, nil
}

// edition reads an entry of the bucket. What was deleted is a set without files.
func edition(entry jetstream.KeyValueEntry) Edition {
	e := Edition{Revision: entry.Revision()}
	if entry.Operation() != jetstream.KeyValuePut {
		e.Err = errDeleted
		return e
	}
	e.Set, e.Err = Decode(entry.Value())
	return e
}

// errDeleted says that somebody took the set away.
var errDeleted = errors.New("the pushed rules were deleted from the bucket")

// Conflict is the error of Push when the set that is in force is another than the one that was to be replaced.
type Conflict struct{ Current Set }

func (c *Conflict) Error() string {
	s := &c.Current
	return fmt.Sprintf("nothing was pushed: generation %d is in force, which %s pushed at %s: %s", s.Generation, plain(s.Author), s.Time.UTC().Format(time.RFC3339), plain(s.Message))
}

// Hint says how to go on.
func (c *Conflict) Hint() string {
	return fmt.Sprintf("see what would change with `lowtide rules diff FILES`, take over what is missing, and push again with --over %d", c.Current.Generation)
}

// Push stores a set in the place of the one with the generation base (0: of none), and returns it with its own generation. The error is a
// Conflict where another one is in force, however short ago somebody pushed it.
func (b *Book) Push(ctx context.Context, base uint64, s Set) (Set, error) {
	history, err := b.History(ctx)
	if err != nil {
		return Set{}, err
	}
	revision, newest := uint64(0), uint64(0)
	if len(history) > 0 {
		revision = history[0].Revision
	}
	for _, e := range history {
		newest = max(newest, e.Generation)
	}
	if current := standing(history); current.Generation != base {
		return Set{}, &Conflict{current}
	}
	s.Generation = newest + 1
	text, err := s.encode()
	if err != nil {
		return Set{}, fmt.Errorf("write rules: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, bookWait)
	defer cancel()
	_, err = b.kv.Update(ctx, keyCurrent, text, revision)
	var api *jetstream.APIError
	if errors.Is(err, jetstream.ErrKeyExists) || errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
		if history, err = b.History(ctx); err != nil {
			return Set{}, err
		}
		return Set{}, &Conflict{standing(history)}
	}
	if err != nil {
		return Set{}, broker.Explain("push rules", err)
	}
	return s, nil
}

// standing returns the set that stands in the bucket, one without files where nothing does; one that cannot be read has its generation alone.
func standing(history []Edition) Set {
	if len(history) == 0 || errors.Is(history[0].Err, errDeleted) {
		return Set{}
	}
	return history[0].Set
}

// Outcome is what a processor made of a generation.
type Outcome struct {
	Member     string    `json:"-"`
	Generation uint64    `json:"generation"`        // that it is about
	OK         bool      `json:"ok"`                // it is judged by
	Running    uint64    `json:"running,omitzero"`  // that is judged by
	Rules      int       `json:"rules,omitzero"`    // of all layers
	Problems   []string  `json:"problems,omitzero"` // why it is not; of local files too
	Local      []string  `json:"local,omitzero"`    // ids of rules that files of the processor lay over the set
	Version    string    `json:"version,omitzero"`
	Time       time.Time `json:"time"` // by the processor's clock
}

func decodeOutcome(text []byte) (o Outcome, err error) {
	if len(text) > maxOutcome {
		return o, fmt.Errorf("read outcome: %d bytes, the most are %d", len(text), maxOutcome)
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return Outcome{}, fmt.Errorf("read outcome: %w", err)
	}
	return o, nil
}

// report writes what a processor made of a generation.
func (b *Book) report(ctx context.Context, o Outcome) error {
	text, err := o.encode()
	if err != nil {
		return fmt.Errorf("write outcome: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, bookWait)
	defer cancel()
	if _, err := b.kv.Put(ctx, outcomes+o.Member, text); err != nil {
		return fmt.Errorf("write outcome: %w", err)
	}
	return nil
}

// encode shortens until it fits.
func (o *Outcome) encode() ([]byte, error) {
	for {
		o.Problems = o.Problems[:min(len(o.Problems), maxProblems)]
		o.Local = o.Local[:min(len(o.Local), 10*maxProblems)]
		text, err := json.Marshal(o)
		if err != nil || len(text) <= maxOutcome || len(o.Problems)+len(o.Local) == 0 {
			return text, err
		}
		o.Problems, o.Local = o.Problems[:len(o.Problems)/2], o.Local[:len(o.Local)/2]
	}
}

// Outcomes returns what each processor, by its name, wrote last. Some may not run any more.
func (b *Book) Outcomes(ctx context.Context) (map[string]Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, bookWait)
	defer cancel()
	watcher, err := b.kv.Watch(ctx, outcomes+"*", jetstream.IgnoreDeletes())
	if err != nil {
		return nil, broker.Explain("read what processors say of the rules", err)
	}
	defer func() { _ = watcher.Stop() }() // it was read to its end, or the broker is away
	all := map[string]Outcome{}
	for {
		select {
		case entry, open := <-watcher.Updates():
			if !open || entry == nil {
				return all, nil
			}
			if o, err := decodeOutcome(entry.Value()); err == nil {
				o.Member = strings.TrimPrefix(entry.Key(), outcomes)
				all[o.Member] = o
			}
		case <-ctx.Done():
			return nil, broker.Explain("read what processors say of the rules", ctx.Err())
		}
	}
}

// forget takes a processor's outcome away.
func (b *Book) forget(ctx context.Context, member string) error {
	ctx, cancel := context.WithTimeout(ctx, bookWait)
	defer cancel()
	return b.kv.Purge(ctx, outcomes+member)
}
