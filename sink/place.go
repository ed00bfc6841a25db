package sink

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	splitAfter = 30 * time.Second // what may be too much at once is tried whole first
	askFor     = 5 * time.Minute  // a code that nobody has judged yet may be the server's, and pass
	keepFor    = time.Hour        // the same, where it would leave nothing but the broker to keep a row in
	forEver    = time.Duration(math.MaxInt64)

	// maxInsert is how large one insert is, in bytes. The embedded engine refuses a request of more than 64 MiB.
	maxInsert = 60 << 20
	// keptAtOnce is how many refused rows are kept by one insert: as events they are several times as large.
	keptAtOnce = 4096
)

// patience is for how long an error may last until it counts as one about the rows.
type patience struct {
	large   time.Duration // they may be too much at once
	unknown time.Duration // nobody has judged the code
}

// The stream of rows that the store takes neither as they are nor as an event `refused`. It is made when it is needed.
const (
	StreamRefused  = "LOWTIDE_REFUSED"
	refusedSubject = "lowtide.refused."
	refusedBytes   = 32 << 20
)

// refused says that rows will not be taken as they are; its cause is the store's.
type refused struct{ cause error }

func (r *refused) Error() string { return r.cause.Error() }

// insert stores a block, table by table, however long that takes. An error is that of ctx, of the broker, or ErrFenced.
func (r *run) insert(ctx context.Context, block Block) error {
	started := r.owner.now()
	rows := 0
	for _, one := range Join(block) {
		rows += one.Count
		if err := r.place(ctx, one, block.Token+":"+one.Table, 0, one.Count); err != nil {
			return err
		}
	}
	r.gauge.inserted(rows, r.owner.now().Sub(started))
	return nil
}

// place stores the rows of a table from one to another. Where the store refuses them it halves them, down to the rows that are refused
// themselves, which it keeps as events. Each halving is written down first: after a crash the pieces must be those that have tokens. What is
// larger than an insert may be is halved too: the rows alone say so, and nothing need be written down.
func (r *run) place(ctx context.Context, all Rows, base string, from, to int) error {
	token := base
	if from != 0 || to != all.Count {
		token = fmt.Sprintf("%s:%d-%d", base, from, to)
	}
	here := piece{Table: all.Table, From: from, To: to}
	pieces := r.ledger.plan.Block.Pieces
	if at := slices.IndexFunc(pieces, func(p piece) bool { return p.Table == here.Table && p.From == from && p.To == to }); at >= 0 {
		here = pieces[at]
	} else if part := all.slice(from, to); to-from == 1 || part.nativeSize() <= maxInsert {
		until := patience{splitAfter, askFor}
		if r.tookApart(all.Table) > 0 { // it has lasted
			until = patience{}
		}
		err := r.try(ctx, token, part, until)
		var no *refused
		if !errors.As(err, &no) {
			return err
		}
		reason := strings.ToValidUTF8(no.Error(), "?")
		reason = strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
		if r.tookApart(all.Table) >= maxSplits {
			return r.keep(ctx, all, base, from, to, reason)
		}
		if to-from == 1 {
			here.Reason = reason
		}
		next := r.ledger.plan
		block := *next.Block
		block.Pieces = append(slices.Clip(block.Pieces), here)
		next.Block = &block
		if err := r.ledger.write(ctx, next); err != nil {
			return err
		}
	}
	if to-from == 1 {
		return r.keep(ctx, all, base, from, to, here.Reason)
	}
	middle := (from + to) / 2
	if err := r.place(ctx, all, base, from, middle); err != nil {
		return err
	}
	return r.place(ctx, all, base, middle, to)
}

func (r *run) tookApart(table string) int {
	n := 0
	for _, one := range r.ledger.plan.Block.Pieces {
		if one.Table == table {
			n++
		}
	}
	return n
}

// try inserts rows until they are stored. *refused means that they will not be, by the store's reason or because patience is over.
func (r *run) try(ctx context.Context, token string, rows Rows, until patience) error {
	var since time.Time
	for wait := retryFirst; ; wait = min(2*wait, retryMost) {
		if err := r.ledger.confirm(ctx); err != nil {
			return err
		}
		err := r.store.InsertRows(ctx, token, rows)
		if err == nil {
			if away := r.gauge.back(r.owner.now()); away > 0 {
				r.log.Info("store is back", "block", token, "was_away", away.Round(time.Millisecond).String())
			}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		now := r.owner.now()
		if since.IsZero() {
			since = now
		}
		lasted := now.Sub(since)
		switch recourseTo(err) {
		case recourseDrop:
			return &refused{err}
		case recourseSplit:
			if rows.Count > 1 && lasted >= until.large {
				return &refused{err}
			}
		case recourseAsk:
			if lasted >= until.unknown {
				return &refused{err}
			}
		}
		if r.gauge.away(err, now) {
			r.log.Warn("store does not take a block; it is tried again, and events wait in the stream", "block", token, "rows", rows.Count, "stream_holds", r.gauge.holding(), "error", err)
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

// keep stores refused rows as events with the reason and the whole row, so that they neither hold up what comes after nor vanish. What is
// refused even as that goes into the stream LOWTIDE_REFUSED.
func (r *run) keep(ctx context.Context, all Rows, base string, from, to int, reason string) error {
	halves := func() error {
		middle := (from + to) / 2
		if err := r.keep(ctx, all, base, from, middle, reason); err != nil {
			return err
		}
		return r.keep(ctx, all, base, middle, to, reason)
	}
	if to-from > keptAtOnce {
		return halves()
	}
	part := all.slice(from, to)
	events := make([][]any, part.Count)
	for row := range events {
		events[row] = r.refusedEvent(part, row, reason)
	}
	kept := transposed(TableEvents, eventFields, events)
	if to-from > 1 && kept.nativeSize() > maxInsert {
		return halves()
	}
	if r.gauge.refused(part.Count, r.owner.now()) {
		r.log.Error("store refuses rows; they are kept as events named refused, with all they hold", "table", all.Table, "rows", part.Count, "first", events[0][len(events[0])-1], "error", reason)
	}
	err := r.try(ctx, fmt.Sprintf("%s:refused:%d-%d", base, from, to), kept, patience{forEver, keepFor})
	var no *refused
	if !errors.As(err, &no) {
		return err
	}
	r.log.Error("store refuses even what says that it refused; the rows go to the stream "+StreamRefused, "table", all.Table, "rows", part.Count, "error", no.cause)
	return r.bury(ctx, base, from, events)
}

// refusedEvent is the row of `events` that says why a row is not where it belongs.
func (r *run) refusedEvent(rows Rows, row int, reason string) []any {
	out := blankEvent()
	body := make(map[string]any, len(rows.Columns))
	for i := range rows.Columns {
		c := &rows.Columns[i]
		v := c.value(row)
		if v == nil || v == "" {
			continue
		}
		body[c.name] = v
		at := slices.IndexFunc(eventFields, func(f field) bool { return f.name == c.name && f.kind == c.kind })
		if at >= 0 && at < len(hostFields)+len(workerFields) {
			out[at] = v
		}
	}
	set := func(name string, v any) {
		out[slices.IndexFunc(eventFields, func(f field) bool { return f.name == name })] = v
	}
	text, err := json.Marshal(body, json.Deterministic(true))
	if err != nil { // a number that JSON does not have, or text that is none
		text = fmt.Appendf(nil, "%q", fmt.Sprint(body))
	}
	set("sequence", r.ledger.plan.Block.Last)
	set("event", "refused")
	set("name", rows.Table)
	set("text", reason)
	set("body", string(text))
	return out
}

// bury publishes refused rows to a stream of their own.
func (r *run) bury(ctx context.Context, base string, from int, events [][]any) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := r.owner.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: StreamRefused, Description: "Rows that the store refuses", Subjects: []string{refusedSubject + ">"}, Storage: jetstream.FileStorage,
		Compression: jetstream.S2Compression, MaxBytes: refusedBytes, Discard: jetstream.DiscardOld, Duplicates: time.Hour,
	}); err != nil {
		return fmt.Errorf("create stream %s: %w", StreamRefused, err)
	}
	for i, row := range events {
		body := make(map[string]any, len(row))
		for at, f := range eventFields {
			if row[at] != nil && row[at] != "" {
				body[f.name] = row[at]
			}
		}
		text, err := json.Marshal(body, json.Deterministic(true))
		if err != nil {
			text = fmt.Appendf(nil, "%q", fmt.Sprint(body))
		}
		if _, err := r.owner.js.Publish(ctx, refusedSubject+seatName(r.number), text, jetstream.WithMsgID(fmt.Sprintf("%s:%d", base, from+i))); err != nil {
			return fmt.Errorf("publish refused row: %w", err)
		}
	}
	return nil
}
