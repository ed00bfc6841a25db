package processor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
)

// The bucket LOWTIDE_VERDICTS tells routers what to keep away from a worker. It is advice, for them to read only, and nothing here acts
// on it. The key is cluster.host.pid-start_ticks, each a token; the value is a JSON object:
//
//	worker      the process life: the key of the finding's subject where that is a worker, else the key of this entry
//	slot        cluster/host/unit/engine_index/rank: what a restart comes back to
//	class state severity confidence incident
//	            of the worst open incident of the process: graver first, then what asks to avoid more, then confirmed before suspected
//	avoid       what a router should keep away from it because of that incident, [] when nothing:
//	              long_context  requests with long prompts or outputs
//	              new_sessions  everything but the sessions that it has
//	              all           everything
//	expires     RFC 3339; after this the advice is void. The bucket drops it then, two hours after the last transition
//	others      its other open incidents, in the same form without worker, slot and others; absent when there are none
//
// An entry goes when the last of its incidents is resolved. What is still open of a process that has ended goes to the one that lives in
// its slot by then.

// What a router should keep away from a worker.
const (
	AvoidLongContext = "long_context"
	AvoidNewSessions = "new_sessions"
	AvoidAll         = "all"
)

const (
	verdictWait  = 5 * time.Second // for all that one finding needs
	verdictTries = 8               // when others write the same entry
	maxOthers    = 8
)

// Standing is one open incident of a process, and what a router should avoid because of it.
type Standing struct {
	Class      string    `json:"class"`
	State      string    `json:"state"`
	Severity   string    `json:"severity"`
	Confidence float64   `json:"confidence"`
	Incident   string    `json:"incident"`
	Avoid      []string  `json:"avoid"`
	Expires    time.Time `json:"expires"`
}

// Verdict is the value of one process in LOWTIDE_VERDICTS: its worst open incident, and the others.
type Verdict struct {
	Worker string `json:"worker"`
	Slot   string `json:"slot"`
	Standing
	Others []Standing `json:"others,omitempty"`
}

// Verdicts writes the bucket. It keeps nothing of it, so that several processors may write, and one that starts again goes on.
type Verdicts struct {
	kv  jetstream.KeyValue
	now func() time.Time
}

// OpenVerdicts opens the bucket, which broker.Ensure makes. now is the clock that expiry is written by, since the bucket's own runs
// in broker time and not in that of events.
func OpenVerdicts(ctx context.Context, js jetstream.JetStream, now func() time.Time) (*Verdicts, error) {
	ctx, cancel := context.WithTimeout(ctx, verdictWait)
	defer cancel()
	kv, err := js.KeyValue(ctx, broker.BucketVerdicts)
	if err != nil {
		return nil, broker.Explain("open bucket "+broker.BucketVerdicts, err)
	}
	return &Verdicts{kv: kv, now: now}, nil
}

// Put writes one transition into the entry of its process, in the order in which they happened. A finding without a process changes
// nothing. The same finding again only renews the advice. A nil Verdicts writes nothing.
func (v *Verdicts) Put(ctx context.Context, f *event.Finding) error {
	key := verdictKey(f)
	if v == nil || key == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, verdictWait)
	defer cancel()
	var err error
	for range verdictTries {
		if err = v.put(ctx, key, f); !errors.Is(err, jetstream.ErrKeyExists) { // it was written since it was read
			break
		}
	}
	if err != nil {
		return broker.Explain("write verdict "+key, err)
	}
	return nil
}

func (v *Verdicts) put(ctx context.Context, key string, f *event.Finding) error {
	entry, err := v.kv.Get(ctx, key)
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return err
	}
	var was Verdict
	if entry != nil {
		// An entry that cannot be read is replaced: it is advice, and would else stand in the way for as long as it lives.
		was, _ = decodeVerdict(entry.Value())
	}
	next, stands := was.with(f, key, v.now())
	switch {
	case !stands && entry == nil:
		return nil
	case !stands:
		return v.kv.Delete(ctx, key, jetstream.LastRevision(entry.Revision()))
	}
	text, err := json.Marshal(next)
	if err != nil {
		return err
	}
	if entry == nil {
		_, err = v.kv.Create(ctx, key, text)
	} else {
		_, err = v.kv.Update(ctx, key, text, entry.Revision())
	}
	return err
}

// with returns the verdict after one more transition; stands is false when nothing is open any more.
func (v Verdict) with(f *event.Finding, key string, now time.Time) (next Verdict, stands bool) {
	var open []Standing
	for _, one := range append([]Standing{v.Standing}, v.Others...) {
		if one.Incident != "" && one.Incident != f.Incident && now.Before(one.Expires) {
			open = append(open, one)
		}
	}
	if f.State != event.Resolved {
		open = append(open, Standing{Class: f.Class, State: f.State, Severity: f.Severity, Confidence: f.Confidence, Incident: f.Incident,
			Avoid: avoid(f.Class, f.Severity), Expires: now.Add(broker.VerdictTTL).UTC()})
	}
	if len(open) == 0 {
		return Verdict{}, false
	}
	slices.SortFunc(open, worse)
	next = Verdict{Worker: key, Slot: f.Slot, Standing: open[0], Others: open[1:min(len(open), 1+maxOthers)]}
	if next.Slot == "" {
		next.Slot = v.Slot
	}
	switch {
	case f.Subject.Kind == "worker":
		next.Worker = f.Subject.Key
	case v.Worker != "":
		next.Worker = v.Worker
	}
	return next, true
}

// worse puts the worst incident first.
func worse(a, b Standing) int {
	severities := []string{event.Info, event.Ticket, event.Page}
	breadth := func(s Standing) int {
		return slices.IndexFunc([]string{AvoidLongContext, AvoidNewSessions, AvoidAll}, func(one string) bool { return slices.Contains(s.Avoid, one) })
	}
	return cmp.Or(
		-cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity)),
		-cmp.Compare(breadth(a), breadth(b)),
		cmp.Compare(a.State, b.State), // confirmed, suspected
		-cmp.Compare(a.Confidence, b.Confidence),
		cmp.Compare(a.Incident, b.Incident),
	)
}

// avoid says what a router should keep away. A worker that only grows still serves, so that its sessions are kept from it only when
// somebody suffers; what is short of room is spared what needs most room at once.
func avoid(class, severity string) []string {
	paged := severity == event.Page
	switch class {
	case "kv_pressure", "oversize_request", "fragmentation", "capacity":
		return []string{AvoidLongContext}
	case "retention", "native_growth", "graph_pools", "stream_backlog", "host_memory", "pinned_memory", "exhaustion":
		if paged {
			return []string{AvoidNewSessions}
		}
	case "device_fault", "stall", "crash_loop", "external_kill":
		if paged {
			return []string{AvoidAll}
		}
	}
	return []string{}
}

// verdictKey names a process in the bucket, "" when the finding means none or does not say on which host.
func verdictKey(f *event.Finding) string {
	if f.Worker.GetPid() == 0 {
		return ""
	}
	cluster, host := f.Labels["cluster"], f.Labels["host"]
	for _, key := range []string{f.Slot, f.Subject.Key} { // both begin with cluster/host
		if parts := strings.SplitN(key, "/", 3); len(parts) == 3 && (cluster == "" || host == "") {
			cluster, host = parts[0], parts[1]
		}
	}
	if cluster == "" || host == "" {
		return ""
	}
	process := strconv.FormatInt(f.Worker.GetPid(), 10)
	switch {
	case f.Worker.StartTicks != nil:
		process += "-" + strconv.FormatUint(*f.Worker.StartTicks, 10)
	case f.Worker.StartTime != nil:
		process += "-at" + strconv.FormatInt(f.Worker.StartTime.AsTime().UnixMilli(), 10)
	}
	return event.Token(cluster) + "." + event.Token(host) + "." + event.Token(process)
}

// decodeVerdict reads the value of one process.
func decodeVerdict(text []byte) (Verdict, error) {
	if len(text) > broker.MaxVerdict {
		return Verdict{}, fmt.Errorf("read verdict: %d bytes, the limit is %d", len(text), broker.MaxVerdict)
	}
	var v Verdict
	if err := json.Unmarshal(text, &v); err != nil {
		return Verdict{}, fmt.Errorf("read verdict: %w", err)
	}
	return v, nil
}
