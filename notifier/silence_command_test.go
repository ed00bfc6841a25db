package notifier

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"lowtide/event"
)

func TestSilenceCommands(t *testing.T) {
	w := newWard(t, leak(), crash())
	out := w.does("silence", "add", "--match", "class=retention,host=gpu-*", "--for", "4h", "-m", "known", "--by", "ann")
	lines := strings.Split(out, "\n")
	// Four hours after two o'clock it is six.
	if !strings.Contains(lines[0], "silences class=retention,host=gpu-* until 2026-11-03 18:00:00 UTC") || lines[1] != "covers 1 open incident: inc-7f3a" {
		t.Errorf("added: %s", out)
	}
	id, _, _ := strings.Cut(out, " ")
	if out := w.does("silence", "add", "--match", "class=stall", "--match", "team=web", "--until", "15:30", "-m", "test", "--by", "bob"); !strings.Contains(out, "class=stall,team=web until 2026-11-03 15:30:00 UTC\ncovers no open incident now; the open ones have class crash_loop, retention\n") {
		t.Error(out)
	}
	if out := w.does("silence", "add", "--everything", "--for", "90m", "-m", "the network is rebuilt"); !strings.Contains(out, "covers 2 open incidents: inc-7f3a, inc-9c01") && !strings.Contains(out, "covers 2 open incidents: inc-9c01, inc-7f3a") {
		t.Error(out)
	}
	list := rows(w.does("silence", "list"))
	if len(list) != 4 || list[0][0] != "ID" {
		t.Fatalf("listed %v", list)
	}
	if out := w.does("incidents"); !strings.Contains(out, "silenced until 2026-11-03 18:00 UTC") || !strings.Contains(out, "silenced until 2026-11-03 15:30 UTC") {
		t.Errorf("incidents\n%s", out)
	}
	if out := w.does("silence", "end", strings.TrimPrefix(id, "s-")[:8], "--by", "ann"); !strings.Contains(out, id+" is over; no open incident is announced again") {
		t.Errorf("ended while another one covers it: %s", out)
	}
	w.refuses(1, id+" is over: ended 2026-11-03 14:00:00 UTC by ann", "silence list", "silence", "end", id)
	w.refuses(1, `no silence is called "nothing"`, "silence list", "silence", "end", "nothing")
	w.refuses(2, `"s-" begins the IDs of 3 silences`, "more of the ID", "silence", "end", "s-")

	w.now = w.now.Add(2 * time.Hour)
	if out, messages, err := w.run("silence", "list"); err != nil || out != "" || messages != "no silence stands; 3 are over, `lowtide silence list --all` shows them\n" {
		t.Errorf("%q, %q, %v", out, messages, err)
	}
	all := w.does("silence", "list", "--all")
	for _, want := range []string{"ended 2026-11-03 14:00:00 UTC by ann", "expired 2026-11-03 15:30:00 UTC", "class=*", "the network is rebuilt"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
	var line struct {
		ID     string
		Match  map[string]string
		Until  time.Time
		Over   bool
		Covers []string
	}
	out = w.does("silence", "add", "--match", "team=web", "--for", "1d", "-m", "x", "--json")
	if err := json.Unmarshal([]byte(out), &line); err != nil || line.Match["team"] != "web" || !line.Until.Equal(w.now.Add(24*time.Hour)) || line.Over || len(line.Covers) != 1 {
		t.Errorf("%s: %+v, %v", out, line, err)
	}
	if out := w.does("silence", "end", line.ID); !strings.Contains(out, "announced again: inc-9c01") {
		t.Error(out)
	}
	if n := len(strings.Split(strings.TrimSpace(w.does("silence", "list", "--all", "--json")), "\n")); n != 4 {
		t.Errorf("%d lines", n)
	}
}

func TestSilenceUntilTheNextRelease(t *testing.T) {
	other := leak()
	other.ID, other.Incident, other.Slot, other.Release = "g1", "inc-0002", "prod/gpu-08/vllm-a/0/1", "r40"
	bare := &event.Finding{ID: "b1", Incident: "inc-b", Time: noon, Class: "blind", State: event.Suspected, Severity: event.Ticket, Subject: event.Subject{Kind: "host", Key: "lab/gpu-01"}, Summary: "silent"}
	w := newWard(t, leak(), other, bare)
	out := w.does("silence", "add", "--incident", "inc-7", "--until-next-release", "-m", "r42 mends it")
	// Thirty days after the third of November it is the third of December.
	if !strings.Contains(out, "incident=inc-7f3a until a release other than r41, at most until 2026-12-03 14:00:00 UTC") || !strings.Contains(out, "covers 1 open incident: inc-7f3a") {
		t.Error(out)
	}
	if out := w.does("silence", "add", "--match", "class=retention,host=gpu-08", "--until-next-release", "-m", "x"); !strings.Contains(out, "other than r40") {
		t.Error(out)
	}
	if out := w.does("silence", "add", "--match", "release=r39", "--until-next-release", "-m", "x"); !strings.Contains(out, "other than r39") {
		t.Error(out)
	}
	w.refuses(2, "are of 2 releases: r40, r41", "--match release=R", "silence", "add", "--match", "class=retention", "--until-next-release", "-m", "x")
	w.refuses(2, "of which release it is", "--match release=R", "silence", "add", "--match", "class=blind", "--until-next-release", "-m", "x")
	if out := w.does("silence", "list"); !strings.Contains(out, "or a release after r41") {
		t.Error(out)
	}
	newer := paged()
	newer.Release = "r42"
	w.tell(newer)
	if out := w.does("incidents", "--class", "retention", "--host", "gpu-07"); strings.Contains(out, "silenced") {
		t.Errorf("the next release is silenced\n%s", out)
	}
}

func TestSilenceAddRefuses(t *testing.T) {
	w := newWard(t, leak())
	add := func(code int, says, hint string, args ...string) {
		t.Helper()
		w.refuses(code, says, hint, append([]string{"silence", "add"}, args...)...)
	}
	add(2, "say why", "-m", "--match", "class=stall", "--for", "4h")
	add(2, "nothing of what to silence", "--match class=retention", "--for", "4h", "-m", "x")
	add(2, `nothing is called "clas"`, "did you mean class? known are class, cluster", "--match", "clas=stall", "--for", "4h", "-m", "x")
	add(2, `"stall" is no KEY=VALUE`, "class=retention", "--match", "stall", "--for", "4h", "-m", "x")
	add(2, `"class=" is no KEY=VALUE`, "class=retention", "--match", "class=", "--for", "4h", "-m", "x")
	add(2, "class stands twice", "each", "--match", "class=stall,class=retention", "--for", "4h", "-m", "x")
	add(2, `no class is called "retentoin"`, "did you mean retention?", "--match", "class=retentoin", "--for", "4h", "-m", "x")
	add(2, `no severity is called "pages"`, "did you mean page?", "--match", "severity=pages", "--for", "4h", "-m", "x")
	add(2, "a host is a name", "cluster=NAME,host=NAME", "--match", "host=prod/gpu-07", "--for", "4h", "-m", "x")
	add(2, "only at the end", "at its end", "--match", "host=*07", "--for", "4h", "-m", "x")
	add(2, "matches every incident, pages too", "--everything", "--match", "class=*", "--for", "4h", "-m", "x")
	add(2, "contradicts", "one of them", "--everything", "--match", "class=stall", "--for", "4h", "-m", "x")
	add(2, "needs one end", "--until-next-release", "--match", "class=stall", "-m", "x")
	add(2, "needs one end", "--for 4h", "--match", "class=stall", "--for", "4h", "--until", "18:00", "-m", "x")
	add(2, `"4 weeks" is no duration`, "2d", "--match", "class=stall", "--for", "4 weeks", "-m", "x")
	add(2, `"0h" is no duration`, "4h", "--match", "class=stall", "--for", "0h", "-m", "x")
	add(2, `"tomorrow" is no time`, "UTC", "--match", "class=stall", "--until", "tomorrow", "-m", "x")
	add(2, "2026-11-03 13:59:00 UTC is past", "it is 2026-11-03 14:00:00 UTC now", "--match", "class=stall", "--until", "2026-11-03T13:59Z", "-m", "x")
	add(2, "31 days are more than 30", "--force", "--match", "class=stall", "--for", "31d", "-m", "x")
	add(1, `no incident is called "inc-1"`, "incidents --all", "--incident", "inc-1", "--for", "4h", "-m", "x")
	add(2, "name two", "one of them", "--incident", "inc-7", "--match", "incident=inc-8", "--for", "4h", "-m", "x")
	if out, _, _ := w.run("silence", "list"); out != "" {
		t.Errorf("silenced all the same:\n%s", out)
	}
	if out := w.does("silence", "add", "--match", "class=stall", "--for", "31d", "--force", "-m", "x"); !strings.Contains(out, "2026-12-04 14:00:00 UTC") {
		t.Error(out)
	}
}

func TestMomentOf(t *testing.T) {
	now := time.Date(2026, 11, 3, 14, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"18:00":                     "2026-11-03T18:00:00Z",
		"09:30":                     "2026-11-04T09:30:00Z",
		"14:00":                     "2026-11-04T14:00:00Z",
		"2026-11-05":                "2026-11-05T00:00:00Z",
		"2026-11-05 07:15":          "2026-11-05T07:15:00Z",
		"2026-11-05 07:15 UTC":      "2026-11-05T07:15:00Z",
		"2026-11-05T07:15Z":         "2026-11-05T07:15:00Z",
		"2026-11-05T07:15+02:00":    "2026-11-05T05:15:00Z",
		"2026-11-05T07:15:30+02:00": "2026-11-05T05:15:30Z",
	} {
		if got, err := momentOf(text, now); err != nil || got.Format(time.RFC3339) != want {
			t.Errorf("%s is %v (%v), want %s", text, got, err, want)
		}
	}
	for text, want := range map[string]time.Duration{"4h": 4 * time.Hour, "90m": 90 * time.Minute, "2d": 48 * time.Hour, "1d12h": 36 * time.Hour} {
		if got, err := lengthOf(text); err != nil || got != want {
			t.Errorf("%s is %v (%v), want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "-4h", "1d-2h", "99999999d", "4", "h4"} {
		if got, err := lengthOf(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func FuzzSilenceWords(f *testing.F) {
	f.Add("class=retention,host=gpu-*", "4h", "18:00")
	f.Add("team=web", "1d12h", "2026-11-05T07:15+02:00")
	f.Fuzz(func(t *testing.T, match, length, moment string) {
		if pairs, err := matchOf(strings.Split(match, ",")); err == nil {
			s := Silence{Match: pairs}
			if s.checkMatch() == nil && len(pairs) > 0 {
				s.ID, s.Until = "s-1", noon
				if err := s.check(); err != nil {
					t.Errorf("%q: %v", match, err)
				}
			}
		}
		if d, err := lengthOf(length); err == nil && d <= 0 {
			t.Errorf("%q is %v", length, d)
		}
		if at, err := momentOf(moment, noon); err == nil && !at.After(noon) {
			t.Errorf("%q is %v", moment, at)
		}
	})
}
