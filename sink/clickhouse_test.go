package sink

import (
	"context"
	"errors"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/sink/engine"
)

func TestMain(m *testing.M) {
	engine.ServeIfChild()
	os.Exit(m.Run())
}

// Insert stores the rows of a block and adds them to the rollups, under a number made from the token. Calling it again with the same block changes nothing.
func (c *ClickHouse) Insert(ctx context.Context, b Block) error {
	sum := fnv.New64a()
	sum.Write([]byte(b.Token))
	b.Number = sum.Sum64()>>1 + 1
	for _, rows := range Join(b) {
		if err := c.InsertRows(ctx, b.Token+":"+rows.Table, rows); err != nil {
			return err
		}
	}
	return c.Fill(ctx, b.Token, b.Number-1, b.Number)
}

func TestEngineKeepsABlockOnce(t *testing.T) {
	data := t.TempDir()
	e, err := engine.Start(t.Context(), engine.Options{Library: testLibrary(), DataDir: filepath.Join(data, "engine")})
	if errors.Is(err, engine.ErrLibraryMissing) {
		t.Skip("SKIPPED: nothing of the store was tested against a real engine: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	store, err := Open(t.Context(), Options{Addr: e.Addr(), Password: e.Password(engine.RoleWriter)})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for range 2 {
		if err := store.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	block := Block{Token: "s:3:1-4", Messages: []Message{tickBatch(1, tick), oomMessage(2), findingMessage(3, event.Suspected), findingMessage(4, event.Resolved)}}
	now := timestamppb.New(time.Now().Truncate(time.Second))
	for _, m := range block.Messages { // today's, since the tables drop samples after 30 days
		for _, e := range m.Batch.GetEvents() {
			e.Time = now
		}
	}
	for range 2 {
		if err := store.Insert(t.Context(), block); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(data, "engine.json"), []byte(`{"addr":"`+e.Addr()+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	access := Access{DataDir: data, User: engine.RoleReader}
	for query, want := range map[string]string{
		"SELECT count(), any(allocated_bytes), any(waiting), any(toInt64(used_bytes) - toInt64(reserved_bytes)) FROM workers": "1,500,\\N,100",
		"SELECT count() FROM worker_samples":                      "1",
		"SELECT count() FROM gpu_samples":                         "1",
		"SELECT count() FROM host_samples":                        "1",
		"SELECT event, requested_bytes FROM events":               `"oom",128`,
		"SELECT count() FROM findings":                            "2",
		"SELECT state, version, growth_high FROM incidents FINAL": `"resolved",4,3`,
	} {
		var out strings.Builder
		if err := access.ask(t.Context(), query, "CSV", &out); err != nil {
			t.Errorf("%s: %v", query, err)
		} else if got := strings.TrimSpace(out.String()); got != want {
			t.Errorf("%s\n got %s\nwant %s", query, got, want)
		}
	}
	if err := access.ask(t.Context(), "DROP TABLE events", "CSV", os.Stderr); !errors.Is(err, ErrRefused) {
		t.Errorf("a reader's DROP: %v, want ErrRefused", err)
	}
	for _, json := range []bool{false, true} {
		if err := (&StatusCommand{Access: access, JSON: json}).Run(t.Context()); err != nil {
			t.Errorf("status: %v", err)
		}
	}
	wrong, err := Open(t.Context(), Options{Addr: e.Addr(), Password: "not-the-password"})
	if err != nil {
		t.Fatal(err)
	}
	defer wrong.Close()
	if err := wrong.Migrate(t.Context()); err == nil || strings.Contains(err.Error(), "not-the-password") {
		t.Errorf("wrong password: %v, want an error without it", err)
	}
}

// The address of an insert has the whole statement in it, which helps nobody in a log.
func TestAwayErrorLeavesTheStatementOut(t *testing.T) {
	store, err := Open(t.Context(), Options{Addr: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	err = store.Insert(t.Context(), Block{Token: "t", Messages: []Message{tickBatch(1, tick)}})
	if !errors.Is(err, ErrAway) || strings.Contains(err.Error(), "INSERT") || !strings.Contains(err.Error(), "127.0.0.1:1") || len(err.Error()) > 200 {
		t.Errorf("nobody there: %v, want a short ErrAway that names the address", err)
	}
}
