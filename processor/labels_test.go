package processor

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"lowtide/event"
	"lowtide/rules"
)

func labelled(t testing.TB, texts ...string) (all Labels) {
	t.Helper()
	for _, text := range texts {
		l, err := ParseLabel(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	return all
}

func TestWhatALabelFits(t *testing.T) {
	for _, test := range []struct {
		label, cluster, host, model string
		fits                        bool
	}{
		{"host=prod/gpu-7*:team=ml", "prod", "gpu-71", "m", true},
		{"host=prod/gpu-7*:team=ml", "prod", "gpu-71", "", true},
		{"host=prod/gpu-7*:team=ml", "prod", "gpu-8", "m", false},
		{"host=prod/gpu-7*:team=ml", "lab", "gpu-71", "m", false},
		{"host=*/gpu-7?:team=ml", "lab", "gpu-71", "m", true},
		{"host=*/gpu-7?:team=ml", "lab", "gpu-7", "m", false},
		{"host=prod/gpu-7:team=ml", "prod", "gpu-71", "m", false},
		{"model=llama*:team=ml", "prod", "a", "llama-70b", true},
		{"model=llama*:team=ml", "prod", "a", "meta/llama-70b", false},
		{"model=*llama*:team=ml", "prod", "a", "meta/llama/70b", true},
		{"model=meta/*:team=ml", "prod", "a", "meta/llama/70b", true},
		{"model=llama:8b:team=ml", "prod", "a", "llama:8b", true},
		{"model=*:team=ml", "prod", "a", "", false},
		{"model=*:team=ml", "prod", "a", "x", true},
		{"host=prod/*,model=llama*:team=ml", "prod", "a", "llama", true},
		{"host=prod/*,model=llama*:team=ml", "prod", "a", "qwen", false},
		{"model=llama*,host=prod/*:team=ml", "lab", "a", "llama", false},
	} {
		got := labelled(t, test.label).of(hostName{test.cluster, test.host}, test.model)
		want := map[string]string{}
		if test.fits {
			want["team"] = "ml"
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s for %s/%s %q: %v", test.label, test.cluster, test.host, test.model, got)
		}
	}
}

func TestTheFirstLabelOfAKeyCounts(t *testing.T) {
	all := labelled(t, "model=llama*:team=ml", "host=prod/*:team=infra", "host=*/*:tier=gold", "host=prod/*:tier=iron")
	for _, test := range []struct {
		host  hostName
		model string
		want  map[string]string
	}{
		{hostName{"prod", "a"}, "llama", map[string]string{"team": "ml", "tier": "gold"}},
		{hostName{"prod", "a"}, "", map[string]string{"team": "infra", "tier": "gold"}},
		{hostName{"lab", "a"}, "qwen", map[string]string{"tier": "gold"}},
	} {
		if got := all.of(test.host, test.model); !maps.Equal(got, test.want) {
			t.Errorf("%v %q has %v, want %v", test.host, test.model, got, test.want)
		}
	}
	if got := Labels(nil).of(hostName{"prod", "a"}, "llama"); got != nil {
		t.Errorf("without a configuration %v", got)
	}
}

func TestLabelsThatAreWrong(t *testing.T) {
	for text, want := range map[string]string{
		"team=ml":                         "no colon",
		"prod/gpu-7*:team=ml":             `"prod/gpu-7*" selects neither by host nor by model; write host=`,
		":team=ml":                        "neither by host nor by model",
		"pod=a:team=ml":                   `"pod=a" selects neither`,
		"host=prod:team=ml":               `"prod" is no pattern of cluster/host; write host=prod/gpu-7*`,
		"host=a/b/c:team=ml":              "no pattern of cluster/host",
		"host=a/[b:team=ml":               "is no pattern (syntax error in pattern)",
		"model=[b:team=ml":                "is no pattern",
		"model=:team=ml":                  "model needs one pattern",
		"model=a,model=b:team=ml":         "model needs one pattern; write one label for each",
		"model=a:team":                    `"team" behind the last colon is no label`,
		"model=a:team=a:b":                "no colon in the value",
		"model=a:Team=ml":                 `"Team" is no key`,
		"model=a:=ml":                     `"" is no key`,
		"model=a:7=ml":                    "is no key",
		"model=a:cluster=ml":              "every finding has its own cluster",
		"model=a:severity=ml":             "every finding has its own severity",
		"model=a:team=":                   "team needs a value",
		"model=a:team= ml":                "without spaces around it",
		"model=a:team=m\nl":               "printable",
		"model=a:team=m\xffl":             "printable",
		"model=a:team=m\u202el":           "printable",
		"model=a:team=" + long(257):       "at most 256 bytes",
		"model=a:" + long(65) + "=ml":     "at most 64",
		"model=" + long(1024) + ":team=m": "longer than 1024 bytes",
	} {
		if _, err := ParseLabel(text); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), fmt.Sprintf("%.200q: ", text)) {
			t.Errorf("%.60q: %v, want %s", text, err, want)
		}
	}
	if !slices.IsSorted(ownLabels) {
		t.Error("the names are not sorted")
	}
}

func long(n int) string { return strings.Repeat("a", n) }

func FuzzParseLabel(f *testing.F) {
	f.Add("host=prod/gpu-7*,model=llama*:team=ml", "prod", "gpu-71", "llama")
	f.Add("model=a:b:team=ml", "", "", "a:b")
	f.Add("host=[^a]/\\*:x=y", "c", "*", "\x00/")
	f.Fuzz(func(t *testing.T, text, cluster, host, model string) {
		l, err := ParseLabel(text)
		if err != nil {
			return
		}
		for key, value := range (Labels{l}).of(hostName{cluster, host}, model) {
			if !labelKey.MatchString(key) || slices.Contains(ownLabels, key) || value == "" || !utf8.ValidString(value) || !strings.HasSuffix(text, ":"+key+"="+value) {
				t.Errorf("%q adds %q=%q", text, key, value)
			}
		}
	})
}

// teamed is the rules of the probes, and one of each scope that reads labels.
func teamed(t testing.TB) *rules.Pack {
	t.Helper()
	pack := changedIn(t, `  - {id: handles, class: fd_leak, scope: worker, when: 'labels.team == "ml" && known(fds.now)', severity: {alone: ticket}, summary: "{{fds.now}} handles"}
  - {id: queue, class: kv_pressure, scope: instance, when: 'labels.team == "ml" && waiting.now > 5', severity: {alone: ticket}, summary: "{{waiting.now}} wait"}
  - {id: errors, class: device_fault, scope: gpu, when: 'labels.tier == "gold" && symptom.device', severity: {alone: page}, summary: "Xid {{xid.first}}"}
  - {id: dark, class: blind, scope: host, when: 'has(labels.tier) && !has(labels.team) && blind.seconds >= 600', severity: {alone: ticket}, summary: "{{blind.source}} is {{blind.status}}"}
`)
	return pack
}

func changedIn(t testing.TB, text string) *rules.Pack {
	t.Helper()
	pack, err := rules.LoadSources([]rules.Source{{Name: "mine.yaml", Content: []byte("rules:\n" + text)}})
	if err != nil {
		t.Fatal(err)
	}
	pack.Rules = slices.DeleteFunc(pack.Rules, func(r *rules.Rule) bool { return r.File != "mine.yaml" })
	return pack
}

func teamStage(t testing.TB, pack *rules.Pack, by ...string) *stage {
	t.Helper()
	s := &stage{at: time.Unix(1_790_000_000, 0).UTC(), host: &event.Host{Cluster: "c", Name: "h", BootId: "b"}}
	s.judge = NewJudge(pack, s.find)
	s.judge.Label(labelled(t, by...))
	return s
}

func (s *stage) find(f *event.Finding) { s.findings = append(s.findings, f) }

// told is what the findings of a rule say: their states and labels.
func (s *stage) told(rule string) (all []string) {
	for _, f := range s.findings {
		if f.Rule == rule {
			all = append(all, fmt.Sprint(f.State, " ", f.Labels))
		}
	}
	return all
}

// The model of a worker is known only once its engine listens: then the labels of the model are its own, and the rules about them hold.
func TestRulesOverLabels(t *testing.T) {
	s := teamStage(t, teamed(t), "model=m:team=ml", "host=c/*:team=infra", "host=c/h:tier=gold")
	w := rank(10, "r1")
	w.Model = ""
	s.says("nvml", "ok")
	s.live(w, 3*time.Minute)
	if got := s.told("handles"); len(got) > 0 {
		t.Errorf("while no model is known: %v", got)
	}
	w.Model = "m"
	s.live(w, 3*time.Minute)
	s.apply(w, waits(9))
	s.pass(time.Minute)
	s.apply(w, waits(9))
	s.apply(nil, xidOf(79))
	s.says("nvml", "lost")
	for range 15 {
		s.pass(time.Minute)
		s.says("kernel", "ok")
	}
	s.pass(time.Minute)
	s.apply(w, handles())
	ml, infra := "suspected map[cluster:c host:h team:ml tier:gold]", "suspected map[cluster:c host:h team:infra tier:gold]"
	for rule, want := range map[string][]string{"handles": {ml}, "queue": {ml}, "errors": {infra}, "dark": nil} {
		if got := s.told(rule); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", rule, got, want)
		}
	}
}

// A key that nothing fits is absent, which is not unknown: has() says no. Without any configuration labels are unknown.
func TestLabelsThatNothingFits(t *testing.T) {
	for name, test := range map[string]struct {
		labels []string
		want   []string
	}{
		"some": {[]string{"host=c/*:tier=iron"}, []string{"suspected map[cluster:c host:h tier:iron]"}},
		"none": {nil, nil},
	} {
		s := teamStage(t, teamed(t), test.labels...)
		s.says("nvml", "ok")
		s.says("nvml", "lost")
		for range 15 {
			s.pass(time.Minute)
			s.says("kernel", "ok")
		}
		if got := s.told("dark"); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
		if got := s.told("handles"); len(got) > 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Whoever restores a judge adds the labels of its own configuration; with the same ones nothing changes, to the byte.
func TestLabelsAfterARestart(t *testing.T) {
	pack := teamed(t)
	for name, test := range map[string]struct {
		before, after []string
		same          bool
		told          []string // of what comes afterwards
	}{
		"the same":  {[]string{"model=m:team=ml"}, []string{"model=m:team=ml"}, true, nil},
		"others":    {[]string{"model=m:team=web"}, []string{"model=m:team=ml", "host=c/h:tier=iron"}, false, []string{"suspected map[cluster:c host:h team:ml tier:iron]"}},
		"none":      {[]string{"model=m:team=web"}, nil, false, nil},
		"the first": {nil, []string{"host=*/*:team=ml"}, false, []string{"suspected map[cluster:c host:h team:ml]"}},
	} {
		s := teamStage(t, pack, test.before...)
		w := rank(10, "r1")
		s.live(w, 5*time.Minute)
		s.tick(30_000, true, map[*event.Worker]float64{w: 30_000})
		state, err := s.judge.Save()
		if err != nil {
			t.Fatal(err)
		}
		if s.judge, err = RestoreJudge(pack, NewBoard(), s.find, state); err != nil {
			t.Fatal(err)
		}
		s.judge.Label(labelled(t, test.after...))
		again, err := s.judge.Save()
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(state, again) != test.same {
			t.Errorf("%s: the state stays as it was: %v", name, !test.same)
		}
		s.findings = nil
		s.live(w, 3*time.Minute)
		if got := s.told("handles"); !slices.Equal(got, test.told) {
			t.Errorf("%s: %v, want %v", name, got, test.told)
		}
		want := labelled(t, test.after...).of(hostName{"c", "h"}, "m")
		if got, known := s.worker(w).Sample().Labels(labelsID); known != (want != nil) || known && !maps.Equal(got, want) {
			t.Errorf("%s: the worker has %v (%v), want %v", name, got, known, want)
		}
		card := s.judge.hosts[hostName{"c", "h"}].cards["GPU-a"]
		want = labelled(t, test.after...).of(hostName{"c", "h"}, "")
		if got, known := card.sample.Labels(labelsID); known != (want != nil) || known && !maps.Equal(got, want) {
			t.Errorf("%s: the card has %v (%v), want %v", name, got, known, want)
		}
	}
}

// The judge of other rules has the labels that the partition adds.
func TestLabelsUnderOtherRules(t *testing.T) {
	p := newPartition(testPartition, Options{Pack: probePack(t), Log: slog.New(slog.DiscardHandler), Labels: labelled(t, "model=m:team=ml")}, NewBoard(), nil)
	s := &stage{at: time.Unix(1_790_000_000, 0).UTC(), host: &event.Host{Cluster: "c", Name: "h", BootId: "b"}, judge: p.judge}
	w := rank(10, "r1")
	s.live(w, 3*time.Minute)
	if len(p.findings) > 0 {
		t.Fatalf("%d findings of the rules of before", len(p.findings))
	}
	if _, err := p.takeOver(teamed(t)); err != nil {
		t.Fatal(err)
	}
	s.judge = p.judge
	s.live(w, time.Minute)
	next := rank(11, "r1")
	next.Unit = "v"
	s.live(next, 3*time.Minute)
	s.findings = p.findings
	want := "suspected map[cluster:c host:h team:ml]"
	if got := s.told("handles"); !slices.Equal(got, []string{want, want}) {
		t.Errorf("%v, want %s of each worker", got, want)
	}
}

func BenchmarkLabelAWorker(b *testing.B) {
	var texts []string
	for i := range MaxLabels {
		texts = append(texts, fmt.Sprintf("host=prod/gpu-%d*,model=llama-%d*:key_%d=value", i, i, i))
	}
	all := labelled(b, texts...)
	b.ReportAllocs()
	for b.Loop() {
		all.of(hostName{"prod", "gpu-17"}, "meta/llama-17b")
	}
}
