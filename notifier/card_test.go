package notifier

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/slack-go/slack"

	"lowtide/event"
)

var update = flag.Bool("update", false, "write the golden files")

var noon = time.Date(2026, 11, 3, 12, 0, 0, 0, time.UTC)

// leak is a retention incident: 2 GiB an hour since nine o'clock, suspected at noon.
func leak() *event.Finding {
	return &event.Finding{
		ID: "f1", Incident: "inc-7f3a", Time: noon,
		Subject: event.Subject{Kind: "worker", Key: "prod/gpu-07/boot/4242/99"}, Slot: "prod/gpu-07/vllm-a/0/1",
		Worker: &event.Worker{Pid: 4242, Role: "worker", Rank: event.Ptr(int64(1)), Engine: "vllm", Model: "llama-70b",
			Release: "r41", GpuUuids: []string{"GPU-aa"}},
		Rule: "retention", Class: "retention", State: event.Suspected, Severity: event.Ticket, Confidence: 0.72,
		Summary: "Live memory rises 2 GiB/h across 4 quiet points",
		Evidence: event.Measures{{Name: "live.level_bytes", Value: 48 << 30, Unit: "bytes"},
			{Name: "kv.quiet", Value: 0, Unit: "ratio"}},
		CounterEvidence: []event.CounterEvidence{{Name: "kv", State: event.RuledOut, Text: "KV usage is 0 when quiet"},
			{Name: "adapters", State: event.Present, Text: "one adapter was loaded"}, {Name: "graphs", State: event.NotAssessable}},
		Growth: &event.Growth{Value: 2 << 30, Low: 1.5 * (1 << 30), High: 2.5 * (1 << 30), Unit: "bytes"},
		Series: "live",
		Points: []event.Point{{Time: noon.Add(-3 * time.Hour), Value: 42 << 30}, {Time: noon.Add(-2 * time.Hour), Value: 44 << 30},
			{Time: noon.Add(-time.Hour), Value: 46 << 30}, {Time: noon, Value: 48 << 30}},
		Replicas:     &event.Replicas{Healthy: 3, Total: 4},
		PerAbort:     &event.Measure{Value: 3 << 20, Unit: "bytes/abort"},
		HoursToLimit: &event.Interval{Low: 6.5, High: 11},
		Onset:        noon.Add(-3 * time.Hour), EngineVersion: "0.11.0", TorchVersion: "2.9.0",
		Advice:        []string{"Drain the worker with a deadline.", "Replace it while ready capacity remains."},
		NotAssessable: map[string]string{"fragmentation": "snapshot"},
	}
}

// paged is the same incident an hour later, confirmed, with an OOM beside it.
func paged() *event.Finding {
	f := leak()
	f.ID, f.Time, f.State, f.Severity, f.Confidence = "f2", noon.Add(time.Hour), event.Confirmed, event.Page, 0.9
	f.Symptoms = []event.Symptom{{Name: "oom", Time: noon.Add(50 * time.Minute), LagSeconds: 13800, Text: "tried to allocate 2 GiB <!channel>"}}
	return f
}

// masked is the incident after two restarts, in one of twenty slots that have it.
func masked() *event.Finding {
	f := paged()
	f.ID, f.Time, f.MaskedRestarts = "f4", noon.Add(2*time.Hour), 2
	f.Group, f.Alike = "prod/llama-70b/r41", 20
	for i := range 16 {
		f.AlikeSlots = append(f.AlikeSlots, fmt.Sprintf("prod/gpu-%02d/vllm-a/0/1", i))
	}
	return f
}

// over is its end, as short as ends are.
func over() *event.Finding {
	return &event.Finding{ID: "f3", Incident: "inc-7f3a", Time: noon.Add(5 * time.Hour), Subject: leak().Subject, Slot: leak().Slot,
		Worker: leak().Worker, Class: "retention", State: event.Resolved, Severity: event.Page, Confidence: 0.9, Release: "r42",
		Summary: "Level across 4 quiet points in release r42", MaskedRestarts: 1,
		Resolution: "5 quiet points over 3.2 h, growth at most 1.1 MiB/h, in release r42 (it began in r41)"}
}

// full is a channel that takes all that a card has.
var full = dress{chart: true, buttons: true}

// sceneOf is what a desk sees of a history that nobody has said anything about.
func sceneOf(h History) scene {
	return (&desk{o: Options{Now: time.Now}}).look(&record{history: h})
}

func history(findings ...*event.Finding) (h History) {
	for _, f := range findings {
		h = h.Add(f)
	}
	return h
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test -update writes it):\n%s", path, got)
	}
}

func TestCardGolden(t *testing.T) {
	for name, h := range map[string]History{
		"suspected": history(leak()),
		"confirmed": history(leak(), paged()),
		"masked":    history(leak(), paged(), masked()),
		"resolved":  history(leak(), paged(), over()),
	} {
		card := Build(h)
		golden(t, name+".txt", renderText(card, "", false))
		text, err := json.MarshalIndent(slack.Blocks{BlockSet: blocks(card, full)}, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name+".json", string(text)+"\n")
	}
}

func TestCardSays(t *testing.T) {
	card := Build(history(leak(), paged()))
	if want := "retention confirmed · confidence 90 % · page"; card.Title != want {
		t.Errorf("title %q, want %q", card.Title, want)
	}
	text := renderText(card, "", false)
	// 13,800 s are 3 h 50 min; 48 GiB and 2 GiB/h as given; 6.5 to 11 h as given.
	for _, want := range []string{"3 h 50 min after the onset", "48 GiB", "2 GiB/h (95 %: 1.5 GiB/h to 2.5 GiB/h)", "3 MiB/abort", "ruled out: KV usage",
		"present: one adapter", "not assessable", "Live GPU memory when quiet", "42 GiB ▁▃▆█ 48 GiB",
		"3 of 4 replicas of this release that can be compared are healthy", "needs snapshot", "6.5 h to 11 h", "Risk indicator", "gpu-07", "4242", "llama-70b", "r41",
		"first seen 2026-11-03 12:00:00 UTC", "lowtide investigate incident --incident inc-7f3a"} {
		if !strings.Contains(text, want) {
			t.Errorf("card lacks %q", want)
		}
	}
	for _, never := range []string{"caused", "because", "due to"} {
		if strings.Contains(strings.ToLower(text), never) {
			t.Errorf("card claims a cause: %q", never)
		}
	}
	end := renderText(Build(history(leak(), paged(), over())), "", false)
	if !strings.Contains(end, "48 GiB") || strings.Contains(end, "Risk indicator") {
		t.Error("a resolved card keeps the evidence and drops the forecast")
	}
}

// A restart that hides an incident stands in its title, and changes the card; an end says why, and names its release.
func TestCardTellsTheLifeOfAnIncident(t *testing.T) {
	card := Build(history(leak(), paged(), masked()))
	if want := "retention confirmed, masked by restart (2) · confidence 90 % · page"; card.Title != want {
		t.Errorf("title %q, want %q", card.Title, want)
	}
	if card.Digest() == Build(history(leak(), paged())).Digest() {
		t.Error("a restart does not change the card")
	}
	lines := fmt.Sprint(card.Where)
	for _, want := range []string{"2 process lives ended", "20 slots of prod/llama-70b/r41", "prod/gpu-15/vllm-a/0/1 and 4 more"} {
		if !strings.Contains(lines, want) {
			t.Errorf("card lacks %q: %s", want, lines)
		}
	}
	end := Build(history(leak(), paged(), masked(), over()))
	if lines := fmt.Sprint(end.Where); strings.Contains(end.Title, "masked") || !strings.Contains(lines, "{resolved 5 quiet points over 3.2 h, growth at most 1.1 MiB/h, in release r42 (it began in r41)}") ||
		!strings.Contains(lines, "1 process life ended") {
		t.Errorf("title %q, where %s", end.Title, lines)
	}
}

func TestCardUnknownIsAbsent(t *testing.T) {
	f := &event.Finding{ID: "x", Incident: "i", Time: noon, Subject: event.Subject{Kind: "host", Key: "prod/gpu-01"},
		Class: "blind", State: event.Suspected, Severity: event.Ticket, Summary: "no events"}
	want := []Line{{"host", "prod/gpu-01"}, {"host", "gpu-01"}}
	card := Build(history(f))
	if fmt.Sprint(card.Where) != fmt.Sprint(want) {
		t.Errorf("where %v, want %v", card.Where, want)
	}
	if card.Forecast != "" || card.Evidence != nil || strings.Contains(renderText(card, "", false), "pid") {
		t.Errorf("something unknown is shown: %+v", card)
	}
}

func TestCommandIsSafeInAShell(t *testing.T) {
	f := leak()
	f.Incident = "a'; DROP TABLE x; --\"$(id)`id`\\"
	f.Slot = "prod/gpu 7/$(reboot)/0/1\u202e"
	for _, command := range Build(history(f)).Next {
		run := exec.Command("sh", "-c", "set -f; printf '%s\\n' "+command)
		out, err := run.Output()
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		words := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
		for _, word := range words[1:] {
			switch {
			case strings.HasPrefix(word, "--") || !strings.ContainsAny(word, " '$`;"):
			case word == `a_; DROP TABLE x; --"$(id)`+"`id`"+`\` || word == "prod/gpu 7/$(reboot)/0/1_":
			default:
				t.Errorf("%s has the word %s", command, word)
			}
		}
	}
}

func TestHistoryIgnoresWhatIsOld(t *testing.T) {
	h := history(leak(), paged())
	if h.Add(leak()) != h || h.Add(paged()) != h {
		t.Error("an older finding or the same one changed the history")
	}
}

func TestBlocksStayWithinLimits(t *testing.T) {
	f := paged()
	for i := range 300 {
		f.Evidence = append(f.Evidence, event.Measure{Name: fmt.Sprintf("s%d.level_bytes", i), Value: float64(i) * 1e9, Unit: "bytes"})
		f.Advice = append(f.Advice, strings.Repeat("<&> advice ", 30))
		f.Symptoms = append(f.Symptoms, event.Symptom{Name: "oom", Time: noon, LagSeconds: 1, Text: strings.Repeat("&", 5000)})
	}
	f.Summary, f.Class = strings.Repeat("ä", 20000), strings.Repeat("class", 100)
	list := blocks(Build(history(f)), full)
	text, err := json.Marshal(slack.Blocks{BlockSet: list})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) > 50 || len(text) > 10000 {
		t.Errorf("%d blocks of %d bytes", len(list), len(text))
	}
	for _, block := range list {
		switch b := block.(type) {
		case *slack.SectionBlock:
			if n := utf8.RuneCountInString(b.Text.Text); n > 3000 {
				t.Errorf("a section of %d characters", n)
			}
		case *slack.HeaderBlock:
			if n := utf8.RuneCountInString(b.Text.Text); n > 150 {
				t.Errorf("a header of %d characters", n)
			}
		}
	}
	if !strings.Contains(string(text), "more") {
		t.Error("what is left out is not counted")
	}
	if n := utf8.RuneCountInString(fallback(Build(history(f)))); n > 1000 {
		t.Errorf("fallback of %d characters", n)
	}
}

func TestTerminalLinesAreOneWidth(t *testing.T) {
	f := paged()
	f.Summary = "evil \x1b[2Jscreen \u009b31m " + strings.Repeat("longword", 40)
	f.Worker.Model = ""
	text := renderText(Build(history(f)), "update: ", false)
	if strings.ContainsAny(text, "\x1b\u009b") {
		t.Error("control characters reach the terminal")
	}
	for line := range strings.Lines(text) {
		if line = strings.TrimSuffix(line, "\n"); !strings.HasPrefix(line, "  $") && utf8.RuneCountInString(line) != terminalWidth {
			t.Errorf("%d columns: %s", utf8.RuneCountInString(line), line)
		}
	}
	if !strings.Contains(text, "update: retention confirmed") {
		t.Error("the update is not marked")
	}
}

func TestDecide(t *testing.T) {
	quiet := leak()
	quiet.Severity = event.Info
	again := leak()
	again.ID, again.Time = "f9", noon.Add(time.Minute)
	louder := *again
	louder.Severity = event.Page
	was := Delivery{Status: told, Finding: "f1", State: event.Suspected, Level: event.Ticket, Digest: Build(history(leak())).Digest()}
	more := *again
	more.Confidence = 0.8
	for name, c := range map[string]struct {
		d    Delivery
		h    History
		want Step
	}{
		"empty":             {Delivery{}, History{}, Nothing},
		"first":             {Delivery{}, history(leak()), Post},
		"info":              {Delivery{}, history(quiet), Nothing},
		"only the end":      {Delivery{}, history(over()), Nothing},
		"ended while away":  {Delivery{}, history(leak(), over()), Post},
		"crashed":           {Delivery{Status: posting}, history(leak()), Recover},
		"told":              {was, history(leak()), Nothing},
		"same words":        {was, history(leak(), again), Nothing},
		"more evidence":     {was, history(leak(), &more), Update},
		"severity":          {was, history(leak(), &louder), Update},
		"state":             {was, history(leak(), paged()), Update},
		"resolved":          {was, history(leak(), over()), Update},
		"found after crash": {Delivery{Status: told}, history(leak()), Update},
	} {
		if got, why := decide(c.d, sceneOf(c.h), terms{wanted: true}); got != c.want || why == "" {
			t.Errorf("%s: %d (%s), want %d", name, got, why, c.want)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	text, err := (&record{history: history(leak(), paged(), over()), deliveries: map[string]Delivery{"slack": {Status: told}}}).encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"incident":"a","first":{},"latest":{}}`))
	f.Add([]byte(`{"first":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := decodeRecord(text)
		if err != nil {
			return
		}
		card := Build(r.history)
		renderText(card, "", false)
		if list := blocks(card, full); len(list) > 50 {
			t.Errorf("%d blocks", len(list))
		}
	})
}

// What a snapshot names is shown short: three stacks, each with its line and caller, and the file.
func TestCardNamesTheHolders(t *testing.T) {
	f := leak()
	f.Snapshot = "gpu-07-4242-20261103T120000Z-asked.pickle"
	for i := range 5 {
		f.Holders = append(f.Holders, event.Holder{Frames: []string{fmt.Sprintf("worker.py:%d alloc", 90+i), "worker.py:153 serve", "worker.py:211 <module>"}, LiveBytes: uint64(5-i) << 30, Blocks: 347})
	}
	f.Holders[0].GrowthBytes, f.Holders[1].GrowthBytes = event.Ptr(int64(340<<20)), event.Ptr(int64(-7))
	card := Build(history(f))
	want := []string{"5 GiB at worker.py:90 alloc, from worker.py:153 serve, 340 MiB more than in an earlier snapshot", "4 GiB at worker.py:91 alloc, from worker.py:153 serve",
		"3 GiB at worker.py:92 alloc, from worker.py:153 serve", "snapshot on the host: gpu-07-4242-20261103T120000Z-asked.pickle"}
	if got := strings.Join(card.Held, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	if text := renderText(card, "", false); !strings.Contains(text, "340 MiB more") {
		t.Error(text)
	}
	text, err := json.Marshal(blocks(card, full))
	if err != nil || !strings.Contains(string(text), "worker.py:153 serve") {
		t.Errorf("%s (%v)", text, err)
	}
	// A resolution without evidence of its own keeps what was held.
	if card := Build(history(f, over())); len(card.Held) != 4 {
		t.Errorf("resolved: %v", card.Held)
	}
}
