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
	web      *web // how rows go over HTTP; nil with the native protocol
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
	c := &ClickHouse{conn: conn, database: o.Database, password: o.Password, log: o.Log}
	if protocol == clickhouse.HTTP {
		c.web = newWeb(o)
	}
	return c, nil
}

// Close frees the connections.
func (c *ClickHouse) Close() error {
	if c.web != nil {
		c.web.client.CloseIdleConnections()
	}
	return c.conn.Close()
}

func (c *ClickHouse) exec(ctx context.Context, statement string) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return c.conn.Exec(ctx, statement)
}

// explain gives an error its kind and takes the password out of it.
func (c *ClickHouse) explain(what string, err error) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", what, context.Canceled)
	}
	if errors.Is(err, ErrShort) {
		return fmt.Errorf("%s: %w", what, err)
	}
	var refusal *Refusal
	if exception := (*clickhouse.Exception)(nil); errors.As(err, &exception) {
		refusal = &Refusal{Code: int(exception.Code), Message: exception.Error()}
	} else {
		errors.As(err, &refusal)
	}
	if refusal != nil {
		refusal.Message = redact(refusal.Message, c.password)
		return fmt.Errorf("%s: %w: %w", what, ErrRefused, refusal)
	}
	return fmt.Errorf("%s: %w: %s", what, ErrAway, redact(err.Error(), c.password))
}

func redact(message, secret string) string {
	if secret == "" {
		return message
	}
	return strings.ReplaceAll(message, secret, "…")
}
