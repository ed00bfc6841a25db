package processor

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/processor/broker/brokertest"
)

// However many checkpoints there are, one blob stays, and nothing of the others.
func TestOldStatesGo(t *testing.T) {
	_, _, js := brokertest.Start(t)
	s := newScript(t, 5, "leak")
	all := judges(t, js)
	all.pace.save = time.Millisecond
	w := begin(t, all, testPartition, 1)
	w.applied(testPartition, s.rest(js))
	w.close()
	p := entryOf(t, all)
	stream, err := all.archive.stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("$O.LOWTIDE_BLOBS.>"))
	if err != nil {
		t.Fatal(err)
	}
	if subjects := info.State.Subjects; len(subjects) != 2 || subjects[nameSubject(p.Blob)] != 1 || subjects[chunkSubject(p.Chunks)] == 0 {
		t.Errorf("the object store holds %v, want a name and its bytes", subjects)
	}
}

// blobs are the names of the saved states of a partition, whether or not an entry names them.
func (a *archive) blobs(t testing.TB, partition int) (names []string) {
	t.Helper()
	all, err := a.objects.List(t.Context())
	if err != nil && !errors.Is(err, jetstream.ErrNoObjectsFound) {
		t.Fatal(err)
	}
	for _, one := range all {
		if strings.HasPrefix(one.Name, strconv.Itoa(partition)+".") {
			names = append(names, one.Name)
		}
	}
	return names
}

func entryOf(t testing.TB, all *Judges) entry {
	t.Helper()
	e, _, err := all.archive.read(t.Context(), testPartition)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// A writer died between upload and compare-and-set, another in the middle of an upload. What they left is swept once it is old; what an entry
// names stays, however old it is.
func TestOrphansAreSwept(t *testing.T) {
	_, conn, js := brokertest.Start(t)
	a, err := openArchive(t.Context(), js)
	if err != nil {
		t.Fatal(err)
	}
	named, orphan := entry{Fence: 1}, entry{Fence: 1}
	for _, e := range []*entry{&named, &orphan} {
		if err := a.put(t.Context(), testPartition, e, bytes.Repeat([]byte("state"), 300_000)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.write(t.Context(), testPartition, named, 0); err != nil {
		t.Fatal(err)
	}
	if err := conn.PublishMsg(&nats.Msg{Subject: chunkSubject("half"), Data: []byte("half of an upload")}); err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	if n, err := a.sweep(t.Context(), time.Hour); n != 0 || err != nil {
		t.Errorf("%d young ones swept (%v)", n, err)
	}
	if n, err := a.sweep(t.Context(), 0); n != 3 || err != nil { // a name, its bytes, and half an upload
		t.Errorf("%d subjects swept (%v), want 3", n, err)
	}
	if state, err := a.get(t.Context(), named); err != nil || len(state) != 1_500_000 {
		t.Errorf("%d bytes of the named one (%v)", len(state), err)
	}
	if _, err := a.get(t.Context(), orphan); !errors.Is(err, errBlob) {
		t.Errorf("the orphan: %v", err)
	}
}

// A reply that is lost leaves a writer in doubt whether it won. It did, or it tries again, and never both.
func TestDoubtIsSettledByTheEntry(t *testing.T) {
	_, _, js := brokertest.Start(t)
	a, err := openArchive(t.Context(), js)
	if err != nil {
		t.Fatal(err)
	}
	h := &hold{archive: a, partition: testPartition, fence: 5, log: judges(t, js).options.Log}
	if _, err := h.claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := h.save(t.Context(), image{state: []byte("one"), sequence: 1}); err != nil {
		t.Fatal(err)
	}
	h.revision-- // as if the reply had not come
	if err := h.save(t.Context(), image{state: []byte("two"), sequence: 2}); err != nil {
		t.Fatal(err)
	}
	if state, err := a.get(t.Context(), h.entry); err != nil || string(state) != "two" || h.entry.Sequence != 2 {
		t.Errorf("saved %q as %+v (%v)", state, h.entry, err)
	}
	if err := a.kv.Purge(t.Context(), stateKey(testPartition)); err != nil { // somebody emptied the bucket
		t.Fatal(err)
	}
	if err := h.save(t.Context(), image{state: []byte("three"), sequence: 3}); err != nil {
		t.Fatal(err)
	}
	if blobs := a.blobs(t, testPartition); len(blobs) != 1 {
		t.Errorf("blobs %v", blobs)
	}
	later := &hold{archive: a, partition: testPartition, log: h.log} // fence 0: the next one
	if _, err := later.claim(t.Context()); err != nil || later.fence != 6 {
		t.Fatalf("fence %d (%v)", later.fence, err)
	}
	if err := h.save(t.Context(), image{state: []byte("four"), sequence: 4}); !errors.Is(err, ErrFenced) {
		t.Errorf("the former owner's save: %v", err)
	}
	if err := h.verify(t.Context()); !errors.Is(err, ErrFenced) {
		t.Errorf("the former owner asks: %v", err)
	}
	if state, err := a.get(t.Context(), later.entry); err != nil || string(state) != "three" {
		t.Errorf("the next owner finds %q (%v)", state, err)
	}
}

func FuzzEntry(f *testing.F) {
	f.Add([]byte(`{"version":1,"fence":3,"blob":"7.3.x","chunks":"c","digest":"SHA-256=","sequence":9,"through":12,"findings":1,"at":"2026-11-30T17:00:00Z"}`))
	f.Add([]byte(`{"version":2,"fence":18446744073709551615}`))
	f.Add([]byte(`{"version":1,"blob":"a","chunks":"$O.>"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := decodeEntry(text)
		if err != nil {
			if !errors.Is(err, errEntry) || e.Blob != "" || e.Sequence != 0 {
				t.Errorf("%+v with %v", e, err)
			}
			return
		}
		if e.Version != entryVersion || (e.Blob == "") != (e.Chunks == "") {
			t.Errorf("taken: %+v", e)
		}
	})
}

// A read of a state that is cut off ends then, not with its deadline: the partition is somebody else's by now.
func TestReadOfAStateEndsWhenItIsCutOff(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	reading, let := make(chan struct{}), make(chan struct{})
	defer close(let)
	ended := make(chan error, 1)
	go func() {
		_, err := unless(ctx, func() ([]byte, error) {
			close(reading)
			<-let
			return nil, nil
		})
		ended <- err
	}()
	<-reading
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v", err)
	}
	if state, err := unless(t.Context(), func() ([]byte, error) { return []byte("state"), nil }); string(state) != "state" || err != nil {
		t.Errorf("%q, %v", state, err)
	}
}
