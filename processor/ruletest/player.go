package ruletest

import (
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/rules"
)

// player is one worker with what its sensors read and what happens to it.
type player struct {
	worker  *event.Worker
	host    *event.Host
	quiet   quiet
	tracks  []*track
	moments []moment
}

// quiet is when nothing runs: the end of every stretch of time.
type quiet struct {
	every, lasts, from time.Duration // every is zero where there is none
}

// holds says whether a moment so long after the start is quiet.
func (q quiet) holds(t time.Duration) bool {
	return q.every > 0 && t >= q.from && (t-q.from)%q.every >= q.every-q.lasts
}

// track is the series of one field.
type track struct {
	body    string
	field   protoreflect.FieldDescriptor
	series  *series
	text    string // of a field that is one
	seed    uint64
	resting bool // its ticks are those in which something runs
	at      rules.Word
}

// moment is an event, as often as it comes.
type moment struct {
	at, every time.Duration
	count     int
	body      *event.Event // without time, host and worker
}

// readPlayer reads one worker.
func (s *scenario) readPlayer(given map[string]rules.Entry, number int) *player {
	p := &player{}
	s.identify(p, given, number)
	if one, ok := given["quiet"]; ok {
		p.quiet = s.readQuiet(one)
	}
	if one, ok := given["series"]; ok {
		for _, e := range one.Entries() {
			if t := s.readTrack(e, p); t != nil {
				p.tracks = append(p.tracks, t)
			} else {
				s.unread = true
			}
		}
	}
	p.rest(s)
	if one, ok := given["events"]; ok {
		items := one.Items()
		if len(items) > maxMoments {
			one.Report("write every: and count:", "%d events, more than %d", len(items), maxMoments)
			items = nil
		}
		for _, item := range items {
			if m, ok := s.readMoment(item); ok {
				p.moments = append(p.moments, m)
			}
		}
	}
	_, series := given["series"]
	_, events := given["events"]
	if len(p.tracks)+len(p.moments) == 0 && !series && !events {
		s.at.Report("add series: {allocator.allocated_bytes: 40GiB+12MiBx60}, events: or recording:", "scenario %q has nothing in it", s.name)
		return nil
	}
	return p
}

// identify says who a worker is: what is not written is made up, each of several another slot of the same model, release and host.
func (s *scenario) identify(p *player, given map[string]rules.Entry, number int) {
	p.host = &event.Host{Cluster: "test", Name: "host", BootId: "boot"}
	unit := "worker"
	if number > 0 {
		unit += "-" + string(rune('0'+(number+1)/10%10)) + string(rune('0'+(number+1)%10))
	}
	p.worker = &event.Worker{Pid: int64(1001 + number), StartTicks: event.Ptr(uint64(1000 + number)), StartTime: timestamppb.New(s.start), Role: "worker", Rank: event.Ptr(int64(0)),
		GpuUuids: []string{"GPU-" + string(rune('0'+number/10%10)) + string(rune('0'+number%10))}, Engine: "vllm", Unit: unit, Model: "model", Release: "r1"}
	one, ok := given["worker"]
	if !ok {
		return
	}
	said := &event.Worker{}
	fields := said.ProtoReflect().Descriptor().Fields()
	for _, e := range one.Entries() {
		switch name := e.Name(); name {
		case "host", "cluster":
			word, ok := e.Word()
			if !ok {
				continue
			}
			if word.Text() != event.Token(word.Text()) || word.Text() == "" {
				e.Report("use letters, digits, - and _", "worker.%s: %q is no name of one", name, word.Text())
			} else if name == "host" {
				p.host.Name = word.Text()
			} else {
				p.host.Cluster = word.Text()
			}
		case "gpu":
			if word, ok := e.Word(); ok {
				said.GpuUuids = []string{word.Text()}
			}
		default:
			field := fields.ByName(protoreflect.Name(name))
			if field == nil || name == "start_time" {
				e.Unknown("worker", append(slices.DeleteFunc(namesOf(said.ProtoReflect().Descriptor()), func(n string) bool { return n == "start_time" }), "host", "cluster", "gpu"))
				continue
			}
			fillField(said.ProtoReflect(), field, e, "worker."+name)
		}
	}
	if len(said.GpuUuids) > 0 {
		p.worker.GpuUuids = nil
	}
	proto.Merge(p.worker, said)
	if p.worker.Pid < 1 {
		one.Report("it is above zero", "worker.pid: %d is no process", p.worker.Pid)
	}
	p.worker.Pid = min(p.worker.Pid, 1<<40) // lives that follow count on from it
}

// readQuiet reads `every 1h for 2m`, or that and `from 30m`.
func (s *scenario) readQuiet(e rules.Entry) (q quiet) {
	word, ok := e.Word()
	if !ok {
		return q
	}
	bad := func(what string) quiet {
		e.Report("write `quiet: every 1h for 2m`, and `from 30m` behind it where it begins later", "quiet: %s", what)
		return quiet{}
	}
	words := strings.Fields(word.Text())
	if len(words)%2 != 0 || len(words) == 0 {
		return bad("\"" + word.Text() + "\" is not understood")
	}
	for i := 0; i < len(words); i += 2 {
		d, err := duration(words[i+1])
		into := map[string]*time.Duration{"every": &q.every, "for": &q.lasts, "from": &q.from}[words[i]]
		if into == nil || err != nil || d < 0 || d > 30*24*time.Hour {
			return bad("\"" + words[i] + " " + words[i+1] + "\" is not understood")
		}
		*into = d
	}
	switch least := max(2*s.interval, s.interval+30*time.Second); {
	case q.every <= 0 || q.lasts <= 0:
		return bad("every and for are needed")
	case q.lasts >= q.every:
		return bad("it lasts longer than it is apart")
	case q.lasts < least:
		e.Report("a quiet point needs two readings and 30 s in which nothing runs: for "+short(least)+" at least, or a shorter interval", "quiet: %s holds no quiet point at an interval of %s", short(q.lasts), short(s.interval))
		return quiet{}
	}
	return q
}

// readTrack reads the series of a field, `body.field`.
func (s *scenario) readTrack(e rules.Entry, p *player) *track {
	body, name, _ := strings.Cut(e.Name(), ".")
	of := bodyOf(body)
	if of == nil || !slices.Contains(sampled, body) {
		hint := "a series is of a field of " + strings.Join(sampled, ", ") + ", such as allocator.allocated_bytes"
		if slices.Contains(happening, body) {
			hint = body + " comes at a moment: write it under events:"
		} else if near := event.Nearest(e.Name(), trackNames()); near != "" {
			hint = "did you mean " + near + "?"
		}
		e.ReportKey(hint, "series: there are none of %q", e.Name())
		return nil
	}
	field := of.Fields().ByName(protoreflect.Name(name))
	if field == nil || name == "gpu_uuid" || name == "uuid" {
		var names []string
		for _, one := range trackNames() {
			if strings.HasPrefix(one, body+".") {
				names = append(names, one)
			}
		}
		e.ReportKey(rules.Suggest(e.Name(), names), "series: unknown field %q", e.Name())
		return nil
	}
	h := fnv.New64a()
	h.Write([]byte(e.Name()))
	t := &track{body: body, field: field, seed: s.seed ^ h.Sum64() ^ uint64(p.worker.Pid)<<32, resting: p.quiet.every > 0 && counts(body, name)}
	if field.Kind() == protoreflect.StringKind || field.Kind() == protoreflect.BoolKind {
		word, ok := e.Word()
		if !ok {
			return nil
		}
		t.at, t.text = word, word.Text()
		if field.Kind() == protoreflect.BoolKind {
			if _, ok := e.Bool(); !ok {
				return nil
			}
		}
		return t
	}
	words := []rules.Word{}
	items := []rules.Entry{e}
	if e.IsList() {
		items = e.Items()
	}
	for _, item := range items {
		word, ok := item.Word()
		if !ok {
			return nil
		}
		words = append(words, word)
	}
	if len(words) == 0 {
		e.Report("for example [40GiBx60, _x10]", "%s: a series without values", e.Name())
		return nil
	}
	t.at = words[0]
	for i, word := range words {
		one, err := readSeries(word.Text(), s.interval, unitsOf(name))
		if err == nil && len(words) > 1 && len(one.pieces) == 1 && one.pieces[0].forever && !strings.Contains(word.Text(), "*") {
			one.pieces[0].forever = false // one value of a list is one tick
		}
		if err == nil && i < len(words)-1 && one.pieces[len(one.pieces)-1].forever {
			err = &mistake{0, "something follows what goes on to the end", "x* stands last"}
		}
		if err == nil {
			err = fits(one, field, name)
		}
		if err != nil {
			report(word, e.Name(), err)
			return nil
		}
		if t.series == nil {
			t.series = one
			continue
		}
		end, _ := t.series.ticks()
		for j, p := range one.pieces {
			t.series.pieces, t.series.ends = append(t.series.pieces, p), append(t.series.ends, end+one.ends[j])
		}
	}
	if n, _ := t.series.ticks(); n > maxTicks {
		e.Report("make the interval longer", "%s: a series of more than %d ticks", e.Name(), maxTicks)
		return nil
	}
	return t
}

// fits says what a field cannot be.
func fits(s *series, field protoreflect.FieldDescriptor, name string) error {
	switch {
	case s.lowest() < 0 && field.Kind() == protoreflect.Uint64Kind:
		return &mistake{0, "it falls below zero", "sizes and counts are not below zero: let it fall for fewer ticks"}
	case slices.Contains(ratioFields, name) && (s.highest() > 1 || s.lowest() < 0):
		return &mistake{0, "it is not between 0 and 1", "a ratio is written 0.96 or 96%"}
	case strings.HasSuffix(name, "_total") && name != "kv_blocks_total" && name != "kv_tokens_total" && (s.falls() || s.noisy()):
		return &mistake{0, "a counter falls", "a …_total only grows: give it no noise; where it begins again at 0, write a new piece, 0+5x60 0+5x60"}
	}
	return nil
}

// counts says whether a field is a counter of work, which rests while nothing runs.
func counts(body, name string) bool {
	return body == "engine" && strings.HasSuffix(name, "_total") && name != "kv_blocks_total" && name != "kv_tokens_total"
}

// trackNames are the fields that a series may be of.
func trackNames() []string {
	var out []string
	for _, body := range sampled {
		for _, name := range namesOf(bodyOf(body)) {
			if name != "gpu_uuid" && name != "uuid" {
				out = append(out, body+"."+name)
			}
		}
	}
	return out
}

// rest adds what an engine tells of its work where quiet: is given and no series says it: four requests run, one ends every six
// seconds.
func (p *player) rest(s *scenario) {
	if p.quiet.every == 0 {
		return
	}
	told := map[string]bool{}
	for _, t := range p.tracks {
		told[t.body+"."+string(t.field.Name())] = true
	}
	perTick := s.interval.Seconds() / 6
	fields := bodyOf("engine").Fields()
	work := map[string]piece{"running": {start: 4}, "waiting": {start: 0}, "finished_total": {start: 100, step: perTick}, "aborted_total": {start: 0},
		"prompt_tokens_total": {start: 1e5, step: 1000 * perTick}, "generation_tokens_total": {start: 2e4, step: 200 * perTick}}
	for _, name := range slices.Sorted(maps.Keys(work)) {
		if one := work[name]; !told["engine."+name] {
			one.ticks, one.forever = 1, true
			p.tracks = append(p.tracks, &track{body: "engine", field: fields.ByName(protoreflect.Name(name)), series: &series{pieces: []piece{one}, ends: []int{1}}, resting: counts("engine", name)})
		}
	}
}

// readMoment reads an event: when it comes, and its one body.
func (s *scenario) readMoment(e rules.Entry) (m moment, ok bool) {
	given, all := byName(e, "an event", append([]string{"at", "every", "count"}, happening...))
	m.count, m.body = 1, &event.Event{}
	good, bodies := len(all) > 0, 0
	for _, name := range []string{"at", "every"} {
		if one, has := given[name]; has {
			d, ok := span(one, 0, maxTicks*s.interval)
			if good = good && ok; name == "at" {
				m.at = d
			} else {
				m.every = d
			}
		}
	}
	if one, has := given["count"]; has {
		if word, ok := one.Word(); ok {
			n := &notation{text: word.Text()}
			count, err := n.whole()
			if err != nil || n.rest() != "" || count > maxMoments || m.every == 0 {
				one.Report("for example {at: 1h, every: 10m, count: 5, oom: {…}}", "count: %q is none, or every: is not given", word.Text())
				good = false
			}
			m.count = count
		}
	}
	if one, has := given["every"]; has && m.count < 2 {
		if _, counted := given["count"]; !counted {
			one.ReportKey("add count:, for example {at: 1h, every: 10m, count: 5, oom: {…}}", "every: without a count")
			good = false
		}
	}
	if _, has := given["at"]; !has && len(all) > 0 {
		all[0].ReportKey("add at: 3h, counted from the start", "an event has no time")
		good = false
	}
	for _, name := range happening {
		one, has := given[name]
		if !has {
			continue
		}
		bodies++
		field := m.body.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(name))
		good = fill(m.body.ProtoReflect().Mutable(field).Message(), one, name) && good
	}
	if bodies != 1 && len(all) > 0 {
		all[0].ReportKey("give it exactly one of "+strings.Join(happening, ", "), "an event with %d bodies", bodies)
		return m, false
	}
	return m, good
}
