package notifier

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor"
	"lowtide/rules"
)

// The label that the configuration gives a worker leads its incident to its team, and a silence of that team covers it.
func TestALabelLeadsToATeam(t *testing.T) {
	const text = "rules:\n  - {id: handles, class: fd_leak, scope: worker, when: 'labels.team == \"ml\" && known(fds.now)', severity: {alone: ticket}, summary: \"{{fds.now}} handles\"}\n"
	pack, err := rules.LoadSources([]rules.Source{{Name: "mine.yaml", Content: []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	label, err := processor.ParseLabel("host=prod/gpu-7*,model=llama*:team=ml")
	if err != nil {
		t.Fatal(err)
	}
	var found []*event.Finding
	judge := processor.NewJudge(pack, func(f *event.Finding) {
		text, err := event.MarshalFinding(f) // as it comes over the stream
		if err != nil {
			t.Fatal(err)
		}
		if f, err = event.UnmarshalFinding(text); err != nil {
			t.Fatal(err)
		}
		found = append(found, f)
	})
	judge.Label(processor.Labels{label})
	at := time.Unix(1_790_000_000, 0).UTC()
	for range 3 {
		at = at.Add(time.Minute)
		for i, model := range []string{"llama-70b", "qwen"} {
			who := &event.Worker{Pid: int64(i + 1), StartTicks: event.Ptr(uint64(i + 1)), Unit: model, Model: model}
			judge.Apply(&event.Event{Time: timestamppb.New(at), Host: &event.Host{Cluster: "prod", Name: "gpu-71", BootId: "b"}, Worker: who, Process: &event.Process{Fds: event.Ptr(uint64(7))}})
		}
	}
	if len(found) != 1 || found[0].Worker.GetModel() != "llama-70b" {
		t.Fatalf("%d findings", len(found))
	}
	f := found[0]
	if f.Labels["team"] != "ml" || f.Labels["cluster"] != "prod" || f.Labels["host"] != "gpu-71" {
		t.Errorf("it has %v", f.Labels)
	}
	routes := routing{routes: []route{{match: map[string]string{"team": "web"}, to: []string{"web"}}, {match: map[string]string{"team": "ml", "class": "fd_*"}, to: []string{"ml"}}}, otherwise: []string{"all"}}
	var led []string
	for name := range routes.of(f) {
		led = append(led, name)
	}
	if !slices.Equal(led, []string{"ml"}) {
		t.Errorf("it is led to %v", led)
	}
	for team, covers := range map[string]bool{"ml": true, "m*": true, "web": false} {
		if got := (Silence{Match: map[string]string{"team": team}, Until: at.Add(time.Hour)}).Covers(f, at); got != covers {
			t.Errorf("a silence of team %s covers it: %v", team, got)
		}
	}
	if got := labelsOf(Card{Finding: f})["team"]; got != "ml" {
		t.Errorf("a webhook is told team %q", got)
	}
}
