package report

import (
	"math"
	"strings"
	"testing"

	json "github.com/go-json-experiment/json"

	"lowtide/event"
	"lowtide/processor/worker"
)

func TestTheJSONFormLeavesOutWhatIsUnknown(t *testing.T) {
	r := lesson()
	r.Series[0].HoursHigh = math.Inf(1)
	subjects, _ := Assign([]worker.Report{r}, []*event.Finding{suspected()})
	text, err := MarshalJSON(subjects[0])
	if err != nil {
		t.Fatal(err)
	}
	var back struct {
		Slot   string `json:"slot"`
		Worker struct {
			Pid int64 `json:"pid"`
		} `json:"worker"`
		Host struct {
			Name string `json:"name"`
		} `json:"host"`
		Cards     []map[string]any  `json:"cards"`
		Series    []map[string]any  `json:"series"`
		Missing   map[string]string `json:"not_assessable"`
		Incidents []struct {
			Open     bool             `json:"open"`
			Findings []map[string]any `json:"findings"`
		} `json:"incidents"`
	}
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if back.Slot != "prod/gpu-07/vllm-a/0/0" || back.Worker.Pid != 4242 || back.Host.Name != "gpu-07" || back.Missing["fragmentation"] != "snapshot" {
		t.Errorf("identity came back as %+v", back)
	}
	live, fds := back.Series[0], back.Series[2]
	if live["growth"] != 2.0*gib || live["hours_to_limit_low"] != 6.0 || live["called"] != true || len(live["quiet_levels"].([]any)) != 4 {
		t.Errorf("live is %v", live)
	}
	for _, absent := range []string{"level", "growth", "growth_low", "hours_to_limit_low", "onset"} {
		if v, there := fds[absent]; there {
			t.Errorf("unknown %s of fds is %v", absent, v)
		}
	}
	if _, there := live["hours_to_limit_high"]; there {
		t.Error("an open bound is a number")
	}
	if back.Cards[0]["awaiting_bytes"] != 0.0 || back.Cards[0]["free_bytes"] != 14.0*gib {
		t.Errorf("card is %v", back.Cards[0])
	}
	if len(back.Incidents) != 1 || !back.Incidents[0].Open || back.Incidents[0].Findings[0]["class"] != "retention" {
		t.Errorf("incidents %+v", back.Incidents)
	}
	if strings.ContainsRune(string(text), '\n') {
		t.Error("more than one line")
	}
}
