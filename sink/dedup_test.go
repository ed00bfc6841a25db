package sink

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/sink/engine"
)

// onceStore is an engine that a test can end and start again.
type onceStore struct {
	t      testing.TB
	folder string
	engine *engine.Engine
	store  *ClickHouse
}

func (o *onceStore) start() {
	o.t.Helper()
	e, err := engine.Start(o.t.Context(), engine.Options{Library: testLibrary(), DataDir: filepath.Join(o.folder, "engine")})
	if errors.Is(err, engine.ErrLibraryMissing) {
		o.t.Skip("SKIPPED: that ClickHouse keeps a block once was not tested: ", err)
	}
	if err != nil {
		o.t.Fatal(err)
	}
	o.engine = e
	if o.store, err = Open(o.t.Context(), Options{Addr: e.Addr(), Password: e.Password(engine.RoleWriter)}); err != nil {
		o.t.Fatal(err)
	}
	if err := o.store.Migrate(o.t.Context()); err != nil {
		o.t.Fatal(err)
	}
}

func (o *onceStore) end() {
	o.store.Close()
	o.engine.Close()
}

func (o *onceStore) count(query string) uint64 {
	o.t.Helper()
	var n uint64
	if err := o.store.conn.QueryRow(o.t.Context(), query).Scan(&n); err != nil {
		o.t.Fatal(query, ": ", err)
	}
	return n
}

// allTables is a block with rows of every table, over two days, and larger than what the engine is handed at once.
func allTables(token string, ticks int) Block {
	b := Block{Token: token}
	now := time.Now().UTC().Truncate(24 * time.Hour).Add(-time.Duration(ticks/2) * time.Second)
	for i := range ticks {
		m := tickBatch(uint64(i+1), now.Add(time.Duration(i)*time.Second))
		m.Batch.Events = append(m.Batch.Events, &event.Event{Time: timestamppb.New(m.Time), Host: m.Batch.Host, Mark: &event.Mark{Name: strings.Repeat("x", 400), Kind: "start"}})
		b.Messages = append(b.Messages, m)
	}
	for i := range 3 {
		f := findingMessage(uint64(ticks+i+1), event.Suspected)
		f.Finding.ID, f.Finding.Incident, f.Finding.Time = token+strconv.Itoa(i), token+strconv.Itoa(i), now
		b.Messages = append(b.Messages, f)
	}
	return b
}

// Twice under one token is once: at once, after the engine started again, with other rows, and in the views that hang on a table.
func TestEveryTableKeepsATokenOnce(t *testing.T) {
	o := &onceStore{t: t, folder: t.TempDir()}
	o.start()
	for _, table := range []string{TableWorkers, TableGpus, TableHosts, TableEvents, TableFindings, TableIncidents} {
		for _, statement := range []string{
			"CREATE TABLE lowtide.rollup_" + table + " (day Date, n UInt64) ENGINE = SummingMergeTree ORDER BY day SETTINGS non_replicated_deduplication_window = 20000",
			"CREATE MATERIALIZED VIEW lowtide.view_" + table + " TO lowtide.rollup_" + table + " AS SELECT toDate(time) AS day, count() AS n FROM lowtide." + table + " GROUP BY day",
		} {
			if err := o.store.exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		if got := o.count("SELECT countIf(create_table_query LIKE '%non_replicated_deduplication_window = 20000%') FROM system.tables WHERE database = 'lowtide' AND name = '" + table + "'"); got != 1 {
			t.Errorf("%s has another window", table)
		}
	}
	const ticks = 4000
	block, more := allTables("a", ticks), allTables("b", 10)
	want := map[string]uint64{TableWorkers: ticks, TableGpus: ticks, TableHosts: ticks, TableEvents: ticks, TableFindings: 3, TableIncidents: 3}
	check := func(when string, extra uint64) {
		t.Helper()
		for table, n := range want {
			add := extra
			if n == 3 {
				add = extra / 10 * 3
			}
			if got := o.count("SELECT count() FROM lowtide." + table); got != n+add {
				t.Errorf("%s: %s has %d rows, want %d", when, table, got, n+add)
			}
			if got := o.count("SELECT toUInt64(sum(n)) FROM lowtide.rollup_" + table); got != n+add {
				t.Errorf("%s: the view of %s counts %d rows, want %d", when, table, got, n+add)
			}
		}
	}
	insert := func(b Block) {
		t.Helper()
		if err := o.store.Insert(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	insert(block)
	check("once", 0)
	insert(block)
	check("twice", 0)
	insert(more)
	check("another", 10)
	o.end()
	o.start()
	insert(block)
	insert(more)
	check("after a restart", 10)
	fewer := Block{Token: "a", Messages: block.Messages[:100]}
	insert(fewer)
	check("other rows under the same token", 10)
	o.end()
}

// What stands in a row survives the way to the engine: every kind, absent ones, and a dictionary of more than 256 keys.
func TestRowsArriveAsTheyWere(t *testing.T) {
	o := &onceStore{t: t, folder: t.TempDir()}
	o.start()
	defer o.end()
	at := time.Now().UTC().Truncate(time.Second)
	var b Block
	b.Token = "t"
	for i := range 70000 {
		m := tickBatch(uint64(i+1), at)
		m.Batch.Host = &event.Host{Cluster: "prod", Name: "gpu-" + strconv.Itoa(i), BootId: "b"}
		m.Batch.Events = m.Batch.Events[5:]
		m.Batch.Events[0].Host = m.Batch.Host
		m.Batch.Events[0].Machine.MemoryTotalBytes = event.Ptr(uint64(i))
		b.Messages = append(b.Messages, m)
	}
	b.Messages = append(b.Messages, tickBatch(80000, at))
	if err := o.store.Insert(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if got := o.count("SELECT countIf(host = concat('gpu-', toString(memory_total_bytes)) AND memory_available_bytes IS NULL AND boot_id = 'b') FROM lowtide.host_samples"); got != 70000 {
		t.Errorf("%d of 70000 hosts are as they were", got)
	}
	query := `SELECT count() FROM lowtide.worker_samples WHERE time = toDateTime64(` + strconv.FormatInt(at.Unix(), 10) + `, 9) AND cluster = 'prod' AND host = 'gpu-1' AND worker_key = 'prod/gpu-1/b1/42/7'
		AND pid = 42 AND start_time IS NULL AND rank IS NULL AND role = 'worker' AND unit = 'vllm' AND gpu_uuid = 'GPU-a' AND used_bytes = 700 AND backend = 'native' AND expandable_segments IS NULL
		AND allocated_bytes = 500 AND kv_usage = 0.25 AND running = 0 AND waiting IS NULL AND sleeping = false AND rss_bytes = 900 AND cpu_seconds_total IS NULL AND start_ticks = 7
		AND gpu_uuids = ['GPU-a'] AND bodies = 47`
	if got := o.count(query); got != 1 {
		t.Errorf("the worker's row is not as it was")
	}
}

// The codes were looked up; the engine knows their names.
func TestRefusalsAreNamedRight(t *testing.T) {
	o := &onceStore{t: t, folder: t.TempDir()}
	o.start()
	defer o.end()
	for code, known := range recourses {
		var name string
		if err := o.store.conn.QueryRow(t.Context(), fmt.Sprintf("SELECT toString(errorCodeToName(%d))", code)).Scan(&name); err != nil {
			t.Fatal(err)
		}
		if name != known.name {
			t.Errorf("code %d is %s, not %s", code, name, known.name)
		}
	}
	for _, c := range []struct {
		statement, undo string
		want            recourse
	}{
		{"ALTER TABLE lowtide.host_samples ADD CONSTRAINT c CHECK fds != 13", "ALTER TABLE lowtide.host_samples DROP CONSTRAINT c", recourseDrop},
		{"RENAME TABLE lowtide.host_samples TO lowtide.elsewhere", "RENAME TABLE lowtide.elsewhere TO lowtide.host_samples", recourseWait},
	} {
		if err := o.store.exec(t.Context(), c.statement); err != nil {
			t.Fatal(err)
		}
		m := tickBatch(1, time.Now())
		m.Batch.Events[5].Machine.Fds = event.Ptr(uint64(13))
		err := o.store.Insert(t.Context(), Block{Token: c.statement, Messages: []Message{m}})
		if !errors.Is(err, ErrRefused) || recourseTo(err) != c.want {
			t.Errorf("after %s: %v, want recourse %d", c.statement, err, c.want)
		}
		if err := o.store.exec(t.Context(), c.undo); err != nil {
			t.Fatal(err)
		}
	}
}

// A reply that admits to fewer rows is an error, as is a block that is uneven; one that says nothing is believed.
func TestWrittenRowsAreChecked(t *testing.T) {
	c, err := Open(t.Context(), Options{Addr: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	rows := Join(Block{Messages: []Message{tickBatch(1, tick), tickBatch(2, tick.Add(time.Second))}})[0]
	for summary, want := range map[string]error{`{"written_rows":"2"}`: nil, `{"written_rows":"6"}`: nil, `{"written_rows":"1"}`: ErrShort, `{"written_rows":"0"}`: ErrShort, "": nil, "{}": nil} {
		if err := c.written(summary, rows); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", summary, err, want)
		}
	}
	uneven := rows.slice(0, 2)
	uneven.Columns[0].bits = uneven.Columns[0].bits[:1]
	if err := c.InsertRows(t.Context(), "t", uneven); err == nil || !strings.Contains(err.Error(), "column time has 1 values for 2 rows") {
		t.Errorf("an uneven block: %v", err)
	}
}
