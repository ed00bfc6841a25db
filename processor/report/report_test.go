package report

import (
	"bytes"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor/trend"
	"lowtide/processor/worker"
)

var update = flag.Bool("update", false, "write the golden files")

const gib = 1 << 30

var (
	start = time.Date(2026, 11, 3, 8, 0, 0, 0, time.UTC)
	host  = &event.Host{Cluster: "prod", Name: "gpu-07", BootId: "b1"}
	who   = &event.Worker{Pid: 4242, StartTicks: event.Ptr(uint64(77)), StartTime: timestamppb.New(start), Engine: "vllm", Unit: "vllm-a", Model: "llama-70b",
		Release: "r41", Role: "worker", Rank: event.Ptr(int64(0)), GpuUuids: []string{"GPU-aa"}}
)

func at(hours float64) time.Time { return start.Add(time.Duration(hours * float64(time.Hour))) }

func unknownCard(uuid string) worker.CardReport {
	nan := math.NaN()
	return worker.CardReport{UUID: uuid, Total: nan, Used: nan, Free: nan, Reserved: nan, Live: nan, Cached: nan, Awaiting: nan, Outside: nan, Limit: nan, Headroom: nan}
}

// lesson is the worker of the lesson at the fourth hourly quiet point: 42, 44, 46, 48 GiB live, 60 reserved, 66 of 80 used.
func lesson() worker.Report {
	live := worker.SeriesReport{Name: "live", GPU: "GPU-aa", Unit: "bytes", Now: 48 * gib, Level: 48 * gib, Called: true, Onset: at(1), HoursLow: 6, HoursHigh: 12,
		Growth: trend.Growth{Points: 4, Hours: 3, Slope: 2 * gib, Low: 16.0 / 12 * gib, High: 16.0 / 6 * gib, Z: math.NaN()}}
	for hour := range 4 {
		live.Points = append(live.Points, worker.Dot{At: at(float64(hour + 1)), Value: float64(42+2*hour) * gib})
	}
	for i := range 49 {
		hours := float64(i) / 12
		busy := 1.5 * gib
		if i%12 == 0 && i > 0 {
			busy = 0
		}
		live.Trace = append(live.Trace, worker.Dot{At: at(hours), Value: (40+2*math.Max(0, hours))*gib + busy})
	}
	cached := worker.SeriesReport{Name: "cached", GPU: "GPU-aa", Unit: "bytes", Now: 12 * gib, Level: 12 * gib, Lacking: "falls", HoursLow: math.NaN(), HoursHigh: math.NaN(),
		Growth: trend.Growth{Points: 4, Hours: 3, Slope: -2 * gib, Low: -2.2 * gib, High: -1.8 * gib}}
	fds := worker.SeriesReport{Name: "fds", Unit: "1", Now: 812, Level: math.NaN(), Lacking: "no quiet level", HoursLow: math.NaN(), HoursHigh: math.NaN(),
		Growth: trend.Growth{Slope: math.NaN(), Low: math.NaN(), High: math.NaN()}}
	card := unknownCard("GPU-aa")
	card.Total, card.Used, card.Free, card.Reserved, card.Live, card.Cached, card.Awaiting, card.Outside = 80*gib, 66*gib, 14*gib, 60*gib, 48*gib, 12*gib, 0, 6*gib
	card.Limit, card.Headroom = 80*gib, 14*gib
	return worker.Report{
		Key: event.WorkerKey(host, who), Slot: event.SlotKey(host, who), Instance: event.InstanceKey(host, who), Who: who, Host: host,
		Config: &event.Config{EngineVersion: "0.11.0", TorchVersion: "2.9.0"}, First: start, Last: at(4), Ready: start.Add(3 * time.Minute),
		Verdict: "live grows", Why: "every comparable quiet point is above the one before", Quiet: worker.QuietReport{Count: 4, Hours: 3, Newest: at(4)},
		Cards: []worker.CardReport{card}, Series: []worker.SeriesReport{live, cached, fds},
		Lacking: []string{"Aborted requests, to see whether memory follows them", "Two more quiet points for a robust slope"},
		Missing: map[string]string{"fragmentation": "snapshot", "external_kill": "lifecycle"},
	}
}

func suspected() *event.Finding {
	return &event.Finding{ID: "f1", Incident: "inc-7f3a", Time: at(4), Subject: event.Subject{Kind: "worker", Key: event.WorkerKey(host, who)}, Slot: event.SlotKey(host, who),
		Worker: who, Rule: "retention", Class: "retention", State: event.Suspected, Severity: event.Ticket, Confidence: 0.65,
		Summary:  "Live memory rises 2 GiB/h across 4 quiet points",
		Evidence: event.Measures{{Name: "live.level_bytes", Value: 48 * gib, Unit: "bytes"}, {Name: "kv.quiet", Value: 0, Unit: "ratio"}, {Name: "quiet.count", Value: 4, Unit: "1"}},
		CounterEvidence: []event.CounterEvidence{{Name: "kv", State: event.RuledOut}, {Name: "graphs", State: event.RuledOut},
			{Name: "prompts", State: event.RuledOut}, {Name: "compile", State: event.RuledOut},
			{Name: "adapters", State: event.NotAssessable, Text: "no data from engine"}, {Name: "pools", State: event.Present}},
		Growth: &event.Growth{Value: 2 * gib, Low: 16.0 / 12 * gib, High: 16.0 / 6 * gib, Unit: "bytes"}, HoursToLimit: &event.Interval{Low: 6, High: 12}, Onset: at(1),
		NotAssessable: map[string]string{"fragmentation": "snapshot"}, Advice: []string{"Drain the worker with a deadline."}}
}

func paged() *event.Finding {
	f := suspected()
	f.ID, f.Time, f.State, f.Severity, f.Confidence = "f2", at(7), event.Confirmed, event.Page, 0.87
	f.PerAbort = &event.Measure{Value: 20 << 20, Unit: "bytes/abort"}
	f.Symptoms = []event.Symptom{{Name: "oom", Time: at(3.5), LagSeconds: 2.5 * 3600, Text: "tried to allocate 2 GiB\x1b[2J\nof 80"}}
	return f
}

// tick is the lesson's single sample: 42 live, 60 reserved, 66 used by the process, 80 in total.
func tick() worker.Report {
	r := lesson()
	card := unknownCard("GPU-aa")
	card.Total, card.Used, card.Free, card.Reserved, card.Live, card.Cached, card.Awaiting, card.Outside = 80*gib, 66*gib, 14*gib, 60*gib, 42*gib, 18*gib, 0, 6*gib
	r.Cards, r.Series, r.Quiet = []worker.CardReport{card}, nil, worker.QuietReport{}
	r.Verdict, r.Why, r.Lacking, r.Last, r.Config = "insufficient", "one sample and no comparable quiet point", nil, r.First, nil
	return r
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test -update writes it):\n%s", path, got)
	}
}

func TestReportsReadAsWritten(t *testing.T) {
	resolved := paged()
	resolved.ID, resolved.Time, resolved.State, resolved.Evidence, resolved.Resolution = "f3", at(12), event.Resolved, nil, "5 quiet points over 3.2 h in release r42, growth at most 1.1 MiB/h"
	masked := paged()
	masked.ID, masked.Time, masked.MaskedRestarts, masked.Alike, masked.Group = "f4", at(7.1), 1, 3, "prod/llama-70b/r41"
	broken := tick()
	broken.Cards = append(broken.Cards, unknownCard("GPU-bb"))
	broken.Cards[0].Outside = -1 * gib
	broken.Quality = []string{"process memory is below what PyTorch reserves"}
	blank := worker.Report{Verdict: "insufficient", Why: "nothing was read", Slot: "prod/gpu-07/pid9/0/0", Who: &event.Worker{Pid: 9}}
	for name, s := range map[string]struct {
		report   worker.Report
		findings []*event.Finding
	}{
		"suspected": {lesson(), []*event.Finding{suspected()}},
		"page":      {lesson(), []*event.Finding{suspected(), paged()}},
		"masked":    {lesson(), []*event.Finding{suspected(), paged(), masked}},
		"resolved":  {lesson(), []*event.Finding{suspected(), paged(), resolved}},
		"watching":  {lesson(), nil},
		"tick":      {tick(), nil},
		"broken":    {broken, nil},
		"blank":     {blank, nil},
	} {
		subjects, rest := Assign([]worker.Report{s.report}, s.findings)
		if len(subjects) != 1 || len(rest) != 0 {
			t.Fatalf("%s: %d subjects, %d cases of nobody", name, len(subjects), len(rest))
		}
		for end, style := range map[string]Style{".txt": {}, ".ascii.txt": {ASCII: true}} {
			var out bytes.Buffer
			if subjects[0].Well() {
				if err := WriteShort(&out, subjects[0], style); err != nil {
					t.Fatal(err)
				}
				out.WriteByte('\n')
			}
			if err := Write(&out, subjects[0], style); err != nil {
				t.Fatal(err)
			}
			golden(t, name+end, out.String())
			obeys(t, name+end, out.String(), subjects[0].Well(), style)
		}
	}
}

// obeys checks the output rules that the package states.
func obeys(t *testing.T, name, text string, well bool, style Style) {
	t.Helper()
	for i, line := range strings.Split(text, "\n") {
		if n := utf8.RuneCountInString(line); n > width && !(well && i < 3) {
			t.Errorf("%s: a line has %d columns: %s", name, n, line)
		}
	}
	for _, r := range text {
		if r < ' ' && r != '\n' || style.ASCII && r > '~' {
			t.Errorf("%s: %q is printed", name, r)
		}
	}
	if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") || strings.Contains(text, "caused by") {
		t.Errorf("%s: says NaN, Inf or caused by:\n%s", name, text)
	}
}

// The lesson's arithmetic: 60 − 42, 66 − 60, 80 − 66, and (64 − 48) / 2 GiB an hour.
func TestTheLessonsNumbersAreSaid(t *testing.T) {
	for _, c := range []struct {
		report   worker.Report
		findings []*event.Finding
		want     []string
	}{
		{tick(), nil, []string{"no finding", "cached 18 GiB (reusable)", "outside 6 GiB (context and native)", "free 14 GiB of 80 GiB"}},
		{lesson(), []*event.Finding{suspected()}, []string{"retention suspected · ticket · confidence 65 %",
			"about 8 h to the limit (6–12 h), where live would be 64 GiB; a risk indicator, not a date", "adapters  not assessable: no data from engine"}},
		{lesson(), []*event.Finding{suspected(), paged()}, []string{"retention confirmed · page · confidence 87 %", "20 MiB/abort", "oom at 2026-11-03 11:30:00 UTC, 2 h 30 min after the onset"}},
	} {
		subjects, _ := Assign([]worker.Report{c.report}, c.findings)
		var out bytes.Buffer
		write := Write
		if subjects[0].Well() {
			write = WriteShort
		}
		if err := write(&out, subjects[0], Style{}); err != nil {
			t.Fatal(err)
		}
		text := strings.Join(strings.Fields(out.String()), " ")
		for _, want := range c.want {
			if !strings.Contains(text, strings.Join(strings.Fields(want), " ")) {
				t.Errorf("%q is not said:\n%s", want, out.String())
			}
		}
		if len(c.findings) == 0 && strings.Count(out.String(), "\n") != 3 {
			t.Errorf("a worker that is well takes three lines, not\n%s", out.String())
		}
	}
}

func TestForecastsAreIntervals(t *testing.T) {
	level := worker.SeriesReport{Name: "live", Unit: "bytes", Level: 48 * gib}
	for _, c := range []struct {
		growth *event.Growth
		hours  *event.Interval
		want   string
	}{
		{&event.Growth{Value: 2 * gib, Low: 2 * gib, High: 2 * gib}, &event.Interval{Low: 8, High: 8}, "about 8 h to the limit (8–8 h), where live would be 64 GiB; a risk indicator, not a date"},
		{&event.Growth{Value: 2 * gib, Low: -1 * gib, High: 4 * gib}, &event.Interval{Low: 4, High: math.Inf(1)}, "about 8 h to the limit (4 h or more), where live would be 64 GiB; a risk indicator, not a date"},
		{&event.Growth{Value: 2 * gib, Low: 1 * gib, High: 4 * gib}, &event.Interval{Low: 3, High: 5}, "3–5 h to the limit; a risk indicator, not a date"}, // of another distance
		{&event.Growth{Value: 32 * gib, Low: 20 * gib, High: 40 * gib}, &event.Interval{Low: 0.4, High: 0.8}, "about 30 min to the limit (24–48 min), where live would be 64 GiB; a risk indicator, not a date"},
		{&event.Growth{Value: 2 * gib, Low: 1 * gib, High: 4 * gib}, &event.Interval{Low: math.NaN(), High: 5}, ""},
	} {
		if got := forecast(&event.Finding{Growth: c.growth, HoursToLimit: c.hours}, level); got != c.want {
			t.Errorf("%+v: %q, want %q", *c.hours, got, c.want)
		}
	}
}

func TestStyleFollowsTheEnvironment(t *testing.T) {
	for _, c := range []struct {
		flag bool
		env  map[string]string
		want bool
	}{
		{false, map[string]string{"LANG": "de_DE.UTF-8"}, false},
		{false, map[string]string{"LANG": "C.utf8"}, false},
		{true, map[string]string{"LANG": "C.UTF-8"}, true},
		{false, map[string]string{"LANG": "C.UTF-8", "NO_COLOR": "1"}, true},
		{false, map[string]string{"LANG": "C.UTF-8", "LC_ALL": "C"}, true},
		{false, nil, true},
	} {
		if got := StyleOf(c.flag, func(name string) string { return c.env[name] }); got.ASCII != c.want {
			t.Errorf("flag %v, %v: ASCII is %v", c.flag, c.env, got.ASCII)
		}
	}
}
