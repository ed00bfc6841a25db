package fleet

import (
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ackTimeout is how long a message waits for its acknowledgement before it is sent again.
const ackTimeout = 5 * time.Second

// sender is a JetStream client for the messages of many hosts: all acknowledgements come over one subscription, so that a message costs
// neither a goroutine nor an inbox. That each host has one message in flight is its publisher's doing.
type sender struct {
	jetstream.JetStream

	mu     sync.Mutex
	flying map[*nats.Msg]func(*jetstream.PubAck, error)
}

func newSender(conn *nats.Conn) (*sender, error) {
	s := &sender{flying: make(map[*nats.Msg]func(*jetstream.PubAck, error))}
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncTimeout(ackTimeout), jetstream.WithPublishAsyncMaxPending(2*window),
		jetstream.WithPublishAsyncAckHandler(func(_ jetstream.JetStream, m *nats.Msg, ack *jetstream.PubAck) { s.land(m, ack, nil) }),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, m *nats.Msg, err error) { s.land(m, nil, err) }))
	if err != nil {
		return nil, fmt.Errorf("open jetstream: %w", err)
	}
	s.JetStream = js
	return s, nil
}

// Send implements collector.Sender.
func (s *sender) Send(m *nats.Msg, done func(*jetstream.PubAck, error)) {
	s.mu.Lock()
	s.flying[m] = done
	s.mu.Unlock()
	if _, err := s.PublishMsgAsync(m); err != nil {
		s.land(m, nil, err)
	}
}

// land says what became of a message, the first time that it is known.
func (s *sender) land(m *nats.Msg, ack *jetstream.PubAck, err error) {
	s.mu.Lock()
	done := s.flying[m]
	delete(s.flying, m)
	s.mu.Unlock()
	if done != nil {
		done(ack, err)
	}
}
