package engine

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	bodyDeadline  = 2 * time.Minute  // for a client to send its body
	replyDeadline = 2 * time.Minute  // for a client to take its reply
	extraDeadline = 10 * time.Second // beyond max_execution_time, until a query is killed
	maxReply      = 1 << 30          // bytes of one result in its output format
)

// gateway serves the ClickHouse HTTP interface on top of the library's sessions.
type gateway struct {
	reach    *reach
	sessions map[string]*sessions // by account
	hashes   map[string][32]byte  // of the passwords
	hello    []byte
	timezone string
	bodies   budget
	log      *slog.Logger
}

// query is one statement as it goes to the library.
type query struct {
	head       []byte // the statement, without the data of an INSERT
	insert     bool   // with data
	data       []byte // of an INSERT
	format     string // of the data, or the format of a result whose statement names none
	database   string
	settings   map[string]string
	parameters []parameter
}

// ServeHTTP answers /ping and /; every other path is 404.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Deadlines stay with the connection, so each request sets both anew.
	control := http.NewResponseController(w)
	control.SetReadDeadline(time.Now().Add(bodyDeadline))
	control.SetWriteDeadline(time.Time{})
	switch r.URL.Path {
	case "/ping":
		w.Header().Set("Content-Type", "text/plain; charset=UTF-8")
		io.WriteString(w, "Ok.\n")
		return
	case "/":
	default:
		w.Header().Set("Content-Type", "text/plain; charset=UTF-8")
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, "There is no handle "+strconv.QuoteToASCII(r.URL.Path)+"\n\nUse / for queries or /ping for health checks.\n")
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost:
	default:
		w.Header().Set("Allow", "GET, HEAD, POST")
		http.Error(w, "method is not taken", http.StatusMethodNotAllowed)
		return
	}
	q, refusal := decodeRequest(r)
	if refusal != nil {
		g.fail(w, refusal)
		return
	}
	who, refusal := g.authenticate(q)
	if refusal != nil {
		if !q.named {
			w.Header().Set("WWW-Authenticate", `Basic realm="lowtide engine"`)
			refusal.status = http.StatusUnauthorized
		}
		g.fail(w, refusal)
		return
	}
	if q.queryID == "" {
		q.queryID = newQueryID()
	}
	w.Header().Set("X-ClickHouse-Query-Id", q.queryID)
	w.Header().Set("X-ClickHouse-Timezone", g.timezone)
	w.Header().Set("X-ClickHouse-Server-Display-Name", "lowtide")
	if refusal := g.serve(w, r, q, who); refusal != nil {
		g.log.Debug("query failed", "query_id", q.queryID, "account", who.role, "code", refusal.code, "name", refusal.name)
		g.fail(w, refusal)
	}
}

// serve runs one request whose sender is known. A refusal is returned only while nothing of the reply was written.
func (g *gateway) serve(w http.ResponseWriter, r *http.Request, q *request, who account) *queryError {
	control := http.NewResponseController(w)
	text, held, refusal := q.readBody(r.Body, r.ContentLength, &g.bodies)
	defer func() { g.bodies.give(held) }()
	if refusal != nil {
		return refusal
	}
	control.SetReadDeadline(time.Time{})
	if q.readOnly {
		who.writes = false
	}
	if isHello(text, q.format) {
		w.Header().Set("X-ClickHouse-Format", "Native")
		g.reply(w, q, "Native", g.hello, nil, 0)
		return nil
	}
	st, refusal := g.reach.inspect(text, who)
	if refusal != nil {
		if q.readOnly && refusal.code == codeReadonly && g.sessions[who.role].who.writes {
			refusal.message = "Statements that change something need POST, and no readonly setting"
		}
		return refusal
	}
	limit := float64(who.bounds["max_execution_time"])
	if asked, ok := q.settings["max_execution_time"]; ok {
		limit, _ = strconv.ParseFloat(clampSetting(asked, int64(limit)), 64)
	}
	pool := g.sessions[who.role]
	s, refusal := pool.acquire(r.Context())
	if refusal != nil {
		return refusal
	}
	started := time.Now()
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(limit*float64(time.Second))+extraDeadline)
	result, refusal := g.execute(ctx, pool, s, st, who, newQuery(text, st, q))
	cancel()
	pool.release(s)
	if refusal != nil {
		return refusal
	}
	defer result.free()
	// The text is in the library's hands no more; its room is free for the next request while the reply is written.
	g.bodies.give(held)
	held, text = 0, nil
	if len(result.data) > maxReply {
		return failure(396, "TOO_MANY_ROWS_OR_BYTES", "Result has %d bytes in its format, at most %d are given", len(result.data), maxReply)
	}
	format := st.format
	if format == "" || !st.reads {
		format = q.format
	}
	g.log.Debug("query ran", "query_id", q.queryID, "account", who.role, "kind", st.kind, "rows_written", result.rowsWritten, "took", time.Since(started))
	g.reply(w, q, format, result.data, result, time.Since(started))
	return nil
}

// newQuery separates the data of an INSERT from its statement.
func newQuery(text []byte, st statement, q *request) *query {
	bodyAt := 0
	if q.query != "" {
		bodyAt = len(q.query) + 1
	}
	out := &query{head: text, format: q.format, database: q.database, settings: q.settings, parameters: q.parameters}
	if st.data > 0 {
		// The line feed ends a comment, after which the library puts the format.
		out.head = append(append(make([]byte, 0, st.head+1), text[:st.head]...), '\n')
		out.insert, out.format, out.data = true, st.format, dataOf(text, st, bodyAt)
	}
	return out
}

// dataOf is the data of an INSERT. Data in the body begins where the body does, to the byte; data in the same text as the
// statement begins after the white space that ends the format's name, up to and with one line feed.
func dataOf(text []byte, st statement, bodyAt int) []byte {
	data := text[st.data:]
	if st.data < bodyAt && bodyAt <= len(text) && len(bytes.TrimSpace(text[st.data:bodyAt])) == 0 {
		return text[bodyAt:]
	}
	i := 0
	for i < len(data) && strings.IndexByte(" \t\r", data[i]) >= 0 {
		i++
	}
	if i < len(data) && data[i] == '\n' {
		return data[i+1:]
	}
	return data[i:]
}

// execute asks the library's own parser about the statement, and runs it when that agrees with the gate.
func (g *gateway) execute(ctx context.Context, pool *sessions, s *session, st statement, who account, q *query) (*result, *queryError) {
	class, err := s.connection.classify(q.head)
	if err != nil {
		return nil, asQueryError(err)
	}
	switch {
	case class.statements > 1:
		return nil, failure(codeSyntax, "SYNTAX_ERROR", "Multi-statements are not taken")
	case class.class == classGlobal || class.class == classControl:
		return nil, failure(codeAccess, "ACCESS_DENIED", "%s: this form of the statement is not taken by this engine", strings.ToUpper(st.kind))
	case class.class == classMutate && !who.writes:
		return nil, failure(codeReadonly, "READONLY", "The account %s may only read in this request", who.role)
	}
	return pool.run(ctx, s, q)
}

// authenticate finds the account by name and password, in the same time for every wrong pair.
func (g *gateway) authenticate(q *request) (account, *queryError) {
	given := sha256.Sum256([]byte(q.password))
	want, known := g.hashes[q.user]
	same := subtle.ConstantTimeCompare(given[:], want[:]) == 1
	if !known || !same {
		return account{}, failure(codeAuthentication, "AUTHENTICATION_FAILED",
			"%.64s: Authentication failed: password is incorrect, or there is no user with such name; the accounts are %s and %s, their passwords stand in the files %s.password and %s.password of the data folder",
			strconv.QuoteToASCII(q.user), RoleWriter, RoleReader, RoleWriter, RoleReader)
	}
	return g.sessions[q.user].who, nil
}

// reply writes a result. The headers tell its format and, as strings, what was read and written.
func (g *gateway) reply(w http.ResponseWriter, q *request, format string, data []byte, r *result, took time.Duration) {
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(replyDeadline))
	h := w.Header()
	h.Set("Content-Type", contentType(format))
	h.Set("X-ClickHouse-Format", format)
	h.Set("X-ClickHouse-Summary", summary(r, took))
	if q.gzipReply && len(data) > 0 {
		h.Set("Content-Encoding", "gzip")
		h.Set("Vary", "Accept-Encoding")
		z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
		if _, err := z.Write(data); err != nil {
			return
		}
		z.Close()
		return
	}
	h.Set("Content-Length", strconv.Itoa(len(data)))
	w.Write(data)
}

func summary(r *result, took time.Duration) string {
	if r == nil {
		r = &result{}
	}
	resultRows := r.resultRows
	if r.rowsWritten > 0 {
		resultRows = r.rowsWritten
	}
	return fmt.Sprintf(`{"read_rows":"%d","read_bytes":"%d","written_rows":"%d","written_bytes":"%d","total_rows_to_read":"0","result_rows":"%d","result_bytes":"%d","elapsed_ns":"%d"}`,
		r.rowsRead, r.bytesRead, r.rowsWritten, r.bytesWritten, resultRows, len(r.data), took.Nanoseconds())
}

// fail writes an error the way ClickHouse does: the code in a header, the text in the body.
func (g *gateway) fail(w http.ResponseWriter, e *queryError) {
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(replyDeadline))
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=UTF-8")
	h.Set("X-ClickHouse-Exception-Code", strconv.Itoa(e.code))
	h.Set("X-ClickHouse-Exception-Name", e.name)
	if e.status == http.StatusRequestEntityTooLarge {
		h.Set("Connection", "close") // the rest of the body is not read
	}
	w.WriteHeader(e.httpStatus())
	io.WriteString(w, e.Error()+"\n")
}

func contentType(format string) string {
	switch {
	case strings.Contains(format, "JSON") && strings.Contains(format, "EachRow") || format == "NDJSON" || format == "JSONLines" || format == "JSONL":
		return "application/x-ndjson; charset=UTF-8"
	case strings.HasPrefix(format, "JSON"):
		return "application/json; charset=UTF-8"
	case strings.HasPrefix(format, "TabSeparated") || strings.HasPrefix(format, "TSV"):
		return "text/tab-separated-values; charset=UTF-8"
	case strings.HasPrefix(format, "CSV"):
		return "text/csv; charset=UTF-8; header=absent"
	case format == "Native" || strings.HasPrefix(format, "RowBinary") || format == "Parquet" || strings.HasPrefix(format, "Arrow"):
		return "application/octet-stream"
	}
	return "text/plain; charset=UTF-8"
}

// newQueryID is a random UUID of version 4.
func newQueryID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	t := hex.EncodeToString(b[:])
	return t[:8] + "-" + t[8:12] + "-" + t[12:16] + "-" + t[16:20] + "-" + t[20:]
}
