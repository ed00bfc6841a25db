package processor

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"lowtide/event"
	"lowtide/processor/broker"
)

const (
	entryVersion = 1
	maxEntry     = 4 << 10   // bytes of a key-value entry
	maxBlob      = 256 << 20 // bytes of a saved state: what 10,000 workers need at 16 KiB each, and more
	orphanAge    = 10 * time.Minute
	archiveWait  = 5 * time.Second // for one small request
)

// Errors about what was saved of a partition.
var (
	errNoEntry = errors.New("nothing was saved")
	errEntry   = errors.New("entry of another version, or damaged")
	errBlob    = errors.New("saved state is missing or damaged")
	errRaced   = errors.New("the entry was written by somebody else meanwhile")
)

// entry is the value of state.<partition>: who has the partition, and where its newest state lies. Whoever replaces it by
// compare-and-set has won; nobody else may acknowledge.
type entry struct {
	Version  int       `json:"version"`
	Fence    uint64    `json:"fence"`              // of the owner; grows with every owner
	Blob     string    `json:"blob,omitempty"`     // name in the object store; absent before the first state is saved
	Chunks   string    `json:"chunks,omitempty"`   // what the object store calls its bytes
	Digest   string    `json:"digest,omitempty"`   // of its bytes, as the object store writes it
	Sequence uint64    `json:"sequence,omitempty"` // of the stream: the newest event that is part of the state
	Through  uint64    `json:"through,omitempty"`  // of the stream: up to here there was no other event of this partition
	Findings uint64    `json:"findings,omitempty"` // of the findings' stream: what followed from later events lies behind it
	Stream   time.Time `json:"stream,omitzero"`    // when the stream was made whose sequences these are, by the broker
	At       time.Time `json:"at,omitzero"`        // by the clock of its writer
}

func decodeEntry(text []byte) (entry, error) {
	if len(text) > maxEntry {
		return entry{}, fmt.Errorf("%w: %d bytes, the limit is %d", errEntry, len(text), maxEntry)
	}
	var e entry
	if err := json.Unmarshal(text, &e); err != nil {
		return entry{}, fmt.Errorf("%w: %w", errEntry, err)
	}
	switch {
	case e.Version != entryVersion:
		return entry{Fence: e.Fence}, fmt.Errorf("%w: version %d, this is %d", errEntry, e.Version, entryVersion)
	case (e.Blob == "") != (e.Chunks == "") || len(e.Blob) > 256 || strings.ContainsAny(e.Chunks, ".*> \t\r\n"):
		return entry{Fence: e.Fence}, fmt.Errorf("%w: it names no blob", errEntry)
	case e.Blob == "" && e.Sequence != 0:
		return entry{Fence: e.Fence}, fmt.Errorf("%w: sequence %d without a blob", errEntry, e.Sequence)
	}
	return e, nil
}

func stateKey(partition int) string { return "state." + strconv.Itoa(partition) }

// archive is where states lie: entries in the bucket LOWTIDE_STATE, and their bytes in the object store LOWTIDE_BLOBS.
type archive struct {
	js      jetstream.JetStream
	kv      jetstream.KeyValue
	objects jetstream.ObjectStore
}

func openArchive(ctx context.Context, js jetstream.JetStream) (*archive, error) {
	ctx, cancel := context.WithTimeout(ctx, archiveWait)
	defer cancel()
	kv, err := js.KeyValue(ctx, broker.BucketState)
	if err != nil {
		return nil, broker.Explain("open bucket "+broker.BucketState, err)
	}
	objects, err := js.ObjectStore(ctx, broker.ObjectsState)
	if err != nil {
		return nil, broker.Explain("open object store "+broker.ObjectsState, err)
	}
	return &archive{js: js, kv: kv, objects: objects}, nil
}

// read returns the entry of a partition and its revision: 0 and errNoEntry when there is none. With errEntry the fence stands in
// the entry as far as it could be read.
func (a *archive) read(ctx context.Context, partition int) (entry, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, archiveWait)
	defer cancel()
	found, err := a.kv.Get(ctx, stateKey(partition))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return entry{}, 0, errNoEntry
	}
	if err != nil {
		return entry{}, 0, fmt.Errorf("read entry %s: %w", stateKey(partition), err)
	}
	e, err := decodeEntry(found.Value())
	return e, found.Revision(), err
}

// write replaces the entry that has the revision, 0 for none, and returns the new one's. It is errRaced when that is not the newest.
func (a *archive) write(ctx context.Context, partition int, e entry, revision uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, archiveWait)
	defer cancel()
	e.Version = entryVersion
	text, err := json.Marshal(e)
	if err != nil {
		return 0, fmt.Errorf("write entry: %w", err)
	}
	var next uint64
	if revision == 0 {
		next, err = a.kv.Create(ctx, stateKey(partition), text)
	} else {
		next, err = a.kv.Update(ctx, stateKey(partition), text, revision)
	}
	if errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		return 0, errRaced
	}
	if err != nil {
		return 0, fmt.Errorf("write entry %s: %w", stateKey(partition), err)
	}
	return next, nil
}

// put uploads a state under a name that is never used again, and fills in where it lies.
func (a *archive) put(ctx context.Context, partition int, e *entry, state []byte) error {
	if len(state) > maxBlob {
		return fmt.Errorf("save state: %d bytes, the limit is %d", len(state), maxBlob)
	}
	name := fmt.Sprintf("%d.%d.%s", partition, e.Fence, nuid.Next())
	info, err := a.objects.Put(ctx, jetstream.ObjectMeta{Name: name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: 512 << 10}}, bytes.NewReader(state))
	if err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	e.Blob, e.Chunks, e.Digest = name, info.NUID, info.Digest
	return nil
}

// get returns the state that an entry names. It is errBlob when that is not there as it was written.
func (a *archive) get(ctx context.Context, e entry) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 6*archiveWait)
	defer cancel()
	info, err := a.objects.GetInfo(ctx, e.Blob)
	switch {
	case errors.Is(err, jetstream.ErrObjectNotFound):
		return nil, fmt.Errorf("%w: %s is not there", errBlob, e.Blob)
	case err != nil:
		return nil, fmt.Errorf("read state %s: %w", e.Blob, err)
	case info.Size > maxBlob:
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", errBlob, info.Size, maxBlob)
	case info.NUID != e.Chunks || info.Digest != e.Digest:
		return nil, fmt.Errorf("%w: %s was written again", errBlob, e.Blob)
	}
	if there, err := a.complete(ctx, info); err != nil || !there {
		if err != nil {
			return nil, fmt.Errorf("read state %s: %w", e.Blob, err)
		}
		return nil, fmt.Errorf("%w: a part of %s is not there", errBlob, e.Blob) // a read would wait for it
	}
	state, err := unless(ctx, func() ([]byte, error) { return a.objects.GetBytes(ctx, e.Blob) })
	if errors.Is(err, jetstream.ErrDigestMismatch) || errors.Is(err, jetstream.ErrObjectNotFound) {
		return nil, fmt.Errorf("%w: %s: %w", errBlob, e.Blob, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read state %s: %w", e.Blob, err)
	}
	return state, nil
}

// unless waits for a read, but not past the end of ctx: the library's notices a deadline that is over, and not that ctx was cancelled, so that
// a partition that is to be given away would be held up. The read ends with the deadline, and nobody looks at what it brings.
func unless(ctx context.Context, read func() ([]byte, error)) ([]byte, error) {
	type result struct {
		bytes []byte
		err   error
	}
	done := make(chan result, 1)
	go func() {
		bytes, err := read()
		done <- result{bytes, err}
	}()
	select {
	case r := <-done:
		return r.bytes, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (a *archive) complete(ctx context.Context, info *jetstream.ObjectInfo) (bool, error) {
	if info.Chunks == 0 {
		return true, nil
	}
	stream, err := a.stream(ctx)
	if err != nil {
		return false, err
	}
	subject := chunkSubject(info.NUID)
	state, err := stream.Info(ctx, jetstream.WithSubjectFilter(subject))
	if err != nil {
		return false, err
	}
	return state.State.Subjects[subject] == uint64(info.Chunks), nil
}

const (
	chunkPrefix = "$O." + broker.ObjectsState + ".C."
	namePrefix  = "$O." + broker.ObjectsState + ".M."
)

func chunkSubject(chunks string) string { return chunkPrefix + chunks }
func nameSubject(blob string) string {
	return namePrefix + base64.URLEncoding.EncodeToString([]byte(blob))
}

// stream is what lies under the object store.
func (a *archive) stream(ctx context.Context) (jetstream.Stream, error) {
	stream, err := a.js.Stream(ctx, "OBJ_"+broker.ObjectsState)
	if err != nil {
		return nil, broker.Explain("open object store "+broker.ObjectsState, err)
	}
	return stream, nil
}

// drop removes a blob without a trace: the object store's own Delete would leave a marker of every name for ever.
func (a *archive) drop(ctx context.Context, e entry) error {
	if e.Blob == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, archiveWait)
	defer cancel()
	stream, err := a.stream(ctx)
	if err != nil {
		return err
	}
	for _, subject := range []string{nameSubject(e.Blob), chunkSubject(e.Chunks)} {
		if err := stream.Purge(ctx, jetstream.WithPurgeSubject(subject)); err != nil {
			return fmt.Errorf("delete state %s: %w", e.Blob, err)
		}
	}
	return nil
}

// sweep removes what no entry names and nobody can be about to name: blobs of writers that died between the upload and the
// compare-and-set, and parts of uploads that were never finished. What is younger than age may still be named. It returns how many
// messages of the object store it removed.
func (a *archive) sweep(ctx context.Context, age time.Duration) (swept int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 12*archiveWait)
	defer cancel()
	stream, err := a.stream(ctx)
	if err != nil {
		return 0, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter("$O."+broker.ObjectsState+".>"))
	if err != nil {
		return 0, fmt.Errorf("sweep states: %w", err)
	}
	// What is young is left alone; what is older and not named by now will not be named any more.
	kept := make(map[string]bool)
	for p := range event.PartitionCount {
		e, _, err := a.read(ctx, p)
		switch {
		case errors.Is(err, errEntry):
			return 0, nil // of a version that may know better
		case err != nil && !errors.Is(err, errNoEntry):
			return 0, err
		case e.Blob != "":
			kept[nameSubject(e.Blob)], kept[chunkSubject(e.Chunks)] = true, true
		}
	}
	for subject := range info.State.Subjects {
		if kept[subject] {
			continue
		}
		last, err := stream.GetLastMsgForSubject(ctx, subject)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return swept, fmt.Errorf("sweep states: %w", err)
		}
		if info.TimeStamp.Sub(last.Time) < age {
			continue
		}
		if err := stream.Purge(ctx, jetstream.WithPurgeSubject(subject)); err != nil {
			return swept, fmt.Errorf("sweep states: %w", err)
		}
		swept++
	}
	return swept, nil
}
