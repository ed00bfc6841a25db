package notifier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	json "github.com/go-json-experiment/json"

	"lowtide/event"
	"lowtide/processor/broker"
)

// commandTime bounds what a command asks of the broker.
const commandTime = 30 * time.Second

// wire is what every command about incidents and silences has: how it finds the broker, and where it writes.
type wire struct {
	NATS string `name:"nats" env:"LOWTIDE_NATS" placeholder:"URL" help:"The broker; default: that of the running 'up'."`
	Data string `env:"LOWTIDE_DATA" type:"path" default:"~/.local/share/lowtide" placeholder:"DIR" help:"Folder of the running 'up'."`

	Stdout io.Writer        `kong:"-"`
	Stderr io.Writer        `kong:"-"`
	Now    func() time.Time `kong:"-"`
}

func (w *wire) clock() time.Time {
	if w.Now == nil {
		return time.Now()
	}
	return w.Now()
}

// open opens the broker for a command and hands what it knows to do.
func (w *wire) open(ctx context.Context, command string, do func(context.Context, *docket) error) error {
	if w.Stdout == nil {
		w.Stdout = os.Stdout
	}
	if w.Stderr == nil {
		w.Stderr = os.Stderr
	}
	conn, js, err := broker.Reach(w.NATS, w.Data, command)
	if err != nil {
		return err
	}
	defer conn.Close()
	limited, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	d, err := readDocket(limited, js, w.clock(), slog.New(slog.NewTextHandler(w.Stderr, nil)))
	if err == nil {
		err = do(limited, d)
	}
	if err != nil && ctx.Err() == nil && errors.Is(limited.Err(), context.DeadlineExceeded) {
		return &broker.Failure{What: command + ": the broker did not answer within " + commandTime.String(), Remedy: "is it overloaded, or its disk full?", Err: err}
	}
	return err
}

// openOne is open for a command about one incident, by its ID or the beginning of it.
func (w *wire) openOne(ctx context.Context, command, word string, do func(context.Context, *docket, *docketCase) error) error {
	return w.open(ctx, command, func(ctx context.Context, d *docket) error {
		one, err := d.find(command, word)
		if err != nil {
			return err
		}
		return do(ctx, d, one)
	})
}

// say prints a line for people.
func (w *wire) say(format string, values ...any) error {
	if _, err := fmt.Fprintf(w.Stdout, format+"\n", values...); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// sayJSON prints a value as one line for programs; what names it in errors.
func (w *wire) sayJSON(what string, value any) error {
	text, err := json.Marshal(value, json.Deterministic(true), json.WithMarshalers(json.MarshalFunc(event.MarshalFinding)))
	if err != nil {
		return fmt.Errorf("write %s: %w", what, err)
	}
	return w.say("%s", text)
}
