package fleet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"lowtide/collector"
	"lowtide/collector/sim"
)

// Order is a line that Drive reads: what the fleet may or must do.
type Order struct {
	Credit uint64 `json:"credit,omitzero"` // worker-samples that it may have sent in all; it only grows
	Fail   int    `json:"fail,omitzero"`   // the number, from 1, of the victim in which an allocation fails now
}

// Report is a line that Drive writes, ten times a second and after each Fail.
type Report struct {
	Count
	Ready     bool      `json:"ready"`          // the victims have their past, and credit is spent
	EventTime time.Time `json:"event_time"`     // of the newest tick of the first host
	Waited    float64   `json:"waited_seconds"` // in which there was no credit to spend
	Failed    int       `json:"failed,omitzero"`
	Host      string    `json:"host,omitzero"` // of the victim that failed
	At        time.Time `json:"at,omitzero"`   // when the event was handed to the publisher
}

// Victims are hosts beside the fleet in which an allocation will fail: one leaking worker each, whose two hours before the fleet's start
// are published first, and which then ticks as fast as the clock. Each is of a release of its own, since alike incidents of one are one card. They live on the fleet's days: the store has a part of each table a
// day and block.
const (
	victimPast = 130 * time.Minute
	victimStep = time.Minute
	victimPace = 5 * time.Second
	reportPace = 100 * time.Millisecond
)

// VictimName is the host of the victim of a number, from 1.
func VictimName(n int) string { return fmt.Sprintf("victim-%03d", n) }

// Drive publishes a fleet as its orders say until they end, waits until all of it is acknowledged, and writes a last report. Event time
// runs as fast as credit comes.
func Drive(ctx context.Context, stream collector.Stream, o Options, victims int, orders io.Reader, reports io.Writer) (err error) {
	f, err := New(stream, o)
	if err != nil {
		return err
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		err = errors.Join(err, f.Close(last))
	}()
	for n := range victims {
		if err := f.add(sim.MachineOptions{Cluster: o.Cluster, Name: VictimName(n + 1), Number: MaxHosts + n, Workers: 1, Kinds: []sim.Kind{sim.Leaking}, Release: VictimName(n + 1), Seed: o.Seed, Step: victimStep, Start: o.Start.Add(-victimPast)}, o.Log); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d := &drive{fleet: f, fleetHosts: o.Hosts, changed: make(chan struct{}, 1), out: reports}
	if err := d.past(ctx); err != nil {
		return err
	}
	var running sync.WaitGroup
	start := func(body func(context.Context) error) {
		running.Go(func() {
			if err := body(ctx); err != nil {
				cancel(err)
			}
		})
	}
	start(d.spend)
	start(d.tell)
	start(d.tickVictims)
	cancel(d.obey(ctx, orders))
	running.Wait()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errOrdersEnd) && !errors.Is(cause, context.Canceled) {
		return cause
	}
	last, stop := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer stop()
	if err := f.Close(last); err != nil {
		return err
	}
	return d.write(Report{})
}

var errOrdersEnd = errors.New("orders end")

type drive struct {
	fleet      *Fleet
	fleetHosts int
	changed    chan struct{}

	mu      sync.Mutex
	credit  uint64
	spent   uint64
	ready   bool
	waited  time.Duration
	newest  time.Time
	victims sync.Mutex // their machines are ticked and failed by two goroutines

	writing sync.Mutex
	out     io.Writer
}

// past publishes what the victims went through.
func (d *drive) past(ctx context.Context) error {
	for range int(victimPast/victimStep) + 1 {
		for n := d.fleetHosts; n < len(d.fleet.hosts); n++ {
			if _, err := d.fleet.Tick(ctx, n); err != nil {
				return err
			}
		}
	}
	for n := d.fleetHosts; n < len(d.fleet.hosts); n++ {
		d.fleet.hosts[n].machine.Pace(victimPace)
	}
	d.ready = true
	return nil
}

// obey reads orders until they end, and returns errOrdersEnd then.
func (d *drive) obey(ctx context.Context, orders io.Reader) error {
	lines := bufio.NewScanner(orders)
	for lines.Scan() {
		var order Order
		if err := json.Unmarshal(lines.Bytes(), &order); err != nil {
			return fmt.Errorf("read order: %w", err)
		}
		if order.Fail > 0 {
			if err := d.fail(order.Fail); err != nil {
				return err
			}
		}
		d.mu.Lock()
		d.credit = max(d.credit, order.Credit)
		d.mu.Unlock()
		select {
		case d.changed <- struct{}{}:
		default:
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		return fmt.Errorf("read order: %w", err)
	}
	return errOrdersEnd
}

func (d *drive) fail(number int) error {
	n := d.fleetHosts + number - 1
	if n >= len(d.fleet.hosts) {
		return fmt.Errorf("fail victim %d: there are %d", number, len(d.fleet.hosts)-d.fleetHosts)
	}
	d.victims.Lock()
	at := time.Now()
	err := d.fleet.Fail(n, d.fleet.hosts[n].machine.Now().Add(victimPace/5))
	d.victims.Unlock()
	if err != nil {
		return err
	}
	return d.write(Report{Failed: number, Host: VictimName(number), At: at})
}

// spend makes ticks, host by host, while there is credit.
func (d *drive) spend(ctx context.Context) error {
	for n := 0; ; n = (n + 1) % d.fleetHosts {
		for {
			d.mu.Lock()
			free := d.spent < d.credit
			d.mu.Unlock()
			if free {
				break
			}
			began := time.Now()
			select {
			case <-d.changed:
			case <-ctx.Done():
				return nil
			}
			d.mu.Lock()
			d.waited += time.Since(began)
			d.mu.Unlock()
		}
		samples, err := d.fleet.Tick(ctx, n)
		d.mu.Lock()
		d.spent += uint64(samples)
		if n == 0 {
			d.newest = d.fleet.hosts[0].machine.Now()
		}
		d.mu.Unlock()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

// tickVictims lets the victims live on in real time.
func (d *drive) tickVictims(ctx context.Context) error {
	pace := time.NewTicker(victimPace)
	defer pace.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pace.C:
		}
		for n := d.fleetHosts; n < len(d.fleet.hosts); n++ {
			d.victims.Lock()
			_, err := d.fleet.Tick(ctx, n)
			d.victims.Unlock()
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
		}
	}
}

func (d *drive) tell(ctx context.Context) error {
	pace := time.NewTicker(reportPace)
	defer pace.Stop()
	for {
		if err := d.write(Report{}); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-pace.C:
		}
	}
}

func (d *drive) write(r Report) error {
	d.mu.Lock()
	r.Ready, r.EventTime, r.Waited = d.ready, d.newest, d.waited.Seconds()
	d.mu.Unlock()
	r.Count = d.fleet.Count()
	text, err := json.Marshal(r, jsontext.Multiline(false))
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	if _, err := d.out.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
