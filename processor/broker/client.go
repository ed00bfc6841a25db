package broker

import (
	"errors"
	"log/slog"
	"net/url"
	"time"

	"github.com/nats-io/nats.go"
)

// Dial connects to a server. The name shows in the server's list of connections. It fails at once when nothing answers; a connection
// that was made comes back by itself for ever, with jitter, so that a fleet does not return in step. A log of nil is silent.
func Dial(address, name string, log *slog.Logger, options ...nats.Option) (*nats.Conn, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return connect(address, name, log, options...)
}

func connect(address, name string, log *slog.Logger, options ...nats.Option) (*nats.Conn, error) {
	options = append([]nats.Option{
		nats.Name("lowtide " + name),
		nats.Timeout(5 * time.Second),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(time.Second),
		nats.ReconnectJitter(500*time.Millisecond, time.Second),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil means that we closed it
				log.Warn("broker is away; will come back by itself", "connection", name, "error", err)
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { log.Info("broker is back", "connection", name) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			log.Warn("broker reports an error", "connection", name, "error", err)
		}),
	}, options...)
	conn, err := nats.Connect(address, options...)
	if err != nil {
		return nil, explain("connect to "+Redact(address), bare(err))
	}
	return conn, nil
}

// bare drops what net/url adds around an error: the address with its token.
func bare(err error) error {
	var parse *url.Error
	if errors.As(err, &parse) {
		return parse.Err
	}
	return err
}

// Redact returns an address without user, password or token, for people to read.
func Redact(address string) string {
	if address == "" {
		return "the broker in this process"
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return "an address that is none"
	}
	return u.Scheme + "://" + u.Host
}
