package broker

import (
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// pingEvery is how often a silent connection is tried.
const pingEvery = 5 * time.Second

// Dial connects to a server. The name shows in the server's list of connections. It fails at once when nothing answers; a connection
// that was made comes back by itself for ever, with jitter, so that a fleet does not return in step. A log of nil is silent.
func Dial(address, name string, log *slog.Logger, options ...nats.Option) (*nats.Conn, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	for one := range strings.SplitSeq(address, ",") {
		one = strings.TrimSpace(one)
		if scheme, _, named := strings.Cut(one, "://"); one == "" || named && !slices.Contains([]string{"nats", "tls", "ws", "wss"}, scheme) {
			return nil, &Failure{What: "--nats: " + Redact(one) + " is no address of a NATS server", Remedy: "use nats://HOST:4222, or tls://; user and password stand before an @", Code: 2}
		}
	}
	return connect(address, name, log, options...)
}

// unreached tells why a server cannot be reached: the first time, when the reason changes, and once a minute.
func unreached(log *slog.Logger, name string) func(*nats.Conn, error) {
	var mu sync.Mutex
	var told time.Time
	var reason string
	return func(_ *nats.Conn, err error) {
		mu.Lock()
		defer mu.Unlock()
		text := bare(err).Error()
		if text == reason && time.Since(told) < time.Minute {
			return
		}
		told, reason = time.Now(), text
		hint := "is the server running, and the address right?"
		if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || strings.Contains(text, "uthori") {
			hint = "user and password or token stand before an @ in the address: nats://USER:PASSWORD@HOST:4222"
		}
		log.Warn("broker is not reached; trying again for ever", "connection", name, "error", text, "hint", hint)
	}
}

func connect(address, name string, log *slog.Logger, options ...nats.Option) (*nats.Conn, error) {
	options = append([]nats.Option{
		nats.Name("lowtide " + name),
		nats.Timeout(5 * time.Second),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), // a password that is mended on the server must not need a restart of every collector
		nats.ReconnectErrHandler(unreached(log, name)),
		nats.PingInterval(pingEvery), // a peer that is gone without a word is noticed within three of these; the library's own take six minutes
		nats.MaxPingsOutstanding(2),
		nats.ReconnectWait(time.Second),
		nats.ReconnectJitter(500*time.Millisecond, time.Second),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil means that we closed it
				log.Warn("broker is away; will come back by itself", "connection", name, "error", err)
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { log.Info("broker is back", "connection", name) }),
		nats.ErrorHandler(func(_ *nats.Conn, s *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrSlowConsumer) && s != nil && strings.HasPrefix(s.Subject, nats.InboxPrefix) {
				// A pull has room for the messages it asks for, and none for the word that ends it. Readers of streams look at the numbers of
				// what they are given, and read again what is missing.
				log.Debug("a reader of a stream had no room", "connection", name, "subject", s.Subject)
				return
			}
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
