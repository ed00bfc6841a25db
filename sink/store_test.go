package sink

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"lowtide/event"
	"lowtide/processor/broker/brokertest"
)

// memory is a Store that is away for the first calls.
type memory struct {
	mutex  sync.Mutex
	away   int
	tokens map[string]bool
	rows   map[string]int
	tried  []string
	wanted int
	full   chan struct{}
}

func (m *memory) Insert(_ context.Context, b Block) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.tried = append(m.tried, b.Token)
	if m.away > 0 {
		m.away--
		return errors.Join(ErrAway, errors.New("connection refused"))
	}
	if m.tokens[b.Token] {
		return nil
	}
	m.tokens[b.Token] = true
	total := 0
	for _, r := range Join(b) {
		m.rows[r.Table] += len(r.Values)
	}
	for _, n := range m.rows {
		total += n
	}
	if total == m.wanted {
		close(m.full)
	}
	return nil
}

func TestRunStoreLosesNothingWhileTheStoreIsAway(t *testing.T) {
	_, _, js := brokertest.Start(t)
	publish := func(subject, contentType string, data []byte) {
		t.Helper()
		if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Data: data, Header: nats.Header{"Content-Type": {contentType}}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10 {
		data, err := event.EncodeBatch(tickBatch(uint64(i), tick.Add(time.Duration(i)*time.Second)).Batch)
		if err != nil {
			t.Fatal(err)
		}
		publish(event.SubjectFor("prod", "gpu-1", "sim"), "", data)
	}
	publish(event.SubjectFor("prod", "gpu-1", "sim"), "application/json", []byte("{poison"))
	finding := findingMessage(1, event.Suspected).Finding
	text, err := event.MarshalFinding(finding)
	if err != nil {
		t.Fatal(err)
	}
	publish(event.FindingSubject(finding), "", text)

	store := &memory{away: 2, tokens: map[string]bool{}, rows: map[string]int{}, full: make(chan struct{}), wanted: 10*3 + 1 + 2}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- RunStore(ctx, js, store, nil, event.PartitionCount) }()
	select {
	case <-store.full:
	case <-ctx.Done():
		t.Error("not everything was stored")
	case err := <-done:
		t.Fatalf("RunStore ended: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("RunStore = %v, want nil when its context ends", err)
	}
	for name, want := range map[string]int{TableWorkers: 10, TableGpus: 10, TableHosts: 10, TableEvents: 1, TableFindings: 1, TableIncidents: 1} {
		if got := store.rows[name]; got != want {
			t.Errorf("%s has %d rows, want %d", name, got, want)
		}
	}
	if first := store.tried[0]; !slices.Contains(store.tried[1:], first) {
		t.Errorf("block %s was not tried again with the same token: %v", first, store.tried)
	}
}
