package engine

import (
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode/utf8"
)

// Limits of one request.
const (
	maxBody       = 64 << 20  // bytes of statement and data, after decompression
	bodiesInHand  = 256 << 20 // bytes of all requests that are being read or run
	maxParameters = 1000      // URL parameters
	maxHeader     = 1 << 20   // bytes of request line and headers
	maxQueryID    = 128
	maxName       = 256 // bytes of a database's name
)

// request is an HTTP request in ClickHouse's terms, without its body.
type request struct {
	user, password string
	named          bool // credentials were given
	query          string
	database       string
	format         string // default_format
	queryID        string
	settings       map[string]string
	parameters     []parameter
	readOnly       bool // GET, HEAD, or readonly asked for
	gzipReply      bool
	encoding       string // of the body: "", gzip or deflate
	boundary       string // of a multipart body
}

// decodeRequest reads everything but the body; it refuses what has no meaning here instead of passing it over.
func decodeRequest(r *http.Request) (*request, *queryError) {
	q := &request{database: "default", format: "TabSeparated", settings: map[string]string{}}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, failure(codeBadArguments, "BAD_ARGUMENTS", "URL parameters cannot be decoded: %v", urlCause(err))
	}
	if len(values) > maxParameters {
		return nil, failure(codeBadArguments, "BAD_ARGUMENTS", "%d URL parameters, at most %d are taken", len(values), maxParameters)
	}
	if refusal := q.credentials(r, values); refusal != nil {
		return nil, refusal
	}
	q.readOnly = r.Method != http.MethodPost
	wantsGzip := values.Get("enable_http_compression") == "1"
	for name, all := range values {
		if refusal := q.parameter(name, all); refusal != nil {
			return nil, refusal
		}
	}
	if q.queryID == "" {
		q.queryID = r.Header.Get("X-ClickHouse-Query-Id")
	}
	if database := r.Header.Get("X-ClickHouse-Database"); database != "" && !values.Has("database") {
		q.database = database
	}
	if format := r.Header.Get("X-ClickHouse-Format"); format != "" && !values.Has("default_format") {
		q.format = format
	}
	if len(q.queryID) > maxQueryID || strings.ContainsFunc(q.queryID, func(c rune) bool { return c < ' ' || c >= 0x7f }) {
		return nil, failure(codeBadArguments, "BAD_ARGUMENTS", "query_id must be at most %d printable ASCII characters", maxQueryID)
	}
	if q.database == "" || len(q.database) > maxName || !utf8.ValidString(q.database) || strings.IndexByte(q.database, 0) >= 0 {
		return nil, failure(codeDatabase, "UNKNOWN_DATABASE", "Name of the database must be 1 to %d bytes of text", maxName)
	}
	if !plainName(q.format) {
		return nil, failure(73, "UNKNOWN_FORMAT", "default_format is not the name of a format")
	}
	switch encoding := strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		q.encoding = "gzip"
	case "deflate":
		q.encoding = "deflate"
	default:
		return nil, failure(codeNotImplemented, "NOT_IMPLEMENTED", "Content-Encoding %.32q is not taken; use gzip, deflate or none", encoding)
	}
	q.gzipReply = wantsGzip && acceptsGzip(r.Header.Get("Accept-Encoding"))
	if kind, arguments, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err == nil && kind == "multipart/form-data" {
		if q.boundary = arguments["boundary"]; q.boundary == "" {
			return nil, failure(codeBadArguments, "BAD_ARGUMENTS", "multipart body without a boundary")
		}
	}
	return q, nil
}

// credentials takes them from one place only, as ClickHouse does.
func (q *request) credentials(r *http.Request, values url.Values) *queryError {
	places := 0
	take := func(user, password string, given bool) {
		if given {
			places++
			q.user, q.password, q.named = user, password, true
		}
	}
	if header := r.Header.Get("Authorization"); header != "" {
		user, password, ok := r.BasicAuth()
		if !ok {
			return failure(codeAuthentication, "AUTHENTICATION_FAILED", "Authorization header is not Basic; this engine knows user names and passwords only")
		}
		take(user, password, true)
	}
	headerUser, headerKey := r.Header.Get("X-ClickHouse-User"), r.Header.Get("X-ClickHouse-Key")
	take(headerUser, headerKey, headerUser != "" || headerKey != "")
	take(values.Get("user"), values.Get("password"), values.Has("user") || values.Has("password"))
	if places > 1 {
		return failure(codeAuthentication, "AUTHENTICATION_FAILED", "Credentials were given in more than one place; use the Authorization header, X-ClickHouse headers or URL parameters")
	}
	if q.user == "" {
		q.user = "default"
	}
	return nil
}

func (q *request) parameter(name string, all []string) *queryError {
	value := all[len(all)-1]
	switch name {
	case "user", "password":
		return nil
	case "query":
		q.query = strings.Join(all, "")
	case "database":
		q.database = value
	case "default_format":
		q.format = value
	case "query_id":
		q.queryID = value
	case "readonly":
		q.readOnly = q.readOnly || value != "0"
	case "compress", "decompress":
		if value != "0" {
			return failure(codeNotImplemented, "NOT_IMPLEMENTED", "%s=1 (blocks of ClickHouse's own compression) is not taken; use gzip or no compression", name)
		}
	case "role":
		return failure(511, "UNKNOWN_ROLE", "Roles cannot be chosen; the accounts are %s and %s", RoleWriter, RoleReader)
	default:
		if key, ok := strings.CutPrefix(name, "param_"); ok {
			if !plainName(key) {
				return failure(codeBadArguments, "BAD_ARGUMENTS", "Query parameter %.64q has no plain name", name)
			}
			q.parameters = append(q.parameters, parameter{key, value})
			return nil
		}
		switch judgeSetting(name) {
		case settingRefused:
			if strings.HasSuffix(name, "_structure") || strings.HasSuffix(name, "_types") {
				return failure(codeNotImplemented, "NOT_IMPLEMENTED", "External tables are not taken (URL parameter %.64q); insert into a table", name)
			}
			return failure(codeSetting, "UNKNOWN_SETTING", "Setting %.64q is not passed on by this engine", name)
		case settingPassed:
			if len(value) > 4096 || strings.IndexByte(value, 0) >= 0 {
				return failure(codeBadArguments, "BAD_ARGUMENTS", "Value of the setting %s is too long or holds a zero byte", name)
			}
			q.settings[name] = value
		}
	}
	return nil
}

// urlCause leaves out the text that could not be decoded: it may hold a password.
func urlCause(err error) string {
	var escape url.EscapeError
	if errors.As(err, &escape) {
		return "an escape sequence is broken"
	}
	return "the text is malformed"
}

func acceptsGzip(header string) bool {
	for part := range strings.SplitSeq(header, ",") {
		name, weight, _ := strings.Cut(strings.TrimSpace(part), ";")
		if name = strings.TrimSpace(name); strings.EqualFold(name, "gzip") || name == "*" {
			q, err := strconv.ParseFloat(strings.TrimPrefix(strings.TrimSpace(weight), "q="), 64)
			return weight == "" || err != nil || q > 0
		}
	}
	return false
}

// budget counts the bytes of all bodies in hand.
type budget struct{ used atomic.Int64 }

func (b *budget) take(n int) bool {
	if b.used.Add(int64(n)) > bodiesInHand {
		b.used.Add(-int64(n))
		return false
	}
	return true
}

func (b *budget) give(n int) { b.used.Add(-int64(n)) }

// readBody returns the statement: the query of the URL, a line feed and the body. held is what it took from the budget, to be
// given back when the text is done with, also after an error.
func (q *request) readBody(body io.Reader, length int64, b *budget) (text []byte, held int, refusal *queryError) {
	if q.boundary != "" {
		return q.readMultipart(body, b)
	}
	var reader io.Reader = body
	switch q.encoding {
	case "gzip":
		z, err := gzip.NewReader(body)
		if err != nil {
			return nil, 0, bodyFailure(err)
		}
		defer z.Close()
		reader, length = z, -1
	case "deflate":
		z, err := zlib.NewReader(body)
		if err != nil {
			return nil, 0, bodyFailure(err)
		}
		defer z.Close()
		reader, length = z, -1
	}
	if length > maxBody {
		return nil, 0, tooLarge()
	}
	prefix := q.query
	if prefix != "" {
		prefix += "\n"
	}
	return readAll(prefix, reader, length, maxBody, b)
}

// readAll reads to the end, growing the buffer as bytes come, so that a length that was only claimed costs nothing.
func readAll(prefix string, reader io.Reader, length, limit int64, b *budget) (text []byte, held int, refusal *queryError) {
	size := 64 << 10
	if length >= 0 && length < 1<<20 {
		size = int(length) + 1
	}
	size += len(prefix)
	if !b.take(size) {
		return nil, 0, busyBodies()
	}
	held = size
	text = append(make([]byte, 0, size), prefix...)
	for {
		if len(text) == cap(text) {
			more := cap(text)
			if !b.take(more) {
				return nil, held, busyBodies()
			}
			held += more
			text = append(make([]byte, 0, cap(text)+more), text...)
		}
		n, err := reader.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		if int64(len(text)-len(prefix)) > limit {
			return nil, held, tooLarge()
		}
		if err == io.EOF {
			return text, held, nil
		}
		if err != nil {
			return nil, held, bodyFailure(err)
		}
	}
}

// readMultipart reads the form in which @clickhouse/client sends large parameters: parts query and param_*.
func (q *request) readMultipart(body io.Reader, b *budget) (text []byte, held int, refusal *queryError) {
	if q.encoding != "" {
		return nil, 0, failure(codeNotImplemented, "NOT_IMPLEMENTED", "A compressed multipart body is not taken")
	}
	parts := multipart.NewReader(io.LimitReader(body, maxBody+1), q.boundary)
	text = []byte(q.query)
	total := int64(0)
	for count := 0; ; count++ {
		part, err := parts.NextRawPart()
		if err == io.EOF {
			return text, held, nil
		}
		if err != nil {
			return nil, held, bodyFailure(err)
		}
		if count >= maxParameters {
			return nil, held, failure(codeBadArguments, "BAD_ARGUMENTS", "more than %d parts in a multipart body", maxParameters)
		}
		name := part.FormName()
		if part.FileName() != "" || name != "query" && !strings.HasPrefix(name, "param_") {
			return nil, held, failure(codeNotImplemented, "NOT_IMPLEMENTED", "Part %.64q of the multipart body is not taken: parts are query and param_*; external tables are not supported", name)
		}
		content, took, refusal := readAll("", part, -1, maxBody-total, b)
		held += took
		if refusal != nil {
			return nil, held, refusal
		}
		total += int64(len(content))
		if name == "query" {
			text = append(text, content...)
		} else if refusal := q.parameter(name, []string{string(content)}); refusal != nil {
			return nil, held, refusal
		}
	}
}

func tooLarge() *queryError {
	e := failure(codeTooLarge, "REQUEST_ENTITY_TOO_LARGE", "Request is larger than %d bytes after decompression; send smaller blocks", maxBody)
	e.status = http.StatusRequestEntityTooLarge
	return e
}

func busyBodies() *queryError {
	return failure(codeBusy, "TOO_MANY_SIMULTANEOUS_QUERIES", "Requests in hand hold %d bytes already; try again", bodiesInHand)
}

func bodyFailure(err error) *queryError {
	e := failure(codeBadArguments, "BAD_ARGUMENTS", "Request body cannot be read: %s", strings.TrimSpace(fmt.Sprint(err)))
	if errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || errors.Is(err, zlib.ErrHeader) {
		e.message = "Request body is not what its Content-Encoding says"
	}
	return e
}
