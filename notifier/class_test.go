package notifier

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/slack-go/slack"

	"lowtide/collector/sim"
	"lowtide/event"
	"lowtide/processor"
	"lowtide/rules"
)

// storyOf plays a simulated trouble through the judge and returns what was told of the first incident of its class, until it ended.
func storyOf(t *testing.T, pack *rules.Pack, class string) History {
	t.Helper()
	for _, scenario := range sim.Scenarios() {
		if scenario.Class != class {
			continue
		}
		var h History
		judge := processor.NewJudge(pack, func(f *event.Finding) {
			if f.Class == class && f.State != event.Resolved && !f.Shadow && (h.Latest == nil || h.Latest.Incident == f.Incident) {
				text, err := event.MarshalFinding(f) // as it comes over the stream
				if err != nil {
					t.Fatal(err)
				}
				if f, err = event.UnmarshalFinding(text); err != nil {
					t.Fatal(err)
				}
				h = h.Add(f)
			}
		})
		if _, err := sim.Play(scenario, 1000, 0, time.Minute, func(e *event.Event) error {
			judge.Apply(e)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		judge.Flush()
		if h.Latest != nil {
			return h
		}
	}
	t.Fatalf("no scenario of class %s leads to a finding of it", class)
	return History{}
}

// The card of every class, made from what the judge says of a simulated trouble: golden files, which `make e2e` also looks at in a browser.
func TestCardsOfEveryClass(t *testing.T) {
	if testing.Short() {
		t.Skip("SHORT: a trouble of every class is simulated and judged, which takes a while")
	}
	pack, err := rules.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	for _, class := range rules.Classes() {
		card := Build(storyOf(t, pack, class))
		list := blocks(card, full)
		text, err := json.MarshalIndent(map[string]any{"text": fallback(card), "blocks": slack.Blocks{BlockSet: list}}, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "cards/"+class+".json", string(text)+"\n")
		if small, err := json.Marshal(slack.Blocks{BlockSet: list}); err != nil || len(small) > maxTotal || len(list) > 50 {
			t.Errorf("%s: %d blocks of %d bytes, %v", class, len(list), len(small), err)
		}
		for _, one := range list {
			if block, ok := one.(*slack.DataVisualizationBlock); ok && block.Validate() != nil {
				t.Errorf("%s: %v", class, block.Validate())
			}
		}
		if len(card.Advice) == 0 || len(card.Next) < 3 || card.Runbook == "" || len(card.Where) == 0 {
			t.Errorf("%s: advice %d, commands %q, runbook %q", class, len(card.Advice), card.Next, card.Runbook)
		}
	}
}
