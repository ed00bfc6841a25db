package processor

import (
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/processor/broker"
)

// Connect is broker.Reach.
func Connect(address, folder, name string) (*nats.Conn, jetstream.JetStream, error) {
	return broker.Reach(address, folder, name)
}
