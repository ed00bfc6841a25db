package notifier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// ErrWatchEnded says that the broker ended a watch that nobody asked it to end.
var ErrWatchEnded = errors.New("the broker ended the watch")

// watchAnew is how long one watch is trusted. Watchers have been seen to fall silent for good after a broker's restart; what a new one tells again
// does no harm.
const watchAnew = 2 * time.Minute

// appendTries bounds how often a write that lost against another one is tried again.
const appendTries = 32

// book is a small bucket in memory: what every key says now. It is safe for use by several goroutines.
type book[T any] struct {
	kv     jetstream.KeyValue
	decode func(key string, text []byte) (T, error)
	log    *slog.Logger

	mu      sync.Mutex
	pages   map[string]page[T]
	news    map[string]bool // keys that changed since take
	changed chan struct{}
}

// page is the value of one key and the revision that it was read at.
type page[T any] struct {
	value    T
	revision uint64
	gone     bool // deleted; kept, so that an older revision that arrives later does not bring it back
}

func openBook[T any](ctx context.Context, js jetstream.JetStream, bucket string, log *slog.Logger, decode func(string, []byte) (T, error)) (*book[T], error) {
	kv, err := js.KeyValue(ctx, bucket)
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", bucket, err)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	b := &book[T]{kv: kv, decode: decode, log: log, pages: map[string]page[T]{}, news: map[string]bool{}, changed: make(chan struct{}, 1)}
	return b, b.read(ctx, true)
}

// read keeps the book current until ctx ends, which is no error; when once is set, until all is read that is there.
func (b *book[T]) read(ctx context.Context, once bool) error {
	for {
		again, err := b.watch(ctx, once)
		if !again {
			return err
		}
	}
}

// watch reads until the watch has lasted long enough, and says so.
func (b *book[T]) watch(ctx context.Context, once bool) (again bool, err error) {
	lasted := time.NewTimer(watchAnew)
	defer lasted.Stop()
	watcher, err := b.kv.WatchAll(ctx)
	if err != nil {
		return false, fmt.Errorf("watch bucket %s: %w", b.kv.Bucket(), err)
	}
	defer watcher.Stop()
	for {
		select {
		case <-ctx.Done():
			if once {
				return false, fmt.Errorf("read bucket %s: %w", b.kv.Bucket(), ctx.Err())
			}
			return false, nil
		case <-lasted.C:
			if !once {
				return true, nil
			}
		case entry, open := <-watcher.Updates():
			switch {
			case !open && ctx.Err() != nil && !once:
				return false, nil
			case !open:
				return false, fmt.Errorf("watch bucket %s: %w", b.kv.Bucket(), ErrWatchEnded)
			case entry == nil && once: // nil ends what was there
				return false, nil
			case entry != nil:
				b.turn(entry)
			}
		}
	}
}

// turn takes an entry into the book. What cannot be read is no page: it is said and does not hide the others.
func (b *book[T]) turn(entry jetstream.KeyValueEntry) {
	key := entry.Key()
	if entry.Operation() != jetstream.KeyValuePut {
		b.put(key, page[T]{revision: entry.Revision(), gone: true})
		return
	}
	value, err := b.decode(key, entry.Value())
	if err != nil {
		b.log.Error("skip an entry that cannot be read", "bucket", b.kv.Bucket(), "error", err)
		b.put(key, page[T]{revision: entry.Revision(), gone: true})
		return
	}
	b.put(key, page[T]{value: value, revision: entry.Revision()})
}

func (b *book[T]) put(key string, p page[T]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if old, known := b.pages[key]; known && old.revision >= p.revision {
		return
	}
	b.pages[key] = p
	b.news[key] = true
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

func (b *book[T]) get(key string) (value T, found bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pages[key]
	return p.value, p.revision > 0 && !p.gone
}

// all returns the values in the order of their keys.
func (b *book[T]) all() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []T
	for _, key := range slices.Sorted(maps.Keys(b.pages)) {
		if p := b.pages[key]; !p.gone {
			list = append(list, p.value)
		}
	}
	return list
}

// take returns the keys that changed since it was called last, sorted.
func (b *book[T]) take() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	keys := slices.Sorted(maps.Keys(b.news))
	clear(b.news)
	return keys
}

// change reads a key from the bucket, lets edit make its new text, and writes that unless somebody else wrote meanwhile; then it begins
// anew. Of a key that is not there, edit gets the zero value and found false. A nil text writes nothing.
func (b *book[T]) change(ctx context.Context, key string, edit func(old T, found bool) (text []byte, err error)) (T, error) {
	var none T
	for range appendTries {
		var old T
		var revision uint64
		entry, err := b.kv.Get(ctx, key)
		switch {
		case errors.Is(err, jetstream.ErrKeyNotFound):
		case err != nil:
			return none, fmt.Errorf("read %s of bucket %s: %w", key, b.kv.Bucket(), err)
		default:
			if old, err = b.decode(key, entry.Value()); err != nil {
				return none, err
			}
			revision = entry.Revision()
		}
		text, err := edit(old, revision > 0)
		if err != nil || text == nil {
			return old, err
		}
		value, err := b.decode(key, text)
		if err != nil {
			return none, err
		}
		if revision == 0 {
			revision, err = b.kv.Create(ctx, key, text)
		} else {
			revision, err = b.kv.Update(ctx, key, text, revision)
		}
		switch {
		case errors.Is(err, jetstream.ErrKeyExists):
			continue // somebody else wrote it since it was read
		case err != nil:
			return none, fmt.Errorf("write %s of bucket %s: %w", key, b.kv.Bucket(), err)
		}
		b.put(key, page[T]{value: value, revision: revision})
		return value, nil
	}
	return none, fmt.Errorf("write %s of bucket %s: others wrote it %d times meanwhile", key, b.kv.Bucket(), appendTries)
}

// remove deletes a key unless it was written since the book read it.
func (b *book[T]) remove(ctx context.Context, key string) error {
	b.mu.Lock()
	p := b.pages[key]
	b.mu.Unlock()
	err := b.kv.Purge(ctx, key, jetstream.LastRevision(p.revision))
	if errors.Is(err, jetstream.ErrKeyExists) {
		return nil // it lives on
	}
	if err != nil {
		return fmt.Errorf("remove %s of bucket %s: %w", key, b.kv.Bucket(), err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pages[key].revision == p.revision {
		b.pages[key] = page[T]{revision: p.revision, gone: true}
	}
	return nil
}

// tidy makes one line of text that people wrote, without control characters and half characters.
func tidy(text string) string {
	return strings.TrimSpace(plain(strings.ToValidUTF8(text, "\uFFFD")))
}
