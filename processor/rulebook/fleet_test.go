package rulebook

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"lowtide/processor/broker"
	"lowtide/processor/broker/brokertest"
	"lowtide/rules"
)

var brisk = pace{files: 20 * time.Millisecond, bucket: 200 * time.Millisecond, swap: 10 * time.Millisecond}

// bench is a judge that takes over whatever it is given, or refuses it.
type bench struct {
	mu     sync.Mutex
	packs  []*rules.Pack
	failed error
}

func (b *bench) Adopt(pack *rules.Pack) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.packs); n == 0 || b.packs[n-1] != pack {
		b.packs = append(b.packs, pack)
	}
}

func (b *bench) Adopted(pack *rules.Pack) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.packs); n == 0 || b.packs[n-1] != pack {
		return 1, nil
	}
	return 0, b.failed
}

func (b *bench) pack() *rules.Pack {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.packs) == 0 {
		return nil
	}
	return b.packs[len(b.packs)-1]
}

// fleet is a broker with processors, each of which has a heart and rules.
type fleet struct {
	t    testing.TB
	js   jetstream.JetStream
	url  string
	book *Book
	said written
}

func newFleet(t testing.TB) *fleet {
	t.Helper()
	server, _, js := brokertest.Start(t)
	book, err := Open(t.Context(), js)
	if err != nil {
		t.Fatal(err)
	}
	return &fleet{t: t, js: js, url: server.ClientURL(), book: book}
}

// node is one processor.
type node struct {
	*Watcher
	bench *bench
	stop  func()
}

func (f *fleet) join(name string, paths ...string) *node {
	f.t.Helper()
	w, err := Watch(f.t.Context(), Options{JS: f.js, Paths: paths, Member: name, Version: "v1", Log: slog.New(slog.NewTextHandler(f.t.Output(), nil)), pace: brisk})
	if err != nil {
		f.t.Fatal(err)
	}
	return f.run(name, w)
}

func (f *fleet) run(name string, w *Watcher) *node {
	f.t.Helper()
	n := &node{Watcher: w, bench: &bench{}}
	ctx, stop := context.WithCancel(f.t.Context())
	var running sync.WaitGroup
	n.stop = func() { stop(); running.Wait() }
	f.t.Cleanup(n.stop)
	running.Go(func() {
		if err := w.Run(ctx, n.bench); err != nil {
			f.t.Error(err)
		}
	})
	running.Go(func() { f.beat(ctx, name) })
	return n
}

// beat says that a processor lives, as package ownership does.
func (f *fleet) beat(ctx context.Context, name string) {
	members, err := f.js.KeyValue(ctx, broker.BucketMembers)
	if err != nil {
		if ctx.Err() == nil {
			f.t.Error(err)
		}
		return
	}
	text, err := json.Marshal(map[string]any{"session": name, "roles": map[string]int{"judge": 64}})
	if err != nil {
		f.t.Error(err)
		return
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		if _, err := members.Put(ctx, name, text); err != nil && ctx.Err() == nil {
			f.t.Error(err)
			return
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// written is what a command wrote.
type written struct{ out, err strings.Builder }

func (f *fleet) broker() Broker {
	f.said = written{}
	return Broker{NATS: f.url, Stdout: &f.said.out, Stderr: &f.said.err, hearing: 500 * time.Millisecond}
}

// folder writes a folder with one rule file.
func (f *fleet) folder(content string) string {
	f.t.Helper()
	dir := f.t.TempDir()
	write(f.t, filepath.Join(dir, "mine.yaml"), content)
	return dir
}

func (f *fleet) push(author, content string, change ...func(*PushCommand)) error {
	f.t.Helper()
	c := &PushCommand{Broker: f.broker(), Files: []string{f.folder(content)}, Message: "because", Author: author, Wait: 10 * time.Second}
	for _, one := range change {
		one(c)
	}
	return c.Run(f.t.Context())
}

// force writes a set into the bucket that no push would.
func (f *fleet) force(generation uint64, content string) {
	f.t.Helper()
	set := Set{Generation: generation, Author: "eve@other-version", Message: "newer", Files: []File{{Name: "mine.yaml", Content: content}}, Time: time.Now()}
	text, err := set.encode()
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.book.kv.Put(f.t.Context(), keyCurrent, text); err != nil {
		f.t.Fatal(err)
	}
}

// until polls for something that other goroutines bring about.
func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	deadline, poll := time.NewTimer(20*time.Second), time.NewTicker(5*time.Millisecond)
	defer deadline.Stop()
	defer poll.Stop()
	for !done() {
		select {
		case <-poll.C:
		case <-deadline.C:
			t.Fatalf("waited for 20 s: %s", what)
		}
	}
}

// metric reads one of a processor.
func (n *node) metric(name string) float64 {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(n.Watcher)
	all, err := registry.Gather()
	if err != nil {
		return -1
	}
	for _, family := range all {
		if family.GetName() == "lowtide_rules_"+name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return -1
}

func (n *node) has(id string) bool {
	pack := n.bench.pack()
	return pack != nil && pack.Rule(id) != nil
}

func (n *node) threshold() float64 {
	pack := n.bench.pack()
	if pack == nil || pack.Rule("mine") == nil {
		return 0
	}
	return pack.Rule("mine").Thresholds["most"] / (1 << 20)
}
