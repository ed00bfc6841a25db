// Package sink owns what is kept: the ClickHouse schema as numbered .sql files, the rows of a block, their insertion from the
// streams, and the commands that read them. It judges nothing, and it never acknowledges what is not stored.
package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

var (
	// ErrAway says that the store does not answer; the same call may succeed later.
	ErrAway = errors.New("store is away")
	// ErrRefused says that the store answered and refused; its reason stands behind it.
	ErrRefused = errors.New("store refused")
)

// The two ways to reach ClickHouse.
const (
	ProtocolHTTP   = "http" // the embedded engine speaks only this one
	ProtocolNative = "native"
)

const callLimit = time.Minute

// Options says where the store is. Only Addr (host:port) has no default.
type Options struct {
	Protocol string // http (default) or native
	Addr     string
	User     string // default "lowtide"
	Password string
	Database string // default "lowtide"; Migrate creates it
	Log      *slog.Logger
}

// ClickHouse is a Store; safe for use by several goroutines.
type ClickHouse struct {
	conn     driver.Conn
	database string
	password string
	log      *slog.Logger
}

// Open prepares connections and calls nothing yet; an unknown protocol or database name is an error.
func Open(_ context.Context, o Options) (*ClickHouse, error) {
	if o.User == "" {
		o.User = "lowtide"
	}
	if o.Database == "" {
		o.Database = "lowtide"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if strings.ContainsFunc(o.Database, func(r rune) bool {
		return r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
	}) {
		return nil, fmt.Errorf("open store: database %q is not made of letters, digits and _", o.Database)
	}
	if _, _, err := net.SplitHostPort(o.Addr); err != nil {
		return nil, fmt.Errorf("open store: address %q is not host:port", o.Addr)
	}
	protocol := clickhouse.HTTP
	switch o.Protocol {
	case "", ProtocolHTTP:
	case ProtocolNative:
		protocol = clickhouse.Native
	default:
		return nil, fmt.Errorf("open store: protocol %q\nhint: it is http or native", o.Protocol)
	}
	// The session is in `default`, because the database may not exist before Migrate; every statement names its database.
	conn, err := clickhouse.Open(&clickhouse.Options{
		Protocol: protocol, Addr: []string{o.Addr}, Auth: clickhouse.Auth{Database: "default", Username: o.User, Password: o.Password},
		DialTimeout: 10 * time.Second, ReadTimeout: callLimit, MaxOpenConns: 8, MaxIdleConns: 4,
	})
	if err != nil {
		return nil, fmt.Errorf("open store: %s", redact(err.Error(), o.Password))
	}
	return &ClickHouse{conn: conn, database: o.Database, password: o.Password, log: o.Log}, nil
}

// Close frees the connections.
func (c *ClickHouse) Close() error { return c.conn.Close() }

// Insert stores the rows of a block, table by table. Calling it again with the same block changes nothing. An error wraps ErrAway or
// ErrRefused; the caller retries.
func (c *ClickHouse) Insert(ctx context.Context, b Block) error {
	for _, rows := range Join(b) {
		if err := c.insertRows(ctx, b.Token+":"+rows.Table, rows); err != nil {
			return c.explain("insert into "+rows.Table, err)
		}
	}
	return nil
}

func (c *ClickHouse) insertRows(ctx context.Context, token string, rows Rows) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	ctx = clickhouse.Context(ctx, clickhouse.WithSettings(clickhouse.Settings{
		"async_insert": 0, "insert_deduplicate": 1, "insert_deduplication_token": token, "deduplicate_blocks_in_dependent_materialized_views": 1,
		"max_partitions_per_insert_block": 0, // a recording may span more days than the default allows
	}))
	batch, err := c.conn.PrepareBatch(ctx, "INSERT INTO "+c.database+"."+rows.Table+" (`"+strings.Join(rows.Columns, "`, `")+"`)")
	if err != nil {
		return err
	}
	defer batch.Close()
	for _, row := range rows.Values { // by row: over HTTP, columns of unequal length are lost without an error
		if err := batch.Append(row...); err != nil {
			return err
		}
	}
	return batch.Send()
}

func (c *ClickHouse) exec(ctx context.Context, statement string) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return c.conn.Exec(ctx, statement)
}

// explain gives an error its kind and takes the password out of it.
func (c *ClickHouse) explain(what string, err error) error {
	kind := ErrAway
	var exception *clickhouse.Exception
	if errors.As(err, &exception) {
		kind = ErrRefused
	}
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", what, context.Canceled)
	}
	return fmt.Errorf("%s: %w: %s", what, kind, redact(err.Error(), c.password))
}

func redact(message, secret string) string {
	if secret == "" {
		return message
	}
	return strings.ReplaceAll(message, secret, "…")
}
