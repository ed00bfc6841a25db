package sink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"

	json "github.com/go-json-experiment/json"
)

// ErrShort says that the store took an insert without an error and wrote fewer rows than it was sent.
var ErrShort = errors.New("store wrote fewer rows than it was sent")

// maxReply is how much of the text of an error is read, in bytes.
const maxReply = 16 << 10

// InsertRows stores rows of one table. Calling it again with the same token changes nothing, as long as fewer than the table's
// non_replicated_deduplication_window blocks were inserted meanwhile. An error wraps ErrAway, ErrRefused (with a *Refusal) or ErrShort.
func (c *ClickHouse) InsertRows(ctx context.Context, token string, rows Rows) error {
	err := rows.check()
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, callLimit)
		defer cancel()
		if c.web != nil {
			err = c.post(ctx, token, rows)
		} else {
			err = c.batch(ctx, token, rows)
		}
	}
	if err != nil {
		return c.explain("insert into "+rows.Table, err)
	}
	return nil
}

// insertSettings make an insert synchronous, and dropped when its token was seen, in the views that hang on the table too.
func insertSettings(token string) map[string]string {
	return map[string]string{
		"async_insert": "0", "insert_deduplicate": "1", "insert_deduplication_token": token, "deduplicate_blocks_in_dependent_materialized_views": "1",
		"max_partitions_per_insert_block": "0", // a recording may span more days than the default allows
	}
}

func (c *ClickHouse) statement(rows Rows) string {
	return "INSERT INTO " + c.database + "." + rows.Table + " (" + rows.names() + ")"
}

// web is the HTTP interface. Blocks are made here rather than by clickhouse-go, whose batches over HTTP are lost without an error
// when they cannot be encoded, cost a DESCRIBE each, and take several times the CPU.
type web struct {
	client         *http.Client
	addr           string
	user, password string
	unsure         atomic.Bool // a reply that did not tell what was written was reported
}

func newWeb(o Options) *web {
	return &web{addr: o.Addr, user: o.User, password: o.Password,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: callLimit, DisableCompression: true}}}
}

func (c *ClickHouse) post(ctx context.Context, token string, rows Rows) error {
	query := url.Values{"query": {c.statement(rows) + " FORMAT Native"}, "database": {"default"}, "wait_end_of_query": {"1"}}
	for name, value := range insertSettings(token) {
		query.Set(name, value)
	}
	body := rows.appendNative(make([]byte, 0, rows.nativeSize()))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.web.addr+"/?"+query.Encode(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.SetBasicAuth(c.web.user, c.web.password)
	request.Header.Set("Content-Type", "application/octet-stream")
	reply, err := c.web.client.Do(request)
	if err != nil {
		if at := (*url.Error)(nil); errors.As(err, &at) {
			return at.Err // without the address, in which the whole statement stands
		}
		return err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(io.LimitReader(reply.Body, maxReply))
	if err != nil {
		return fmt.Errorf("read reply: %w", err)
	}
	if code := reply.Header.Get("X-ClickHouse-Exception-Code"); code != "" || reply.StatusCode != http.StatusOK {
		return refusalOf(reply.StatusCode, code, string(text))
	}
	return c.written(reply.Header.Get("X-ClickHouse-Summary"), rows)
}

// written compares what the server says it wrote with what it was sent. A block that is dropped as a duplicate counts as written there, and
// rows of dependent views are counted on top.
func (c *ClickHouse) written(summary string, rows Rows) error {
	var said struct {
		Written string `json:"written_rows"`
	}
	err := json.Unmarshal([]byte(summary), &said)
	n, numberErr := strconv.ParseUint(said.Written, 10, 64)
	if err != nil || numberErr != nil {
		if !c.web.unsure.Swap(true) {
			c.log.Warn("the store does not say how many rows it wrote; something between may take the header X-ClickHouse-Summary away", "table", rows.Table)
		}
		return nil
	}
	if n < uint64(rows.Count) {
		return fmt.Errorf("%w: %d of %d", ErrShort, n, rows.Count)
	}
	return nil
}

// batch goes through clickhouse-go and ClickHouse's own protocol.
func (c *ClickHouse) batch(ctx context.Context, token string, rows Rows) error {
	settings := clickhouse.Settings{}
	for name, value := range insertSettings(token) {
		settings[name] = value
	}
	wrote := uint64(0)
	ctx = clickhouse.Context(ctx, clickhouse.WithSettings(settings), clickhouse.WithProgress(func(p *clickhouse.Progress) { wrote += p.WroteRows }))
	batch, err := c.conn.PrepareBatch(ctx, c.statement(rows))
	if err != nil {
		return err
	}
	defer batch.Close()
	for i := range rows.Columns {
		if err := batch.Column(i).Append(rows.Columns[i].driverValues()); err != nil {
			return fmt.Errorf("column %s: %w", rows.Columns[i].name, err)
		}
	}
	if n := batch.Rows(); n != rows.Count {
		return fmt.Errorf("%w: %d of %d are in the batch", ErrShort, n, rows.Count)
	}
	if err := batch.Send(); err != nil {
		return err
	}
	if wrote > 0 && wrote < uint64(rows.Count) { // an old server tells nothing
		return fmt.Errorf("%w: %d of %d", ErrShort, wrote, rows.Count)
	}
	return nil
}

// driverValues are the values in a slice that clickhouse-go takes: of pointers where some may be null.
func (c *Column) driverValues() any {
	switch c.kind {
	case kindText, kindName:
		return c.text
	case kindNames:
		return c.lists
	case kindSmall:
		return driverSlice(c, func(row int) uint16 { return uint16(c.bits[row]) })
	case kindTime:
		return driverSlice(c, func(row int) time.Time { return time.Unix(0, int64(c.bits[row])).UTC() })
	case kindUint:
		return driverSlice(c, func(row int) uint64 { return c.bits[row] })
	case kindInt:
		return driverSlice(c, func(row int) int64 { return int64(c.bits[row]) })
	case kindFloat:
		return driverSlice(c, func(row int) float64 { return math.Float64frombits(c.bits[row]) })
	}
	return driverSlice(c, func(row int) bool { return c.flags[row] != 0 })
}

func driverSlice[T any](c *Column, value func(row int) T) any {
	values := make([]T, c.length())
	for row := range values {
		values[row] = value(row)
	}
	if !c.optional {
		return values
	}
	pointers := make([]*T, len(values))
	for row := range values {
		if c.absent[row] == 0 {
			pointers[row] = &values[row]
		}
	}
	return pointers
}

// refusalOf reads an error of the HTTP interface. A reply without a code came from something before the server, which counts as away.
func refusalOf(status int, code, text string) error {
	text = strings.TrimSpace(text)
	if code == "" {
		if rest, ok := strings.CutPrefix(text, "Code: "); ok {
			code, _, _ = strings.Cut(rest, ".")
		}
	}
	n, err := strconv.Atoi(code)
	if err != nil {
		return fmt.Errorf("status %d: %.200s", status, text)
	}
	return &Refusal{Code: n, Message: text}
}
