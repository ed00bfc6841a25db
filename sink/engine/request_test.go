package engine

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func parseRequest(raw string) (*http.Request, error) {
	return http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
}

func TestDecodeRequest(t *testing.T) {
	r, err := parseRequest("POST /?query=INSERT+INTO+t&database=d&default_format=Native&query_id=q-1&param_x=%5Ct&max_threads=2&insert_deduplication_token=a%3A1" +
		"&async_insert=1&wait_end_of_query=1&client_protocol_version=54460&quota_key=k&readonly=1&enable_http_compression=1&user=reader&password=p HTTP/1.1\r\nHost: x\r\n" +
		"Accept-Encoding: deflate, gzip\r\nContent-Encoding: gzip\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	q, refusal := decodeRequest(r)
	if refusal != nil {
		t.Fatal(refusal)
	}
	if q.user != "reader" || q.password != "p" || q.query != "INSERT INTO t" || q.database != "d" || q.format != "Native" || q.queryID != "q-1" ||
		len(q.parameters) != 1 || q.parameters[0] != (parameter{"x", `\t`}) || !q.readOnly || !q.gzipReply || q.encoding != "gzip" ||
		len(q.settings) != 2 || q.settings["max_threads"] != "2" || q.settings["insert_deduplication_token"] != "a:1" {
		t.Errorf("%+v", q)
	}
	for _, c := range []struct{ target, header, why string }{
		{"/?password=%zz", "", "escape"}, {"/?default_format=a'b", "", "format"}, {"/?database=", "", "database"}, {"/?query_id=a%0ab", "", "query_id"},
		{"/?query_id=" + strings.Repeat("x", 200), "", "query_id"}, {"/?param_a-b=1", "", "plain name"}, {"/?dialect=kusto", "", "dialect"}, {"/?a+b=1", "", "not passed on"},
		{"/", "Content-Type: multipart/form-data", "boundary"}, {"/", "Content-Encoding: br", "gzip"}, {"/", "Authorization: Basic !", "Basic"},
		{"/?t_structure=a+UInt8", "", "External tables"}, {"/?decompress=1", "", "compression"}, {"/?max_threads=" + strings.Repeat("1", 5000), "", "too long"},
	} {
		r, err := parseRequest("POST " + c.target + " HTTP/1.1\r\nHost: x\r\n" + c.header + "\r\n\r\n")
		if err != nil {
			t.Fatal(err)
		}
		if _, refusal := decodeRequest(r); refusal == nil || !strings.Contains(refusal.message, c.why) {
			t.Errorf("%s %s: %v, want %q", c.target, c.header, refusal, c.why)
		}
	}
}

func TestReadMultipart(t *testing.T) {
	const form = "--b\r\nContent-Disposition: form-data; name=\"query\"\r\n\r\nSELECT {x:String}\r\n--b\r\nContent-Disposition: form-data; name=\"param_x\"\r\n\r\nlong\r\n--b--\r\n"
	var b budget
	q := &request{boundary: "b", settings: map[string]string{}}
	text, held, refusal := q.readBody(iotest.OneByteReader(strings.NewReader(form)), -1, &b)
	if refusal != nil || string(text) != "SELECT {x:String}" || len(q.parameters) != 1 || q.parameters[0].value != "long" {
		t.Errorf("%q %v %v", text, q.parameters, refusal)
	}
	if b.give(held); b.used.Load() != 0 {
		t.Errorf("%d bytes stay taken", b.used.Load())
	}
	q = &request{boundary: "b", settings: map[string]string{}}
	if _, _, refusal := q.readBody(strings.NewReader(strings.ReplaceAll(form, `name="param_x"`, `name="t"; filename="t"`)), -1, &b); refusal == nil || !strings.Contains(refusal.message, "external tables") {
		t.Errorf("a file in the form: %v", refusal)
	}
}

func TestBodyBudget(t *testing.T) {
	var b budget
	b.take(bodiesInHand - 1000)
	if _, held, refusal := (&request{}).readBody(strings.NewReader("SELECT 1"), 8, &b); refusal != nil || held > 1000 {
		t.Errorf("a small body: %v, %d held", refusal, held)
	}
	_, held, refusal := (&request{}).readBody(strings.NewReader(strings.Repeat("x", 100_000)), -1, &b)
	if refusal == nil || refusal.code != codeBusy {
		t.Errorf("a body beyond the budget: %v", refusal)
	}
	b.give(held)
	// A length that is only announced costs nothing.
	b = budget{}
	_, held, refusal = (&request{}).readBody(strings.NewReader("SELECT 1"), 60<<20, &b)
	if refusal != nil || held > 1<<20 {
		t.Errorf("announced 60 MiB, sent 8 bytes: %d held, %v", held, refusal)
	}
}

// FuzzDecodeRequest holds decoding to: no panic; settings only that are to be passed on; the password never in a refusal.
func FuzzDecodeRequest(f *testing.F) {
	f.Add("/?query=SELECT+1&user=reader&password=hunter2hunter2", "text/plain", "", []byte("SELECT 1"))
	f.Add("/?database=x&param_y=1&max_threads=1", "multipart/form-data; boundary=b", "", []byte("--b\r\nContent-Disposition: form-data; name=\"query\"\r\n\r\nSELECT 1\r\n--b--\r\n"))
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	io.WriteString(z, "INSERT INTO t FORMAT CSV\n1")
	z.Close()
	f.Add("/?insert_deduplication_token=%27%5C&query_id=1", "", "gzip", zipped.Bytes())
	f.Add("/?role=a", "x", "deflate", []byte{0x78, 0x9c, 3, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, target, contentType, encoding string, body []byte) {
		if len(target) > 1<<14 || len(body) > 1<<16 {
			t.Skip("larger than any request of interest")
		}
		r, err := http.NewRequest(http.MethodPost, "http://x"+target, bytes.NewReader(body))
		if err != nil {
			return
		}
		r.Header.Set("Content-Type", contentType)
		r.Header.Set("Content-Encoding", encoding)
		q, refusal := decodeRequest(r)
		secret := r.URL.Query().Get("password")
		if refusal != nil {
			if len(secret) > 12 && strings.Contains(refusal.Error(), secret) && strings.Count(target, secret) == 1 {
				t.Fatalf("the refusal holds the password: %v", refusal)
			}
			return
		}
		for name := range q.settings {
			if judgeSetting(name) != settingPassed {
				t.Fatalf("setting %q is passed on", name)
			}
		}
		var b budget
		text, held, refusal := q.readBody(r.Body, r.ContentLength, &b)
		if refusal == nil && len(text) > maxBody+len(q.query)+1 {
			t.Fatalf("%d bytes of text", len(text))
		}
		if b.give(held); b.used.Load() != 0 {
			t.Fatalf("%d bytes stay taken", b.used.Load())
		}
	})
}

func TestHelloReply(t *testing.T) {
	// Written down by hand from the layout of a Native block at revision 54460.
	want := "01000" + "2ffffffff00" + "0401" +
		"0d" + hex.EncodeToString([]byte("displayName()")) + "06" + hex.EncodeToString([]byte("String")) + "00" + "07" + hex.EncodeToString([]byte("lowtide")) +
		"09" + hex.EncodeToString([]byte("version()")) + "06" + hex.EncodeToString([]byte("String")) + "00" + "04" + hex.EncodeToString([]byte("26.7")) +
		"0a" + hex.EncodeToString([]byte("revision()")) + "06" + hex.EncodeToString([]byte("UInt32")) + "00" + "00000000" +
		"0a" + hex.EncodeToString([]byte("timezone()")) + "06" + hex.EncodeToString([]byte("String")) + "00" + "03" + hex.EncodeToString([]byte("UTC"))
	if got := hex.EncodeToString(helloReply("26.7", "UTC")); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestParseQueryError(t *testing.T) {
	// Texts of library 26.7.3.
	for _, c := range []struct {
		text    string
		code    int
		name    string
		message string
		status  int
	}{
		{"Code: 497. DB::Exception: Code: 497. DB::Exception: default: Not enough privileges. To execute this query, it's necessary to have the grant READ ON FILE. (ACCESS_DENIED) ()",
			497, "ACCESS_DENIED", "default: Not enough privileges. To execute this query, it's necessary to have the grant READ ON FILE.", 403},
		{"Code: 164. DB::Exception: Code: 164. DB::Exception: Code: 164. DB::Exception: Cannot modify 'max_threads' setting in readonly mode. (READONLY) (version 26.7.2.1). (READONLY) ()",
			164, "READONLY", "Cannot modify 'max_threads' setting in readonly mode.", 403},
		{"Code: 241. DB::Exception: Query memory limit exceeded: would use 768.00 MiB (attempt to allocate chunk of 512.00 MiB), maximum: 476.84 MiB: While executing AggregatingTransform. (MEMORY_LIMIT_EXCEEDED) ()",
			241, "MEMORY_LIMIT_EXCEEDED", "Query memory limit exceeded: would use 768.00 MiB (attempt to allocate chunk of 512.00 MiB), maximum: 476.84 MiB: While executing AggregatingTransform.", 500},
		{"Cannot run a query while a streaming insert is active on this connection", codeLogical, "UNKNOWN_EXCEPTION", "Cannot run a query while a streaming insert is active on this connection.", 500},
	} {
		e := parseQueryError(c.text)
		if e.code != c.code || e.name != c.name || e.message != c.message || e.httpStatus() != c.status {
			t.Errorf("%s\n  got %d %s %q, status %d", c.text, e.code, e.name, e.message, e.httpStatus())
		}
	}
}

func TestSummaryIsStrings(t *testing.T) {
	got := summary(&result{rowsRead: 1, bytesRead: 2, rowsWritten: 3, bytesWritten: 4, resultRows: 9, data: make([]byte, 5)}, 6*time.Nanosecond)
	if want := `{"read_rows":"1","read_bytes":"2","written_rows":"3","written_bytes":"4","total_rows_to_read":"0","result_rows":"3","result_bytes":"5","elapsed_ns":"6"}`; got != want {
		t.Errorf("got %s", got)
	}
}

// Every table function and engine of the library is either known to stay within the engine or known to be refused; a new one
// has to be judged by a person, although the gate refuses it already.
func TestEveryNameOfTheLibraryIsJudged(t *testing.T) {
	e := startEngine(t, Options{})
	known := newReach(nil, nil)
	for name := range strings.FieldsSeq(strings.ToLower(must(t, e, "SELECT name FROM system.table_functions"))) {
		if !known.functions[name] && !allowedFunctions[name] && name != "format" {
			t.Errorf("table function %s is new", name)
		}
	}
	for name := range strings.FieldsSeq(strings.ToLower(must(t, e, "SELECT name FROM system.table_engines UNION ALL SELECT name FROM system.database_engines"))) {
		if !known.engines[name] && !allowedEngines[name] {
			t.Errorf("engine %s is new", name)
		}
	}
	for name := range strings.FieldsSeq(strings.ToLower(must(t, e, "SELECT name FROM system.functions WHERE name LIKE 'ai%' OR name LIKE '%file' OR name LIKE '%catboost%' OR name LIKE '%python%' OR name LIKE 'url' OR name LIKE '%dns%'"))) {
		if !known.scalars[name] {
			t.Errorf("function %s is new", name)
		}
	}
	for _, name := range allowedEngineNames {
		if !allowedEngines[strings.ToLower(name)] {
			t.Errorf("engine %s is granted and not taken", name)
		}
	}
}
