// Package brokertest owns the broker of tests: a real server with a store of its own, for one test.
package brokertest

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/processor/broker"
)

// Start returns a server that listens on a free port, a connection to it, and JetStream with the product's streams. The end of
// the test closes both.
func Start(t testing.TB) (*broker.Server, *nats.Conn, jetstream.JetStream) {
	t.Helper()
	server, err := broker.Start(t.Context(), broker.Options{StoreDir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	conn, err := server.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	if err := broker.Ensure(t.Context(), js, server.Limits()); err != nil {
		t.Fatal(err)
	}
	return server, conn, js
}
