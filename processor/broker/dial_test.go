package broker

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// heard is a log that hands on what is warned about.
type heard chan string

func (h heard) Write(line []byte) (int, error) {
	select {
	case h <- string(line):
	default:
	}
	return len(line), nil
}

// A collector with a wrong password says so, and is let in once the server knows it: no restart of a fleet.
func TestDialSaysWhyAndGoesOn(t *testing.T) {
	server, err := Start(t.Context(), Options{StoreDir: t.TempDir(), Listen: "127.0.0.1:0", Token: "right"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	lines := make(heard, 64)
	address := strings.Replace(server.ClientURL(), "nats://", "nats://wrong@", 1)
	conn, err := Dial(address, "test", slog.New(slog.NewTextHandler(lines, nil)), nats.RetryOnFailedConnect(true), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for told, limit := false, time.After(20*time.Second); !told; {
		select {
		case line := <-lines:
			if told = strings.Contains(line, "trying again for ever"); told &&
				(!strings.Contains(strings.ToLower(line), "authorization") || !strings.Contains(line, "USER:PASSWORD@") || strings.Contains(line, "wrong@")) {
				t.Errorf("the log says %s", line)
			}
		case <-limit:
			t.Fatal("nothing says that the token is wrong")
		}
	}
	// The client used to give up after the second refusal.
	for range 50 {
		if conn.IsClosed() {
			t.Fatal("the connection was given up")
		}
		select {
		case <-lines:
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func TestDialRefusesWhatIsNoAddress(t *testing.T) {
	for _, address := range []string{"", "ftp://x", "nats://a:4222,http://b"} {
		_, err := Dial(address, "test", nil)
		var f *Failure
		if !errors.As(err, &f) || f.ExitCode() != 2 || f.Hint() == "" {
			t.Errorf("%q: %v", address, err)
		}
	}
}
