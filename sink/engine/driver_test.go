package engine

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/google/uuid"
	"github.com/shopspring/decimal"
)

func connect(t testing.TB, e *Engine, role string, change func(*clickhouse.Options)) driver.Conn {
	t.Helper()
	o := &clickhouse.Options{
		Addr: []string{e.Addr()}, Protocol: clickhouse.HTTP, DialTimeout: 30 * time.Second,
		Auth: clickhouse.Auth{Username: role, Password: e.Password(role), Database: "default"},
	}
	if change != nil {
		change(o)
	}
	c, err := clickhouse.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestDriverTypes(t *testing.T) {
	e := startEngine(t, Options{})
	for name, method := range map[string]clickhouse.CompressionMethod{"plain": clickhouse.CompressionNone, "gzip": clickhouse.CompressionGZIP, "deflate": clickhouse.CompressionDeflate} {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			c := connect(t, e, RoleWriter, func(o *clickhouse.Options) {
				o.Compression = &clickhouse.Compression{Method: method, Level: 3}
				o.Settings = clickhouse.Settings{"max_execution_time": 60, "enable_http_compression": 1}
			})
			if err := c.Ping(ctx); err != nil {
				t.Fatal(err)
			}
			if v, err := c.ServerVersion(); err != nil || v.Version.Major < 26 || v.Revision != 0 {
				t.Fatalf("server version %+v, %v", v, err)
			}
			table := "types_" + name
			if err := c.Exec(ctx, `CREATE TABLE `+table+` (
				u8 UInt8, i64 Int64, f64 Float64, b Bool, s String, fs FixedString(4), lc LowCardinality(String), n Nullable(Float64), nn Nullable(String),
				m Map(LowCardinality(String), String), a Array(UInt32), aa Array(Array(String)), dt DateTime('UTC'), d64 DateTime64(9, 'UTC'), day Date,
				id UUID, dec Decimal(18, 4), en Enum8('a' = 1, 'b' = 2), tup Tuple(x UInt8, y String), ip IPv4, big UInt128
			) ENGINE = MergeTree ORDER BY i64`); err != nil {
				t.Fatal(err)
			}
			id := uuid.MustParse("01234567-89ab-cdef-0123-456789abcdef")
			day := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
			at := time.Date(2026, 11, 30, 1, 2, 3, 456789012, time.UTC)
			half := 0.5
			rows := [][]any{
				{uint8(255), int64(-1 << 62), 1.5, true, "tide \x00 \n '`", "abcd", "vllm", &half, nil, map[string]string{"team": "a", "": "ü"},
					[]uint32{1, 2, 3}, [][]string{{"x"}, {}}, at.Truncate(time.Second), at, day, id, decimal.RequireFromString("12345.6789"), "b",
					[]any{uint8(7), "y"}, "10.1.2.3", new(big.Int).Lsh(big.NewInt(1), 100)},
				{uint8(0), int64(2), -0.25, false, "", "\x00\x00\x00\x00", "", (*float64)(nil), "set", map[string]string{},
					[]uint32{}, [][]string{}, at.Truncate(time.Second), at, day, uuid.Nil, decimal.RequireFromString("-0.0001"), "a",
					[]any{uint8(0), ""}, "0.0.0.0", big.NewInt(0)},
			}
			batch, err := c.PrepareBatch(ctx, "INSERT INTO "+table)
			if err != nil {
				t.Fatal(err)
			}
			defer batch.Close()
			for _, row := range rows {
				if err := batch.Append(row...); err != nil {
					t.Fatal(err)
				}
			}
			if err := batch.Send(); err != nil {
				t.Fatal(err)
			}
			var (
				u8              uint8
				i64             int64
				f64             float64
				b               bool
				s, fs, lc, en   string
				n               *float64
				nn              *string
				m               map[string]string
				a               []uint32
				aa              [][]string
				dt, d64, gotDay time.Time
				gotID           uuid.UUID
				dec             decimal.Decimal
				tup             map[string]any
				large           big.Int
				ip              string
			)
			err = c.QueryRow(ctx, "SELECT * EXCEPT ip, toString(ip) FROM "+table+" WHERE i64 = {wanted:Int64}", clickhouse.Named("wanted", int64(-1<<62))).Scan(
				&u8, &i64, &f64, &b, &s, &fs, &lc, &n, &nn, &m, &a, &aa, &dt, &d64, &gotDay, &gotID, &dec, &en, &tup, &large, &ip)
			if err != nil {
				t.Fatal(err)
			}
			got := []any{u8, i64, f64, b, s, fs, lc, *n, nn == nil, m, a, aa, dt.UTC(), d64.UTC(), gotDay.UTC(), gotID, dec.String(), en, tup, ip, large.String()}
			want := []any{uint8(255), int64(-1 << 62), 1.5, true, "tide \x00 \n '`", "abcd", "vllm", 0.5, true, map[string]string{"team": "a", "": "ü"},
				[]uint32{1, 2, 3}, [][]string{{"x"}, {}}, at.Truncate(time.Second), at, day, id, "12345.6789", "b",
				map[string]any{"x": uint8(7), "y": "y"}, "10.1.2.3", "1267650600228229401496703205376"}
			for i := range want {
				if !reflect.DeepEqual(got[i], want[i]) {
					t.Errorf("column %d: got %#v, want %#v", i, got[i], want[i])
				}
			}
			if got := must(t, e, "SELECT u8, f64, nn, dec, n IS NULL FROM "+table+" WHERE i64 = 2"); got != "0\t-0.25\tset\t-0.0001\t1\n" {
				t.Errorf("second row: %q", got)
			}
		})
	}
}

func TestDriverManyRowsAndErrors(t *testing.T) {
	e := startEngine(t, Options{})
	c := connect(t, e, RoleReader, nil)
	ctx := deadline(t)
	rows, err := c.Query(ctx, "SELECT number FROM numbers(300000)")
	if err != nil {
		t.Fatal(err)
	}
	var sum, n uint64
	for rows.Next() {
		if err := rows.Scan(&n); err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	if err := rows.Err(); err != nil || sum != 300000*299999/2 {
		t.Fatalf("sum %d, %v", sum, err)
	}
	rows.Close()

	err = c.Exec(ctx, "CREATE TABLE x (a UInt8) ENGINE = Memory")
	var exception *clickhouse.Exception
	if !errors.As(err, &exception) || exception.Code != codeReadonly {
		t.Fatalf("reader's CREATE: %v", err)
	}
	err = c.QueryRow(ctx, "SELECT nosuch FROM system.one").Scan(&n)
	if !errors.As(err, &exception) || exception.Code != 47 {
		t.Fatalf("unknown column: %v", err)
	}
	var status *clickhouse.HTTPError
	if !errors.As(err, &status) || status.StatusCode != http.StatusNotFound {
		t.Fatalf("status: %v", err)
	}
	bad := connect(t, e, RoleReader, func(o *clickhouse.Options) { o.Auth.Password = "not it" })
	if err := bad.Ping(ctx); !errors.As(err, &exception) || exception.Code != codeAuthentication {
		t.Fatalf("wrong password: %v", err)
	}
}

func TestDriverDeduplication(t *testing.T) {
	e := startEngine(t, Options{})
	c := connect(t, e, RoleWriter, nil)
	ctx := deadline(t)
	for _, sql := range []string{
		"CREATE TABLE points (id UInt64, v String) ENGINE = MergeTree ORDER BY id SETTINGS non_replicated_deduplication_window = 100",
		"CREATE TABLE counts (v String, n UInt64) ENGINE = SummingMergeTree ORDER BY v SETTINGS non_replicated_deduplication_window = 100",
		"CREATE MATERIALIZED VIEW counting TO counts AS SELECT v, count() AS n FROM points GROUP BY v",
	} {
		if err := c.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	send := func(token string, ids ...uint64) {
		t.Helper()
		batch, err := c.PrepareBatch(clickhouse.Context(ctx, clickhouse.WithSettings(clickhouse.Settings{"insert_deduplication_token": token})), "INSERT INTO points (id, v)")
		if err != nil {
			t.Fatal(err)
		}
		defer batch.Close()
		for _, id := range ids {
			if err := batch.Append(id, "x"); err != nil {
				t.Fatal(err)
			}
		}
		if err := batch.Send(); err != nil {
			t.Fatal(err)
		}
	}
	send("p7:1-3", 1, 2, 3)
	send("p7:1-3", 1, 2, 3)
	send("p7:4-6", 1, 2, 3) // the same rows under another token are other rows
	if got := must(t, e, "SELECT count(), (SELECT sum(n) FROM counts) FROM points"); got != "6\t6\n" {
		t.Fatalf("rows and rollup: %q, want 6 and 6", got)
	}
}

func TestParallelInsertsAndSelects(t *testing.T) {
	e := startEngine(t, Options{})
	ctx := deadline(t)
	must(t, e, "CREATE TABLE load (worker UInt32, n UInt32) ENGINE = MergeTree ORDER BY (worker, n)")
	writer, reader := connect(t, e, RoleWriter, func(o *clickhouse.Options) { o.MaxOpenConns = 12 }), connect(t, e, RoleReader, func(o *clickhouse.Options) { o.MaxOpenConns = 12 })
	const workers, batches, size = 8, 5, 2000
	failures := make(chan error, 2*workers)
	var group sync.WaitGroup
	for worker := range workers {
		group.Go(func() {
			for b := range batches {
				batch, err := writer.PrepareBatch(ctx, "INSERT INTO load (worker, n)")
				if err != nil {
					failures <- err
					return
				}
				for i := range size {
					batch.Append(uint32(worker), uint32(b*size+i))
				}
				if err := batch.Send(); err != nil {
					failures <- err
					return
				}
			}
		})
		group.Go(func() {
			for range batches {
				var n, distinct uint64
				if err := reader.QueryRow(ctx, "SELECT count(), uniqExact(n) FROM load WHERE worker = ?", worker).Scan(&n, &distinct); err != nil {
					failures <- err
					return
				}
				if n%size != 0 || n != distinct {
					failures <- fmt.Errorf("a select saw %d rows, %d distinct: part of a block", n, distinct)
					return
				}
			}
		})
	}
	group.Wait()
	close(failures)
	for err := range failures {
		t.Error(err)
	}
	if got := must(t, e, "SELECT count(), sum(n) FROM load"); got != fmt.Sprintf("%d\t%d\n", workers*batches*size, workers*(batches*size)*(batches*size-1)/2) {
		t.Errorf("in all %q", got)
	}
}

func BenchmarkInsert(b *testing.B) {
	e := startEngine(b, Options{})
	must(b, e, "CREATE TABLE samples (ts DateTime64(3) CODEC(Delta, ZSTD), worker LowCardinality(String), field LowCardinality(String), value Int64 CODEC(T64, ZSTD)) ENGINE = MergeTree ORDER BY (worker, field, ts)")
	c := connect(b, e, RoleWriter, nil)
	ctx := context.Background()
	const rows = 100_000
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	times, workers, fields, values := make([]time.Time, rows), make([]string, rows), make([]string, rows), make([]int64, rows)
	for i := range rows {
		times[i], workers[i], fields[i], values[i] = now.Add(time.Duration(i)*time.Millisecond), fmt.Sprint("worker-", i%64), []string{"live", "reserved", "outside", "anon"}[i%4], int64(i)<<12
	}
	columns := clickhouse.WithColumnNamesAndTypes([]clickhouse.ColumnNameAndType{{Name: "ts", Type: "DateTime64(3)"}, {Name: "worker", Type: "LowCardinality(String)"}, {Name: "field", Type: "LowCardinality(String)"}, {Name: "value", Type: "Int64"}})
	before := cpuSeconds(b, e.ChildPID())
	b.ResetTimer()
	for range b.N {
		batch, err := c.PrepareBatch(clickhouse.Context(ctx, columns), "INSERT INTO samples (ts, worker, field, value)")
		if err != nil {
			b.Fatal(err)
		}
		for i, column := range []any{times, workers, fields, values} {
			if err := batch.Column(i).Append(column); err != nil {
				b.Fatal(err)
			}
		}
		if err := batch.Send(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(rows*b.N)/b.Elapsed().Seconds(), "rows/s")
	b.StopTimer()
	b.ReportMetric((cpuSeconds(b, e.ChildPID())-before)*1e6/float64(rows*b.N), "engine-cpu-s/Mrow")
	if got := strings.TrimSpace(must(b, e, "SELECT count() FROM samples")); got != fmt.Sprint(rows*b.N) {
		b.Fatalf("%s rows", got)
	}
}

// cpuSeconds is what the process has used of the processors, which tells more than the clock on a busy machine.
func cpuSeconds(t testing.TB, pid int) float64 {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) / 100
}

func BenchmarkSelect(b *testing.B) {
	e := startEngine(b, Options{})
	c := connect(b, e, RoleReader, nil)
	ctx := context.Background()
	var took []time.Duration
	b.ResetTimer()
	for range b.N {
		started := time.Now()
		var n uint64
		if err := c.QueryRow(ctx, "SELECT sum(number) FROM numbers(1000)").Scan(&n); err != nil || n != 499500 {
			b.Fatal(n, err)
		}
		took = append(took, time.Since(started))
	}
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
