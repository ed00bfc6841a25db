package engine

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestGatewayRefusesOnTheRealEngine(t *testing.T) {
	e := startEngine(t, Options{})
	must(t, e, "CREATE TABLE t (a String) ENGINE = MergeTree ORDER BY a")
	for _, c := range refused {
		for _, role := range []string{RoleWriter, RoleReader} {
			if a := ask(t, e, role, "", c.sql); a.status == http.StatusOK || a.code == "" {
				t.Errorf("%s as %s: status %d, code %q, body %.80q", c.sql, role, a.status, a.code, a.body)
			}
		}
	}
	if got := must(t, e, "SELECT count() FROM t"); got != "0\n" {
		t.Errorf("a refused statement left %s rows", got)
	}
}

// An INSERT's data must never run as SQL. The library's own call for a statement with inline data does run what follows an
// empty line.
func TestInsertDataIsNeverSQL(t *testing.T) {
	e := startEngine(t, Options{})
	must(t, e, "CREATE TABLE t (a String) ENGINE = MergeTree ORDER BY a")
	for _, format := range []string{"CSV", "TSV", "LineAsString", "RawBLOB"} {
		must(t, e, "TRUNCATE TABLE t")
		a := ask(t, e, RoleWriter, "", "INSERT INTO t FORMAT "+format+"\nx\n\nDROP TABLE t\n")
		if a.status != http.StatusOK {
			t.Errorf("%s: %s", format, a.body)
		}
		want := "'x','','DROP TABLE t'" // three lines
		if format == "RawBLOB" {
			want = "'x\\n\\nDROP TABLE t\\n'"
		}
		if got := must(t, e, "SELECT arrayStringConcat(arraySort(x -> x != 'x' AND x != '' , arrayMap(x -> x, groupArray(quoted))), ',') FROM (SELECT toString([a]) AS q, substring(q, 2, length(q) - 2) AS quoted FROM t ORDER BY a = 'x' DESC, a) FORMAT TSVRaw"); !sameParts(strings.TrimSpace(got), want) {
			t.Errorf("%s: rows %q, want %s", format, got, want)
		}
	}
	// Such data in a form of INSERT that has none is refused, not run.
	for _, sql := range []string{
		"INSERT INTO t SELECT 'x' FORMAT CSV\ny\n\nDROP TABLE t\n", "INSERT INTO t SELECT 'x' FORMAT Values ('y')\n\nDROP TABLE t",
		"INSERT INTO t VALUES ('x')\n\nDROP TABLE t\n", "SELECT 1 FORMAT CSV\n\nDROP TABLE t\n", "INSERT INTO t FORMAT Values ('x')\n\nDROP TABLE t\n",
	} {
		if a := ask(t, e, RoleWriter, "", sql); a.status == http.StatusOK {
			t.Errorf("taken: %s", sql)
		}
		must(t, e, "SELECT count() FROM t")
	}
	// 2570 is 0x0a0a: two line feeds in binary data.
	must(t, e, "CREATE TABLE n (a UInt32) ENGINE = MergeTree ORDER BY a")
	var body bytes.Buffer
	for i := range uint32(5000) {
		body.Write([]byte{byte(i), byte(i >> 8), byte(i >> 16), byte(i >> 24)})
	}
	if a := ask(t, e, RoleWriter, "query="+url.QueryEscape("INSERT INTO n FORMAT RowBinary"), body.String()); a.status != http.StatusOK {
		t.Fatal(a.body)
	} else if !strings.Contains(a.header.Get("X-ClickHouse-Summary"), `"written_rows":"5000"`) {
		t.Errorf("summary %s", a.header.Get("X-ClickHouse-Summary"))
	}
	if got := must(t, e, "SELECT count(), sum(a) FROM n"); got != "5000\t12497500\n" {
		t.Errorf("binary rows %q", got)
	}
}

// The library puts what a failed query had written before the result of the session's next one.
func TestFailedQueryLeavesNothingBehind(t *testing.T) {
	e := startEngine(t, Options{})
	for range 2 * sessionsPerAccount {
		if a := ask(t, e, RoleReader, "", "SELECT number FROM numbers(1000001)"); a.code != "396" {
			t.Fatalf("no failure: %d %.100q", a.status, a.body)
		}
		if a := ask(t, e, RoleReader, "", "SELECT throwIf(number = 200000, 'ebb') FROM numbers(1000000)"); a.code != "395" {
			t.Fatalf("no failure: %d %.100q", a.status, a.body)
		}
	}
	for range 2 * sessionsPerAccount {
		if a := ask(t, e, RoleReader, "", "SELECT 1"); a.body != "1\n" {
			t.Fatalf("after a failure: %d bytes, %.60q", len(a.body), a.body)
		}
	}
}

func sameParts(got, want string) bool {
	a, b := strings.Split(got, ","), strings.Split(want, ",")
	if len(a) != len(b) {
		return false
	}
	seen := map[string]int{}
	for i := range a {
		seen[a[i]]++
		seen[b[i]]--
	}
	for _, n := range seen {
		if n != 0 {
			return false
		}
	}
	return true
}

func TestGatewayContract(t *testing.T) {
	e := startEngine(t, Options{})
	base := "http://" + e.Addr()
	get := func(target string, change func(*http.Request)) answer {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, base+target, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth(RoleReader, e.Password(RoleReader))
		if change != nil {
			change(req)
		}
		return send(t, req)
	}
	q := url.QueryEscape
	for _, c := range []struct {
		name, target string
		change       func(*http.Request)
		status       int
		code, body   string
	}{
		{"ping needs no password", "/ping", func(r *http.Request) { r.Header.Del("Authorization") }, 200, "", "Ok.\n"},
		{"get", "/?query=" + q("SELECT 1"), nil, 200, "", "1\n"},
		{"default format", "/?default_format=JSONCompactEachRow&query=" + q("SELECT 1, 'a'"), nil, 200, "", "[1, \"a\"]\n"},
		{"database", "/?database=system&query=" + q("SELECT dummy FROM one"), nil, 200, "", "0\n"},
		{"unknown database", "/?database=nosuch&query=" + q("SELECT 1"), nil, 404, "81", ""},
		{"parameter", "/?param_x=3&query=" + q("SELECT {x:UInt8} + 1"), nil, 200, "", "4\n"},
		{"setting", "/?max_threads=1&query=" + q("SELECT getSetting('max_threads')"), nil, 200, "", "1\n"},
		{"setting is back", "/?query=" + q("SELECT getSetting('max_result_rows')"), nil, 200, "", "1000000\n"},
		{"bound is clamped", "/?max_execution_time=0&query=" + q("SELECT getSetting('max_execution_time')"), nil, 200, "", "30\n"},
		{"ignored setting", "/?async_insert=1&query=" + q("SELECT getSetting('async_insert')"), nil, 200, "", "false\n"},
		{"refused setting", "/?format_schema=x&query=" + q("SELECT 1"), nil, 404, "115", ""},
		{"reader stays readonly", "/?readonly=0&query=" + q("SELECT getSetting('readonly')"), nil, 200, "", "2\n"},
		{"headers", "/?query=" + q("SELECT currentDatabase()"), func(r *http.Request) {
			r.Header.Del("Authorization")
			r.Header.Set("X-ClickHouse-User", RoleReader)
			r.Header.Set("X-ClickHouse-Key", e.Password(RoleReader))
			r.Header.Set("X-ClickHouse-Database", "system")
		}, 200, "", "system\n"},
		{"url credentials", "/?user=reader&password=" + e.Password(RoleReader) + "&query=" + q("SELECT 1"), func(r *http.Request) { r.Header.Del("Authorization") }, 200, "", "1\n"},
		{"two places", "/?user=reader&password=x&query=" + q("SELECT 1"), nil, 403, "516", ""},
		{"no credentials", "/?query=" + q("SELECT 1"), func(r *http.Request) { r.Header.Del("Authorization") }, 401, "516", ""},
		{"wrong password", "/?query=" + q("SELECT 1"), func(r *http.Request) { r.SetBasicAuth(RoleReader, e.Password(RoleReader)+"x") }, 403, "516", ""},
		{"other's password", "/?query=" + q("SELECT 1"), func(r *http.Request) { r.SetBasicAuth(RoleWriter, e.Password(RoleReader)) }, 403, "516", ""},
		{"user default", "/?query=" + q("SELECT 1"), func(r *http.Request) { r.SetBasicAuth("default", "") }, 403, "516", ""},
		{"bearer", "/?query=" + q("SELECT 1"), func(r *http.Request) { r.Header.Set("Authorization", "Bearer x") }, 403, "516", ""},
		{"session is ignored", "/?session_id=a&query=" + q("SELECT 1"), nil, 200, "", "1\n"},
		{"native compression", "/?compress=1&query=" + q("SELECT 1"), nil, 501, "48", ""},
		{"role", "/?role=x&query=" + q("SELECT 1"), nil, 500, "511", ""},
		{"external table", "/?x_structure=a&query=" + q("SELECT 1"), nil, 501, "48", ""},
		{"other path", "/replicas_status", nil, 404, "", ""},
		{"play", "/play", nil, 404, "", ""},
		{"broken escape", "/?query=%zz", nil, 400, "36", ""},
		{"syntax", "/?query=" + q("SELECT FROM FROM"), nil, 400, "62", ""},
		{"unknown table", "/?query=" + q("SELECT * FROM nosuch"), nil, 404, "60", ""},
		{"too many rows", "/?query=" + q("SELECT number FROM numbers(1000001)"), nil, 500, "396", ""},
		{"empty result", "/?query=" + q("SELECT 1 WHERE 0"), nil, 200, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := get(c.target, c.change)
			if a.status != c.status || a.code != c.code || c.status == 200 && a.body != c.body {
				t.Errorf("got %d, code %q, body %q; want %d, %q, %q", a.status, a.code, a.body, c.status, c.code, c.body)
			}
			for _, role := range []string{RoleReader, RoleWriter} {
				if strings.Contains(a.body, e.Password(role)) {
					t.Error("the body holds a password")
				}
			}
		})
	}

	a := get("/?query_id=tide-7&query="+q("SELECT number FROM numbers(10) FORMAT JSON"), nil)
	if a.header.Get("X-ClickHouse-Query-Id") != "tide-7" || a.header.Get("X-ClickHouse-Format") != "JSON" || a.header.Get("X-ClickHouse-Timezone") == "" || a.header.Get("Content-Type") != "application/json; charset=UTF-8" {
		t.Errorf("headers %v", a.header)
	}
	var summary map[string]string // numbers are strings
	if err := json.Unmarshal([]byte(a.header.Get("X-ClickHouse-Summary")), &summary); err != nil || summary["read_rows"] != "10" || summary["result_rows"] != "10" || summary["written_rows"] != "0" {
		t.Errorf("summary %v, %v", summary, err)
	}
	if a := get("/?query="+q("CREATE TABLE g (a UInt8) ENGINE = Memory"), func(r *http.Request) { r.SetBasicAuth(RoleWriter, e.Password(RoleWriter)) }); a.status != 403 || a.code != "164" || !strings.Contains(a.body, "POST") {
		t.Errorf("GET that writes: %d %s %s", a.status, a.code, a.body)
	}
	// The gate cannot tell that this WITH writes; the library's parser can.
	must(t, e, "CREATE TABLE w (a UInt8) ENGINE = Memory")
	if a := ask(t, e, RoleReader, "", "WITH x AS (SELECT 1 AS a) INSERT INTO w SELECT a FROM x"); a.code != "164" {
		t.Errorf("WITH … INSERT as reader: %d %s", a.status, a.body)
	}
	a = get("/?enable_http_compression=1&query="+q("SELECT repeat('tide', 1000)"), func(r *http.Request) { r.Header.Set("Accept-Encoding", "br, gzip;q=0.5") })
	z, err := gzip.NewReader(strings.NewReader(a.body))
	if err != nil || a.header.Get("Content-Encoding") != "gzip" {
		t.Fatalf("reply is not gzip: %v %v", err, a.header)
	}
	if plain, _ := io.ReadAll(z); string(plain) != strings.Repeat("tide", 1000)+"\n" {
		t.Errorf("unzipped %d bytes", len(plain))
	}
}

func TestMemoryIsBounded(t *testing.T) {
	e := startEngine(t, Options{MemoryLimit: 512 << 20})
	for role, sql := range map[string]string{
		RoleReader: "SELECT length(groupArray(number)) FROM numbers(100000000)",
		RoleWriter: "SELECT length(groupArray(number)) FROM numbers(100000000)",
	} {
		if a := ask(t, e, role, "", sql); a.code != "241" || !strings.Contains(a.body, "MEMORY_LIMIT_EXCEEDED") {
			t.Errorf("%s: %d %s", role, a.status, a.body)
		}
	}
	// Each query alone fits; together they do not, and the limit of the engine speaks.
	total := make(chan string, 4)
	for range 4 {
		go func() {
			total <- ask(t, e, RoleWriter, "", "SELECT length(groupArray(number)) FROM numbers(30000000)").body
		}()
	}
	engineLimit := 0
	for range 4 {
		if body := <-total; strings.Contains(body, "(total)") || strings.Contains(body, "MEMORY_LIMIT_EXCEEDED") {
			engineLimit++
		} else if body != "30000000\n" {
			t.Errorf("unexpected reply %q", body)
		}
	}
	if engineLimit == 0 {
		t.Error("four queries of 256 MiB each ran within 512 MiB")
	}
	if got := must(t, e, "SELECT 1"); got != "1\n" || e.Restarts() != 0 {
		t.Errorf("after the limit: %q, %d restarts", got, e.Restarts())
	}
}

func TestTimeIsBoundedAndGoneClientsAreKilled(t *testing.T) {
	e := startEngine(t, Options{})
	if a := ask(t, e, RoleReader, "max_execution_time=1", "SELECT count() FROM generateRandom('a UInt8')"); a.status != 408 || a.code != "159" {
		t.Errorf("endless query: %d %s", a.status, a.body)
	}
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+e.Addr()+"/", strings.NewReader("SELECT count() FROM generateRandom('b UInt8')"))
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth(RoleWriter, e.Password(RoleWriter))
	gone := make(chan struct{})
	go func() {
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
		}
		close(gone)
	}()
	running := func() string {
		return must(t, e, "SELECT count() FROM system.processes WHERE query LIKE '%generateRandom(\\'b UInt8%' AND query NOT LIKE '%system.processes%'")
	}
	until(t, "the query runs", func() bool { return running() == "1\n" })
	cancel()
	<-gone
	until(t, "the query of the client that went away ends", func() bool { return running() == "0\n" })
}

// until asks again and again; the engine is another process, so there is no event to wait for.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func TestBodies(t *testing.T) {
	e := startEngine(t, Options{})
	must(t, e, "CREATE TABLE b (a String) ENGINE = Null")
	post := func(encoding string, body io.Reader, length int64) answer {
		t.Helper()
		req, err := http.NewRequest(http.MethodPost, "http://"+e.Addr()+"/?query="+url.QueryEscape("INSERT INTO b FORMAT LineAsString"), body)
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = length
		req.Header.Set("Expect", "100-continue")
		if encoding != "" {
			req.Header.Set("Content-Encoding", encoding)
		}
		req.SetBasicAuth(RoleWriter, e.Password(RoleWriter))
		return send(t, req)
	}
	line := strings.Repeat("x", 1<<20-1) + "\n"
	fits := strings.Repeat(line, 64)
	if a := post("", strings.NewReader(fits), int64(len(fits))); a.status != 200 {
		t.Errorf("64 MiB: %d %s", a.status, a.body)
	}
	if a := post("", strings.NewReader(fits+"y"), int64(len(fits)+1)); a.status != 413 || a.code != "161" || !strings.Contains(a.body, "67108864") {
		t.Errorf("64 MiB and a byte, announced: %d %s", a.status, a.body)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	for range 65 {
		io.WriteString(z, line)
	}
	z.Close()
	if a := post("gzip", &zipped, int64(zipped.Len())); a.status != 413 {
		t.Errorf("a small body that grows beyond the limit: %d %s", a.status, a.body)
	}
	if a := post("gzip", strings.NewReader("this is not gzip"), 16); a.status != 400 || !strings.Contains(a.body, "Content-Encoding") {
		t.Errorf("not gzip: %d %s", a.status, a.body)
	}
	if a := post("zstd", strings.NewReader("x"), 1); a.status != 501 || !strings.Contains(a.body, "gzip") {
		t.Errorf("zstd: %d %s", a.status, a.body)
	}
	if a := ask(t, e, RoleWriter, "query="+url.QueryEscape("INSERT INTO b FORMAT Native"), "\x01\x05garbage\x00\xff"); a.status == 200 || a.code == "" {
		t.Errorf("garbage in Native: %d %s", a.status, a.body)
	}
	if got := must(t, e, "SELECT 1"); got != "1\n" || e.Restarts() != 0 {
		t.Errorf("afterwards: %q, %d restarts", got, e.Restarts())
	}
}

func TestSlowAndBrokenClientsHoldNobodyUp(t *testing.T) {
	e := startEngine(t, Options{})
	// More clients than sessions, each stuck in the middle of its request.
	for i := range 3 * sessionsPerAccount {
		c, err := net.Dial("tcp", e.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 0 {
			fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\nX-ClickHouse-User: lowtide\r\nX-ClickHouse-Key: %s\r\nContent-Length: 1000\r\n\r\nSELECT", e.Password(RoleWriter))
		} else {
			fmt.Fprint(c, "\x16\x03\x01\x02\x00\x01\x00garbage\r\n\r\n")
		}
	}
	// And one that never reads its large reply.
	c, err := net.Dial("tcp", e.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	statement := "SELECT repeat('x', 1000000) FROM numbers(100)"
	fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\nX-ClickHouse-User: lowtide\r\nX-ClickHouse-Key: %s\r\nContent-Length: %d\r\n\r\n%s", e.Password(RoleWriter), len(statement), statement)
	for range 3 {
		if got := must(t, e, "SELECT 1"); got != "1\n" {
			t.Fatal(got)
		}
	}
}
