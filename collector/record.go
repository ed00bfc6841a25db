package collector

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"lowtide/event"
	"lowtide/processor/broker"
)

// RecordCommand is `record`: what the collector of this host sees, as a recording instead of to a broker.
type RecordCommand struct {
	File    string        `arg:"" type:"path" help:"The recording, NDJSON; gzip when the name ends in .gz. It must not exist yet."`
	For     time.Duration `placeholder:"10m" help:"How long; until interrupted when left out."`
	Cluster string        `default:"default" env:"LOWTIDE_CLUSTER" help:"Name of the cluster in the recording."`
	Host    string        `env:"LOWTIDE_HOST" help:"Name of this host; its hostname when left out."`
	Sensors `embed:""`

	Logger *slog.Logger `kong:"-"`
}

// Run records until the time or the context is over; what was seen until then is a whole recording.
func (c *RecordCommand) Run(ctx context.Context) (err error) {
	log := c.Logger
	if log == nil {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	host, err := Identify(c.Cluster, c.Host)
	if err != nil {
		return err
	}
	opened, err := c.Open(log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	file, err := os.OpenFile(c.File, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, os.ErrExist) {
		return &broker.Failure{What: c.File + " exists already", Remedy: "choose another name; nothing is overwritten", Err: err}
	}
	if err != nil {
		return broker.Explain("create "+c.File, err)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := newRecorder(file, strings.HasSuffix(c.File, ".gz"), stop)
	defer func() {
		err = errors.Join(err, r.close(), file.Close())
		log.Info("recorded", "file", c.File, "events", r.written, "seconds", int(r.span().Seconds()))
	}()
	if c.For > 0 {
		limited, cancel := context.WithTimeout(ctx, c.For)
		defer cancel()
		ctx = limited
	}
	return opened.run(ctx, host, r, c.Interval, log)
}

// recorder is an Outlet that writes a recording.
type recorder struct {
	mu          sync.Mutex
	zip         *gzip.Writer
	out         *event.Writer
	written     int
	first, last time.Time
	flushed     time.Time
	err         error
	fail        func(error)
}

// newRecorder calls fail with the first error, after which nothing is written any more.
func newRecorder(file io.Writer, zipped bool, fail func(error)) *recorder {
	r := &recorder{fail: fail}
	if zipped {
		r.zip = gzip.NewWriter(file)
		file = r.zip
	}
	r.out = event.NewWriter(file)
	return r
}

// Publish implements Outlet. The first error is the last: a recording with a hole would be no recording.
func (r *recorder) Publish(_ string, events []*event.Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() {
		if r.err != nil {
			r.fail(r.err)
		}
	}()
	if r.err != nil {
		return r.err
	}
	for _, e := range events {
		if r.err = r.out.Write(e); r.err != nil {
			return r.err
		}
		if at := e.At(); r.written == 0 {
			r.first, r.last, r.flushed = at, at, at
		} else if at.After(r.last) {
			r.last = at
		}
		r.written++
	}
	if r.last.Sub(r.flushed) >= 10*time.Second { // what a crash of the host may take
		r.flushed = r.last
		r.err = r.flush()
	}
	return r.err
}

func (r *recorder) flush() error {
	if err := r.out.Flush(); err != nil {
		return err
	}
	if r.zip == nil {
		return nil
	}
	if err := r.zip.Flush(); err != nil {
		return fmt.Errorf("write recording: %w", err)
	}
	return nil
}

func (r *recorder) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err // and whatever else fails now fails of that
	}
	faults := []error{r.out.Flush()}
	if r.zip != nil {
		faults = append(faults, r.zip.Close())
	}
	return errors.Join(faults...)
}

func (r *recorder) span() time.Duration { return r.last.Sub(r.first) }
