package processor

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor/broker"
	"lowtide/processor/broker/brokertest"
)

const verdictOf = "prod.gpu-07.4242-99"

// transition is one of process 4242 on gpu-07.
func transition(incident, class, state, severity string) *event.Finding {
	return &event.Finding{Incident: incident, Class: class, State: state, Severity: severity, Confidence: 0.9,
		Subject: event.Subject{Kind: "worker", Key: "prod/gpu-07/boot/4242/99"}, Slot: "prod/gpu-07/vllm-a/0/1",
		Worker: &event.Worker{Pid: 4242, StartTicks: event.Ptr(uint64(99))}, Labels: map[string]string{"cluster": "prod", "host": "gpu-07"}}
}

// bucket is the real one, with a clock that the test sets.
type bucket struct {
	*Verdicts
	t   *testing.T
	kv  jetstream.KeyValue
	now time.Time
}

func newBucket(t *testing.T) *bucket {
	t.Helper()
	_, _, js := brokertest.Start(t)
	b := &bucket{t: t, now: time.Date(2026, 11, 3, 12, 0, 0, 0, time.UTC)}
	var err error
	if b.Verdicts, err = OpenVerdicts(t.Context(), js, func() time.Time { return b.now }); err != nil {
		t.Fatal(err)
	}
	b.kv = b.Verdicts.kv
	return b
}

func (b *bucket) put(f *event.Finding) {
	b.t.Helper()
	if err := b.Put(b.t.Context(), f); err != nil {
		b.t.Fatal(err)
	}
}

// says is the entry in short: class, severity, avoid; then the others' classes.
func (b *bucket) says() string {
	b.t.Helper()
	entry, err := b.kv.Get(b.t.Context(), verdictOf)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return ""
	}
	if err != nil {
		b.t.Fatal(err)
	}
	v, err := decodeVerdict(entry.Value())
	if err != nil {
		b.t.Fatal(err)
	}
	text := fmt.Sprint(v.Class, " ", v.Severity, " ", v.Avoid)
	for _, one := range v.Others {
		text += " + " + one.Class
	}
	return text
}

func TestVerdictValue(t *testing.T) {
	b := newBucket(t)
	b.put(transition("i1", "retention", event.Confirmed, event.Page))
	entry, err := b.kv.Get(t.Context(), verdictOf)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"worker":"prod/gpu-07/boot/4242/99","slot":"prod/gpu-07/vllm-a/0/1","class":"retention","state":"confirmed","severity":"page",` +
		`"confidence":0.9,"incident":"i1","avoid":["new_sessions"],"expires":"2026-11-03T14:00:00Z"}`
	if got := string(entry.Value()); got != want {
		t.Errorf("value\n%s\nwant\n%s", got, want)
	}
}

func TestTheWorstOpenIncidentIsTheVerdict(t *testing.T) {
	b := newBucket(t)
	for _, step := range []struct {
		name string
		f    *event.Finding
		want string
	}{
		{"the end of what was never told", transition("i0", "stall", event.Resolved, event.Page), ""},
		{"growth is a ticket", transition("i1", "retention", event.Suspected, event.Ticket), "retention ticket []"},
		{"a ticket that asks for more", transition("i2", "kv_pressure", event.Suspected, event.Ticket), "kv_pressure ticket [long_context] + retention"},
		{"growth pages", transition("i1", "retention", event.Confirmed, event.Page), "retention page [new_sessions] + kv_pressure"},
		{"a stall pages", transition("i3", "stall", event.Suspected, event.Page), "stall page [all] + retention + kv_pressure"},
		{"the same again", transition("i3", "stall", event.Suspected, event.Page), "stall page [all] + retention + kv_pressure"},
		{"a lesser one ends", transition("i2", "kv_pressure", event.Resolved, event.Ticket), "stall page [all] + retention"},
		{"the worst ends", transition("i3", "stall", event.Resolved, event.Page), "retention page [new_sessions]"},
		{"another incident of the same class ends", transition("i9", "retention", event.Resolved, event.Page), "retention page [new_sessions]"},
		{"the last ends", transition("i1", "retention", event.Resolved, event.Page), ""},
		{"it begins again", transition("i4", "retention", event.Suspected, event.Page), "retention page [new_sessions]"},
	} {
		b.put(step.f)
		if got := b.says(); got != step.want {
			t.Errorf("%s: %q, want %q", step.name, got, step.want)
		}
	}
}

func TestAdviceGetsOld(t *testing.T) {
	b := newBucket(t)
	b.put(transition("i1", "device_fault", event.Suspected, event.Page))
	b.now = b.now.Add(2 * time.Hour)
	b.put(transition("i2", "capacity", event.Suspected, event.Ticket))
	if got := b.says(); got != "capacity ticket [long_context]" {
		t.Errorf("two hours after the fault was last told: %q", got)
	}
}

func TestAnEntryThatCannotBeReadIsReplaced(t *testing.T) {
	b := newBucket(t)
	for _, text := range []string{"{", "[]", strings.Repeat("x", broker.MaxVerdict-100)} {
		if _, err := b.kv.Put(t.Context(), verdictOf, []byte(text)); err != nil {
			t.Fatal(err)
		}
		b.put(transition("i1", "stall", event.Suspected, event.Page))
		if got := b.says(); got != "stall page [all]" {
			t.Errorf("over %.10q: %q", text, got)
		}
	}
}

// Two processors write about one process at once, as when a partition changes hands: neither loses what the other wrote.
func TestTwoWritersLoseNothing(t *testing.T) {
	b := newBucket(t)
	const each = 4
	done := make(chan error)
	for writer := range 2 {
		go func() {
			var all error
			for i := range each {
				f := transition(fmt.Sprint("i", writer, i), "kv_pressure", event.Suspected, event.Page)
				all = errors.Join(all, b.Put(t.Context(), f))
			}
			done <- all
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got := b.says(); strings.Count(got, "kv_pressure") != 2*each {
		t.Errorf("%q, want %d incidents", got, 2*each)
	}
}

func TestWhatAProcessIsNot(t *testing.T) {
	b := newBucket(t)
	card := &event.Finding{Incident: "i1", Class: "device_fault", State: event.Suspected, Severity: event.Page, Subject: event.Subject{Kind: "gpu", Key: "prod/gpu-07/GPU-a"}}
	b.put(card)
	keys, err := b.kv.ListKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for key := range keys.Keys() {
		t.Errorf("a card without a process has entry %s", key)
	}
}

func TestVerdictKey(t *testing.T) {
	started := timestamppb.New(time.UnixMilli(1_790_000_000_123))
	for name, test := range map[string]struct {
		f    event.Finding
		want string
	}{
		"labels":         {event.Finding{Worker: &event.Worker{Pid: 7, StartTicks: event.Ptr(uint64(0))}, Labels: map[string]string{"cluster": "c", "host": "h"}}, "c.h.7-0"},
		"slot":           {event.Finding{Worker: &event.Worker{Pid: 7, StartTicks: event.Ptr(uint64(9))}, Slot: "c/h/u/0/0"}, "c.h.7-9"},
		"subject":        {event.Finding{Worker: &event.Worker{Pid: 7}, Subject: event.Subject{Kind: "gpu", Key: "c/h/GPU-a"}}, "c.h.7"},
		"start time":     {event.Finding{Worker: &event.Worker{Pid: 7, StartTime: started}, Slot: "c/h/u/0/0"}, "c.h.7-at1790000000123"},
		"not a token":    {event.Finding{Worker: &event.Worker{Pid: 7}, Labels: map[string]string{"cluster": "a.b", "host": "h >"}}, "a_b.h__.7"},
		"no process":     {event.Finding{Slot: "c/h/u/0/0"}, ""},
		"no host":        {event.Finding{Worker: &event.Worker{Pid: 7}}, ""},
		"host in no key": {event.Finding{Worker: &event.Worker{Pid: 7}, Slot: "s"}, ""},
	} {
		if got := verdictKey(&test.f); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// What contain and drain mean for each class, from the lessons: spare it long contexts while room is short, new sessions while growth
// hurts, everything while it serves nobody.
func TestAvoid(t *testing.T) {
	for _, test := range []struct{ classes, ticket, page string }{
		{"kv_pressure oversize_request fragmentation capacity", AvoidLongContext, AvoidLongContext},
		{"retention native_growth graph_pools stream_backlog host_memory pinned_memory exhaustion", "", AvoidNewSessions},
		{"device_fault stall crash_loop external_kill", "", AvoidAll},
		{"software_fault cotenant kv_block_leak fd_leak thread_leak blind", "", ""},
	} {
		for class := range strings.FieldsSeq(test.classes) {
			for severity, want := range map[string]string{event.Info: test.ticket, event.Ticket: test.ticket, event.Page: test.page} {
				if got := strings.Join(avoid(class, severity), " "); got != want {
					t.Errorf("%s %s: %q, want %q", class, severity, got, want)
				}
			}
		}
	}
}

func FuzzDecodeVerdict(f *testing.F) {
	f.Add([]byte(`{"worker":"w","slot":"s","class":"stall","severity":"page","incident":"i","avoid":["all"],"expires":"2026-11-03T14:00:00Z","others":[{"incident":"j"}]}`))
	f.Add([]byte(`{"others":null,"avoid":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := decodeVerdict(text)
		if err != nil {
			return
		}
		next, stands := v.with(transition("i1", "stall", event.Suspected, event.Page), verdictOf, time.Unix(0, 0))
		if !stands || len(next.Others) > maxOthers {
			t.Fatalf("%v, %d others", stands, len(next.Others))
		}
		written, err := json.Marshal(next)
		if err != nil {
			return // an expiry outside the years that JSON can write
		}
		back, err := decodeVerdict(written)
		if len(written) <= broker.MaxVerdict && (err != nil || !reflect.DeepEqual(back.Incident, next.Incident)) {
			t.Fatalf("%s read back: %v", written, err)
		}
	})
}
