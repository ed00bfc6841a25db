package sink

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"lowtide/sink/engine"
)

// parse reads a command line as the program does.
func parse(grammar any, args []string) error {
	parser, err := kong.New(grammar, kong.Name("lowtide"), kong.Exit(func(int) {}))
	if err != nil {
		return err
	}
	_, err = parser.Parse(args)
	return err
}

// dashboards runs the SQL of every panel and variable the way Grafana sends it: macros and variables replaced by text.
func (f fleet) dashboards(t *testing.T) {
	paths, err := filepath.Glob("../deploy/dashboards/*.json")
	if err != nil || len(paths) != 3 {
		t.Fatalf("dashboards %v, %v; want fleet, worker and pipeline", paths, err)
	}
	panels := 0
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var board struct {
			UID        string
			Templating struct {
				List []struct{ Name, Type, Query, AllValue string }
			}
			Panels []struct {
				ID      int
				Type    string
				Title   string
				Targets []struct {
					RawSQL    string `json:"rawSql"`
					QueryType string `json:"queryType"`
				}
			}
		}
		if err := json.Unmarshal(text, &board); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, v := range board.Templating.List {
			if v.Type == "query" {
				for _, host := range []string{"''", "'h200-x'"} {
					if rows := f.rows(t, grafana(t, v.Query, host, ""), nil); len(rows) == 0 {
						t.Errorf("%s: variable %s has no value with host %s", path, v.Name, host)
					}
				}
			}
		}
		for _, p := range board.Panels {
			if len(p.Targets) == 0 {
				t.Errorf("%s: panel %q asks nothing", path, p.Title)
			}
			for _, target := range p.Targets {
				panels++
				found := 0
				for _, who := range [][2]string{{"''", "'lab/h200-a/chat/0/0'"}, {"'h200-x'", "'lab/h200-x/first/0/0'"}} {
					rows := f.rows(t, grafana(t, target.RawSQL, who[0], who[1]), nil)
					found += len(rows)
					for _, row := range rows {
						if _, ok := row["time"]; target.QueryType == "timeseries" && !ok {
							t.Fatalf("%s: %q is a series without a column time: %v", path, p.Title, row)
						}
					}
				}
				if found == 0 {
					t.Errorf("%s: panel %q is empty with seven recordings and the scene\n%s", path, p.Title, target.RawSQL)
				}
			}
		}
	}
	if panels < 30 {
		t.Errorf("%d panels, there are more", panels)
	}
}

var (
	timeFilter   = regexp.MustCompile(`\$__timeFilter\(([a-z_.]+)\)`)
	timeInterval = regexp.MustCompile(`\$__timeInterval\(([a-z_.]+)\)`)
)

// grafana replaces what the data source's macros and the dashboard's variables stand for, for 2026-11-01. A variable of the
// format sqlstring is a quoted string; the value of All is put in as it is.
func grafana(t *testing.T, sql, host, slot string) string {
	t.Helper()
	sql = timeFilter.ReplaceAllString(sql, "$1 >= toDateTime(1793491200) AND $1 <= toDateTime(1793577600)")
	sql = timeInterval.ReplaceAllString(sql, "toStartOfInterval(toDateTime($1), INTERVAL 60 second)")
	sql = strings.NewReplacer("${__from}", "1793491200000", "${__to}", "1793577600000", "${host:sqlstring}", host, "${slot:sqlstring}", slot).Replace(sql)
	if strings.Contains(sql, "$") {
		t.Fatalf("something is not replaced: %s", sql)
	}
	return sql
}

// refusals say what there is instead; none of a mistyped name reads as denied.
func (f fleet) refusals(t *testing.T) {
	for _, test := range []struct{ query, want, hint string }{
		{"SELECT * FROM worker_sample", "there is no table or view worker_sample in the store; did you mean worker_samples?", "tables: events, findings, gpu_hour_rollup, gpu_minute_rollup, gpu_samples, host_samples, incidents, instance_minute_rollup, worker_hour_rollup, worker_minute_rollup, worker_samples, workers. Views with parameters: before_incident, card_budget"},
		{"SELECT * FROM lowtide.incident", "did you mean incidents?", "tables: "},
		{"SELECT count() FROM nothing_like_it", "there is no table or view nothing_like_it in the store", "tables: events"},
		{"SELECT * FROM quiet_point(since = '2026-11-01 00:00:00')", "there is no table or view quiet_point in the store; did you mean quiet_points?", "quiet_points"},
		{"DESCRIBE TABLE worker", "did you mean workers?", "tables: "},
		{"SELECT * FROM noisy_rules(since = '2026-11-01 00:00:00')", "until", "all its parameters"},
		{"SELECT * FROM noisy_rules", "", "all its parameters"},
		{"SELECT memory FROM workers", "memory", "DESCRIBE TABLE"},
		{"workers", "workers is a table, not a query", "SELECT * FROM workers LIMIT 10"},
		{"peers", "peers is a view, not a query", "lowtide investigate"},
		{"SELCT 1", "SELCT begins no query; did you mean SELECT?", "a query begins with SELECT, WITH"},
		{"SELECT median_of(1)", "median_of", ""},
	} {
		err := f.access.ask(t.Context(), test.query, "CSV", io.Discard)
		if !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v, want ErrRefused", test.query, err)
			continue
		}
		hint := ""
		var hinted interface{ Hint() string }
		if errors.As(err, &hinted) {
			hint = hinted.Hint()
		}
		if !strings.Contains(err.Error(), test.want) || !strings.Contains(hint, test.hint) || strings.Contains(strings.ToLower(err.Error()+hint), "denied") {
			t.Errorf("%s\n  error: %v\n  hint:  %s\n  want %q and %q", test.query, err, hint, test.want, test.hint)
		}
	}
}

// bounds: what the reader's account may not do, and that what is too much is refused with a remedy rather than answered in part.
func (f fleet) bounds(t *testing.T) {
	for _, test := range []struct{ query, want, hint string }{
		{"INSERT INTO events (text) VALUES ('x')", "READONLY", "only reads"},
		{"DROP VIEW peers", "READONLY", "only reads"},
		{"ALTER TABLE events DELETE WHERE 1", "READONLY", "only reads"},
		{"SET max_memory_usage = 0", "ACCESS_DENIED", ""},
		{"SELECT * FROM file('/etc/passwd')", "beyond the engine's own tables", ""},
		{"SELECT * FROM url('http://127.0.0.1:1/')", "beyond the engine's own tables", ""},
		{"SELECT sum(number) FROM numbers(100000000000) SETTINGS max_execution_time = 1", "TIMEOUT_EXCEEDED", "30 seconds"},
		{"SELECT 1 SETTINGS max_execution_time = 3600", "between 1 and 30", ""},
		{"SELECT 1 SETTINGS max_memory_usage = 99999999999", "SETTING_CONSTRAINT_VIOLATION", ""},
		{"SELECT length(groupArray(number)) FROM numbers(1000000000)", "MEMORY_LIMIT_EXCEEDED", "less time or fewer workers"},
		{"SELECT number FROM numbers(1000001)", "TOO_MANY_ROWS", "LIMIT"},
	} {
		err := f.access.ask(t.Context(), test.query, "CSV", io.Discard)
		if !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v, want ErrRefused", test.query, err)
			continue
		}
		var hinted interface{ Hint() string }
		if !strings.Contains(err.Error(), test.want) || test.hint != "" && (!errors.As(err, &hinted) || !strings.Contains(hinted.Hint(), test.hint)) {
			t.Errorf("%s: %v, want %q and the hint %q", test.query, err, test.want, test.hint)
		}
	}
	other := f.access
	other.User = engine.RoleWriter // with the reader's password
	if err := other.ask(t.Context(), "SELECT 1", "CSV", io.Discard); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "AUTHENTICATION_FAILED") {
		t.Errorf("another account: %v", err)
	}
}

// A time out of range, an unknown unit and a hostile answer end in an error or in text, never in a panic.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("[\"time\",\"live_bytes\"]\n[\"DateTime64(9, 'UTC')\",\"Nullable(UInt64)\"]\n[\"2026-11-01 00:00:00.000000000\",null]\n[\"2026-11-01 00:00:01.000000000\",1073741824]\n"))
	f.Add([]byte("[\"frames\",\"unit\",\"x\"]\n[\"Array(String)\",\"String\",\"Float64\"]\n[[\"a\\u001b[31m\",\"b\"],\"bytes\",1e400]\n"))
	f.Add([]byte("[]\n[]\n[]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := readAnswer(text)
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := a.write(&out); err != nil {
			t.Fatal(err)
		}
		if lines := bytes.Count(out.Bytes(), []byte("\n")); lines != len(a.rows)+1 {
			t.Fatalf("%d lines for %d rows and a heading", lines, len(a.rows))
		}
		if bytes.ContainsRune(out.Bytes(), '\x1b') {
			t.Fatalf("an escape reaches the terminal: %q", out.Bytes())
		}
	})
}

func TestTableReadsQuantities(t *testing.T) {
	a, err := readAnswer([]byte(`["time","slot","live_bytes","live_bytes_per_hour","kv_usage","change","unit","failed","frames"]
["DateTime64(9, 'UTC')","String","Nullable(Int64)","Nullable(Float64)","Float64","Float64","String","Bool","Array(String)"]
["2026-11-01 00:00:01.500000000","a",13958643712,768604160,0.125,-2147483648,"bytes",true,["a.py:1 f","b.py:2 g"]]
["2026-11-01 00:01:01.000000000","bb\u001b[31m",null,null,0,2,"",false,[]]
`))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := a.write(&out); err != nil {
		t.Fatal(err)
	}
	want := `time                 slot     live_bytes  live_bytes_per_hour  kv_usage  change  unit   failed  frames
2026-11-01 00:00:01  a            13 GiB            733 MiB/h    12.5 %  -2 GiB  bytes  yes     a.py:1 f < b.py:2 g
2026-11-01 00:01:01  bb [31m           ?                    ?       0 %       2         no
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	for _, broken := range []string{"", "[1]\n[2]", "[\"a\"]\n[]\n", "[\"a\"]\n[\"String\"]\n[1,2]\n", "[\"a\"]\n[\"String\"]\n[\"b\""} {
		if _, err := readAnswer([]byte(broken)); !errors.Is(err, errAnswer) {
			t.Errorf("%q: %v, want errAnswer", broken, err)
		}
	}
	for name, want := range map[string]string{"live_bytes": "bytes", "growth_bytes_per_hour": "bytes/h", "aborts_per_hour": "1/h", "live_bytes_per_abort": "bytes/abort",
		"ttft_p95_seconds": "seconds", "share_ratio": "ratio", "kv_usage": "ratio", "hours": "hours", "life_hours": "hours", "aborts": "", "transitions_per_incident": "1/incident"} {
		if got := unitOf(name); got != want {
			t.Errorf("unit of %s is %q, want %q", name, got, want)
		}
	}
}

func TestNoStoreIsSaidPlainly(t *testing.T) {
	err := Access{DataDir: t.TempDir()}.ask(t.Context(), "SELECT 1", "CSV", io.Discard)
	if !errors.Is(err, ErrNoStore) || !strings.Contains(fmt.Sprint(err), "hint: start `lowtide up`") {
		t.Errorf("%v", err)
	}
}
