package broker

import (
	"fmt"
	"os"
	"path/filepath"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Reach opens the broker that was named, else that of the running `up`, for a command of that name. The caller closes the
// connection.
func Reach(address, folder, name string) (*nats.Conn, jetstream.JetStream, error) {
	address, err := Address(address, folder)
	if err != nil {
		return nil, nil, err
	}
	conn, err := Dial(address, name, nil)
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("open jetstream: %w", err)
	}
	return conn, js, nil
}

// Address returns the address that was given, else that of the running `up`, which it leaves in its folder.
func Address(address, folder string) (string, error) {
	if address != "" {
		return address, nil
	}
	path := filepath.Join(folder, "up.json")
	text, err := os.ReadFile(path)
	if err != nil {
		return "", &Failure{What: "find the running broker: " + err.Error(), Remedy: "start `lowtide up`, or name a broker with --nats", Err: err}
	}
	var left struct {
		NATS string `json:"nats"`
	}
	if err := json.Unmarshal(text, &left); err != nil || left.NATS == "" {
		return "", &Failure{What: "read " + path + ": it names no broker", Remedy: "start `lowtide up` again, or name a broker with --nats", Err: err}
	}
	return left.NATS, nil
}
