package rulebook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/rules"
)

// Options of Watch. JS is required.
type Options struct {
	JS      jetstream.JetStream
	Paths   []string // rule files and folders of this processor, over the pushed ones
	Member  string   // name of this processor, under which it says what became of a set; empty: it says nothing
	Version string
	Log     *slog.Logger

	pace pace // zero: usual
}

// pace is how often what is looked at.
type pace struct {
	files  time.Duration // between two looks at the files
	bucket time.Duration // between two readings of the bucket, beside what the watcher of it says
	swap   time.Duration // between two looks at how far the judges are
}

func usual() pace {
	return pace{files: 2 * time.Second, bucket: 15 * time.Second, swap: 100 * time.Millisecond}
}

// Judges take over a set of rules while they judge; *processor.Judges does.
type Judges interface {
	Adopt(*rules.Pack)
	// Adopted returns how many have not taken the set over yet, and why one never will.
	Adopted(*rules.Pack) (behind int, failed error)
}

// Watcher is the rules of one processor, in three layers: the built-in ones, those of the bucket over them, and those of the processor's own
// files over both. Each of the last two is replaced only by one that compiles with the rest: whatever is wrong, the rules of before go on.
type Watcher struct {
	options Options
	book    *Book
	log     *slog.Logger

	pack   *rules.Pack
	pushed layer // of the bucket
	local  layer

	seen      uint64         // revision of the newest value of the bucket
	unread    bool           // the bucket could not be read when it was looked at last
	set       Set            // in force
	newest    uint64         // generation of the newest value, in force or not
	candidate *Edition       // the newest of the bucket, while it is not in force
	files     []rules.Source // as they were read last
	tried     []rules.Source // as they were when they were compiled last
	swapping  bool           // judges are taking the pack over
	reported  bool           // the outcome of all this is written
	told      string         // what was last said to be wrong
	judges    error          // why they did not take the pack over

	gauge gauge
}

// layer is one that can be replaced.
type layer struct {
	good []rules.Source // that is in force
	err  error          // why the newest one is not
}

// Watch loads the rules as they are now. The error is rules.Problems, or that of a file, where those of Paths are wrong. A set in the bucket
// that does not compile here, as one that was pushed by a newer version, is no error: the newest one before it that does is taken.
func Watch(ctx context.Context, o Options) (*Watcher, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.pace == (pace{}) {
		o.pace = usual()
	}
	book, err := Open(ctx, o.JS)
	if err != nil {
		return nil, err
	}
	w := &Watcher{options: o, book: book, log: o.Log}
	if w.files, err = rules.ReadSources(o.Paths...); err != nil {
		return nil, err
	}
	history, err := book.History(ctx)
	if err != nil {
		return nil, err
	}
	w.local.good = w.files
	if err := w.begin(history); err != nil {
		return nil, err
	}
	w.tell()
	return w, nil
}

// begin takes the newest set that compiles under the local files.
func (w *Watcher) begin(history []Edition) error {
	if len(history) > 0 {
		w.seen, w.newest = history[0].Revision, history[0].Generation
	}
	c, err := choose(history, w.files)
	if err != nil {
		return err
	}
	w.pushed.err, w.candidate = c.why, c.failed
	w.accept(c.pack, c.set)
	return nil
}

// accept makes a pack the one in force.
func (w *Watcher) accept(pack *rules.Pack, set Set) {
	w.set, w.pushed.good = set, set.Sources()
	w.gauge.loaded(time.Now())
	if w.pack == nil || !alike(w.pack, pack) {
		w.pack, w.swapping = pack, true
	}
}

// alike says that two packs judge in the same way.
func alike(a, b *rules.Pack) bool {
	return slices.EqualFunc(a.Rules, b.Rules, func(a, b *rules.Rule) bool {
		return a.ID == b.ID && a.Fingerprint() == b.Fingerprint() && a.Shadow == b.Shadow && a.Enabled == b.Enabled
	})
}

// Pack returns the rules that Watch found, to begin with; call it before Run.
func (w *Watcher) Pack() *rules.Pack { return w.pack }

// Run follows the bucket and the files until ctx ends: what compiles is given to the judges, and what became of it is written where who pushed
// it looks, and into metrics.
func (w *Watcher) Run(ctx context.Context, judges Judges) error {
	w.sweep(ctx)
	files, bucket, swap := time.NewTicker(w.options.pace.files), time.NewTicker(w.options.pace.bucket), time.NewTicker(w.options.pace.swap)
	defer files.Stop()
	defer bucket.Stop()
	defer swap.Stop()
	watcher, updates := w.follow(ctx)
	defer func() {
		if watcher != nil {
			_ = watcher.Stop() // the bucket is read by nobody else
		}
		w.goodbye(context.WithoutCancel(ctx))
	}()
	judges.Adopt(w.pack)
	for {
		select {
		case <-ctx.Done():
			return nil
		case entry, open := <-updates:
			switch {
			case !open:
				watcher, updates = nil, nil
			case entry != nil && entry.Revision() > w.seen:
				w.take(edition(entry))
			}
		case <-bucket.C:
			if watcher == nil {
				watcher, updates = w.follow(ctx)
			}
			w.look(ctx)
		case <-files.C:
			w.read()
		case <-swap.C:
		}
		w.settle(ctx, judges)
	}
}

// follow hears of new sets at once. Where that cannot be, they are found when the bucket is read.
func (w *Watcher) follow(ctx context.Context) (jetstream.KeyWatcher, <-chan jetstream.KeyValueEntry) {
	watcher, err := w.book.kv.Watch(ctx, keyCurrent)
	if err != nil {
		w.log.Debug("the bucket of rules is read now and then only", "error", err)
		return nil, nil
	}
	return watcher, watcher.Updates()
}

// look reads the bucket, should the watcher have fallen silent.
func (w *Watcher) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, bookWait)
	defer cancel()
	entry, err := w.book.kv.Get(ctx, keyCurrent)
	absent := errors.Is(err, jetstream.ErrKeyNotFound) || errors.Is(err, jetstream.ErrKeyDeleted)
	told := w.unread
	w.unread = err != nil && !absent
	switch {
	case absent:
	case w.unread && !told: // once an outage
		w.log.Warn("the bucket of rules cannot be read; the rules stay as they are", "error", err)
	case w.unread:
	case entry.Revision() > w.seen:
		w.take(edition(entry))
	}
}

// take tries a set of the bucket under the local files. One that somebody deleted leaves the built-in rules and the local ones.
func (w *Watcher) take(e Edition) {
	w.seen, w.reported, w.candidate = e.Revision, false, nil
	switch {
	case errors.Is(e.Err, errDeleted):
		w.newest = 0
	case e.Err != nil:
		w.newest++ // what it says of itself cannot be read
		w.pushed.err = e.Err
		return
	default:
		w.newest = e.Generation
	}
	pack, err := rules.LoadLayers(e.Sources(), w.local.good)
	if w.pushed.err = err; err != nil {
		w.candidate = &e
		return
	}
	w.tried = nil // the files may fit to these
	w.accept(pack, e.Set)
}

// read looks at the files. A change counts once it was read twice alike, since editors write a file in several steps, and some delete it first.
func (w *Watcher) read() {
	if len(w.options.Paths) == 0 {
		return
	}
	before := w.local.err
	files, err := rules.ReadSources(w.options.Paths...)
	steady := err == nil && sameSources(files, w.files)
	if err == nil {
		w.files = files
	}
	switch {
	case err != nil:
		w.local.err = err
	case !steady:
		return
	case sameSources(files, w.local.good):
		w.local.err, w.tried = nil, nil
	case len(files) == 0:
		w.local.err = &wrong{what: "no rule file is left in " + strings.Join(w.options.Paths, ", "), remedy: "start again without --rules if there is to be none"}
	case w.tried != nil && sameSources(files, w.tried):
		return
	default:
		w.tried = files
		pack, err := rules.LoadLayers(w.pushed.good, files)
		if w.local.err = err; err == nil {
			w.local.good = files
			w.accept(pack, w.set)
			if w.candidate != nil {
				w.take(*w.candidate) // it may fit to these
			}
		}
	}
	if !sameError(before, w.local.err) {
		w.reported = false
	}
}

func sameError(a, b error) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Error() == b.Error()
}

func sameSources(a, b []rules.Source) bool {
	return slices.EqualFunc(a, b, func(a, b rules.Source) bool {
		return a.Name == b.Name && string(a.Content) == string(b.Content) && len(a.Advice) == len(b.Advice) && sameAdvice(a.Advice, b.Advice)
	})
}

func sameAdvice(a, b map[string]string) bool {
	for name, text := range a {
		if other, held := b[name]; !held || other != text {
			return false
		}
	}
	return true
}

// settle sees the judges through to the pack in force, and says how it ended.
func (w *Watcher) settle(ctx context.Context, judges Judges) {
	if w.swapping {
		judges.Adopt(w.pack)
		w.swapping, w.reported, w.judges = false, false, nil
	}
	if w.reported && w.judges == nil {
		return
	}
	w.tell()
	behind, failed := judges.Adopted(w.pack)
	if behind > 0 {
		return
	}
	if w.reported && sameError(w.judges, failed) {
		return
	}
	w.judges = failed // a partition that began anew since then has no quarrel with them
	w.tell()
	if w.options.Member == "" {
		w.reported = true
		return
	}
	if err := w.book.report(ctx, w.outcome()); err != nil {
		w.log.Debug("what became of the rules is not written; trying again", "error", err)
		return
	}
	w.reported = true
}

func (w *Watcher) outcome() Outcome {
	o := Outcome{Member: w.options.Member, Generation: w.newest, Running: w.set.Generation, Rules: len(w.pack.Rules), Version: w.options.Version, Time: time.Now().UTC()}
	o.OK = w.pushed.err == nil && w.judges == nil
	for _, err := range []error{w.pushed.err, w.judges, w.local.err} {
		o.Problems = append(o.Problems, lines(err)...)
	}
	for _, s := range w.local.good {
		for _, r := range w.pack.Rules {
			if r.File == s.Name {
				o.Local = append(o.Local, r.ID)
			}
		}
	}
	return o
}

// lines tells an error problem by problem.
func lines(err error) (all []string) {
	var problems rules.Problems
	switch {
	case err == nil:
	case errors.As(err, &problems):
		for _, p := range problems {
			all = append(all, p.Error())
		}
	default:
		all = append(all, err.Error())
	}
	return all
}

// tell logs what is new: that other rules are in force, or why they are not.
func (w *Watcher) tell() {
	w.gauge.set(state{generation: w.set.Generation, newest: w.newest, pack: w.pack, problems: len(lines(w.pushed.err)) + len(lines(w.judges)) + len(lines(w.local.err))})
	text := fmt.Sprint(w.set.Generation, len(w.pack.Rules), lines(w.pushed.err), lines(w.local.err), lines(w.judges), packID(w.pack))
	if text == w.told {
		return
	}
	first := w.told == ""
	w.told = text
	said := []any{"generation", w.set.Generation, "rules", len(w.pack.Rules)}
	if w.set.Generation > 0 {
		said = append(said, "author", plain(w.set.Author), "message", plain(w.set.Message))
	}
	if !first || w.set.Generation > 0 || len(w.local.good) > 0 {
		w.log.Info("rules in force", said...)
	}
	if w.pushed.err != nil {
		w.log.Error("the rules that were pushed last are not loaded; those of before go on", "pushed", w.newest, "running", w.set.Generation, "problems", strings.Join(lines(w.pushed.err), "\n"))
	}
	if w.local.err != nil {
		w.log.Error("the files of --rules are not loaded; the rules of before go on", "problems", strings.Join(lines(w.local.err), "\n"))
	}
}

// packID tells one pack from another in force later.
func packID(pack *rules.Pack) (id uint64) {
	for _, r := range pack.Rules {
		id = id*31 + r.Fingerprint()
	}
	return id
}

// sweep takes away what processors said that are long gone.
func (w *Watcher) sweep(ctx context.Context) {
	all, err := w.book.Outcomes(ctx)
	if err != nil {
		w.log.Debug("what processors said of the rules cannot be read", "error", err)
		return
	}
	for name, o := range all {
		if name != w.options.Member && time.Since(o.Time) > outcomeKept {
			if err := w.book.forget(ctx, name); err != nil {
				w.log.Debug("an old outcome stays", "member", name, "error", err)
			}
		}
	}
}

// outcomeKept is for how long what a processor said is kept after it ended without a goodbye. One that lives and is thought to be dead, by
// clocks that differ, writes again with the next set.
const outcomeKept = 30 * 24 * time.Hour

// goodbye takes this processor's outcome away: nobody is to wait for it.
func (w *Watcher) goodbye(ctx context.Context) {
	if w.options.Member == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := w.book.forget(ctx, w.options.Member); err != nil {
		w.log.Debug("the outcome stays in the bucket", "error", err)
	}
}
