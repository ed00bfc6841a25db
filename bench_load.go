package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	json "github.com/go-json-experiment/json"

	"lowtide/collector/fleet"
)

// load is the simulated fleet: a process of its own, so that its processor time and memory are not the pipeline's.
type load struct {
	orders io.WriteCloser
	pid    int
	ended  chan error // one entry

	mu      sync.Mutex
	newest  fleet.Report
	failed  []fleet.Report
	changed chan struct{}
}

// generator plays a fleet by its orders until they end.
type generator func(ctx context.Context, orders io.Reader, reports io.Writer) error

// startLoad starts this executable again as the fleet, or the generator in this process when there is one, as tests have.
func (c *BenchCommand) startLoad(ctx context.Context, address string, victims int) (*load, error) {
	l := &load{ended: make(chan error, 1), changed: make(chan struct{}, 1)}
	if c.inProcess != nil {
		generate := c.inProcess(address, victims)
		in, orders := io.Pipe()
		reports, out := io.Pipe()
		l.orders, l.pid = orders, os.Getpid()
		go func() {
			err := generate(ctx, in, out)
			l.ended <- errors.Join(err, in.Close(), out.Close())
		}()
		go l.read(reports, func() {})
		return l, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own executable: %w", err)
	}
	child := exec.CommandContext(ctx, self, "simulate", "--publish", "--orders", "--nats", address, "--hosts", strconv.Itoa(c.Hosts), "--workers", strconv.Itoa(c.Workers),
		"--past", benchPast.String(), "--seed", strconv.FormatUint(c.Seed, 10), "--victims", strconv.Itoa(victims))
	child.Env = append(os.Environ(), "GOGC=400") // what many machines do in one process shall not also collect garbage as if each byte counted
	child.Cancel = func() error { return child.Process.Signal(os.Interrupt) }
	child.WaitDelay = 10 * time.Second
	child.Stderr = os.Stderr
	if l.orders, err = child.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start the fleet: %w", err)
	}
	reports, err := child.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start the fleet: %w", err)
	}
	if err := child.Start(); err != nil {
		return nil, fmt.Errorf("start the fleet: %w", err)
	}
	l.pid = child.Process.Pid
	go l.read(reports, func() { l.ended <- child.Wait() }) // waiting before the last line is read would lose it
	return l, nil
}

func (l *load) read(reports io.Reader, finally func()) {
	defer finally()
	lines := bufio.NewScanner(reports)
	for lines.Scan() {
		var r fleet.Report
		if json.Unmarshal(lines.Bytes(), &r) != nil {
			continue // what is no report is no news either
		}
		l.mu.Lock()
		l.newest = r
		if r.Failed > 0 {
			l.failed = append(l.failed, r)
		}
		l.mu.Unlock()
		select {
		case l.changed <- struct{}{}:
		default:
		}
	}
}

// report returns the newest.
func (l *load) report() fleet.Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.newest
}

// failures are those that were planted so far.
func (l *load) failures() []fleet.Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]fleet.Report(nil), l.failed...)
}

func (l *load) order(o fleet.Order) error {
	text, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("order: %w", err)
	}
	if _, err := l.orders.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("order the fleet: %w", err)
	}
	return nil
}

// ready waits until the victims have their past.
func (l *load) ready(ctx context.Context) error {
	for !l.report().Ready {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-l.ended:
			return fmt.Errorf("the fleet ended at its start: %w", err)
		case <-l.changed:
		}
	}
	return nil
}

// stop ends the orders and waits until everything that was published is acknowledged.
func (l *load) stop(ctx context.Context) error {
	if err := l.orders.Close(); err != nil {
		return fmt.Errorf("stop the fleet: %w", err)
	}
	select {
	case err := <-l.ended:
		if err != nil {
			return fmt.Errorf("the fleet: %w", err)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
