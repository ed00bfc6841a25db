package nvml

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// ChildCommand is the hidden command nvml-child: one life of the process that calls the library, started by the source only.
type ChildCommand struct {
	Library string `help:"Path or soname of the NVIDIA library; libnvidia-ml.so.1 when empty."`
}

// Run answers requests on stdin with frames on stdout until stdin ends, or until the library cannot be used.
func (c *ChildCommand) Run(context.Context) error {
	if os.Getenv(childMark) == "" {
		return errors.New("nvml-child is started by lowtide itself\nhint: use `lowtide collect`")
	}
	// The end of stdin, or of the parent, is the only call to end: a signal to the whole service must not blind its last tick.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	return serve(os.Stdin, &frameWriter{out: os.Stdout}, openCards(c.Library))
}

// cards is what serve asks. A failure that ends the child is returned as fatal.
type cards interface {
	// open loads the library and finds the cards. Xids go to emit from then on, from a goroutine of its own.
	open(emit func(*event.Event)) (fatal []failure)
	// sample writes asking and device frames, and returns what is wrong with no single card.
	sample(r request, out *frameWriter) (failures, fatal []failure, err error)
	// close ends the goroutine.
	close()
}

func serve(in io.Reader, out *frameWriter, c cards) error {
	fatal := c.open(func(e *event.Event) {
		// A write that fails means that the parent is gone, which the end of stdin says as well.
		_ = out.write(xid, &event.Batch{Events: []*event.Event{e}})
	})
	defer c.close()
	if fatal != nil {
		return out.write(failed, reasons(fatal))
	}
	if err := out.write(hello, &event.Batch{Schema: protocol}); err != nil {
		return err
	}
	lines := bufio.NewReaderSize(in, maxRequest)
	for {
		line, err := lines.ReadSlice('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		r, err := parseRequest(string(line))
		if err != nil {
			return err
		}
		failures, fatal, err := c.sample(r, out)
		if err != nil {
			return err
		}
		if fatal != nil {
			return out.write(failed, reasons(fatal))
		}
		if err := out.write(end, reasons(failures)); err != nil {
			return err
		}
	}
}

func reasons(failures []failure) *event.Batch {
	b, now := new(event.Batch), timestamppb.Now()
	for _, f := range failures {
		b.Events = append(b.Events, &event.Event{Time: now, Source: &event.SourceStatus{Status: f.kind, Error: f.text}})
	}
	return b
}
