package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"lowtide/event"
	"lowtide/processor"
)

// TailCommand is `tail`: what passes through the broker, as it comes.
type TailCommand struct {
	What string `arg:"" optional:"" enum:"all,events,findings" default:"all" help:"all, events or findings."`
	JSON bool   `name:"json" help:"One JSON object a line."`
	NATS string `name:"nats" env:"LOWTIDE_NATS" placeholder:"URL" help:"The broker; default: that of the running 'up'."`
	Data string `env:"LOWTIDE_DATA" type:"path" default:"~/.local/share/lowtide" placeholder:"DIR" help:"Folder of the running 'up'."`

	Stdout io.Writer `kong:"-"`
}

// Run prints until ctx ends.
func (c *TailCommand) Run(ctx context.Context) error {
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	conn, _, err := processor.Connect(c.NATS, c.Data, "tail")
	if err != nil {
		return err
	}
	defer conn.Close()
	messages := make(chan *nats.Msg, 4096)
	for subject, wanted := range map[string]bool{"lowtide.event.>": c.What != "findings", "lowtide.finding.>": c.What != "events", "lowtide.shadow.>": c.What != "events"} {
		if !wanted {
			continue
		}
		if _, err := conn.ChanSubscribe(subject, messages); err != nil {
			return fmt.Errorf("subscribe to %s: %w", subject, err)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case msg := <-messages:
			if err := c.print(msg); err != nil {
				return fmt.Errorf("print: %w", err)
			}
		}
	}
}

// print writes one message. What is no message of ours is said, not dropped: tail is for finding out who sends what.
func (c *TailCommand) print(msg *nats.Msg) error {
	var lines []string
	if !strings.HasPrefix(msg.Subject, "lowtide.event.") {
		f, err := event.UnmarshalFinding(msg.Data)
		switch {
		case err != nil:
			lines = append(lines, c.refused(msg, err))
		case c.JSON:
			lines = append(lines, strings.TrimSpace(string(msg.Data)))
		default:
			line := fmt.Sprintf("%s  %-9s %-6s %-16s %s  %s", f.Time.UTC().Format(time.RFC3339), f.State, f.Severity, f.Class, f.Subject.Key, f.Summary)
			if f.Shadow {
				line += "  (rule " + f.Rule + ", in shadow: told to nobody)"
			}
			lines = append(lines, line)
		}
	} else {
		batch, _, err := event.DecodeBatch(msg.Header.Get("Content-Type"), msg.Data)
		if err != nil {
			lines = append(lines, c.refused(msg, err))
			batch = new(event.Batch)
		}
		for _, e := range batch.Events {
			text, err := event.MarshalEvent(e)
			switch {
			case err != nil:
				lines = append(lines, c.refused(msg, err))
			case c.JSON:
				lines = append(lines, string(text))
			default:
				about := event.HostKey(e.Host)
				if e.Worker != nil {
					about = event.SlotKey(e.Host, e.Worker)
				}
				lines = append(lines, fmt.Sprintf("%s  %-12s %s", e.At().Format(time.RFC3339), e.Body(), about))
			}
		}
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(c.Stdout, line); err != nil {
			return err
		}
	}
	return nil
}

func (c *TailCommand) refused(msg *nats.Msg, err error) string {
	if c.JSON {
		text, failed := json.Marshal(map[string]string{"subject": msg.Subject, "error": err.Error()})
		if failed != nil {
			return errors.Join(err, failed).Error()
		}
		return string(text)
	}
	return fmt.Sprintf("refused %s: %v", msg.Subject, err)
}
