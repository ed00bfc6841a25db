package scorecard

import (
	"fmt"
	"os"
	"testing"

	"lowtide/collector/sim"
	"lowtide/rules"
)

func TestDelays(t *testing.T) {
	if os.Getenv("DL") == "" {
		t.Skip()
	}
	pack, _ := rules.Builtin()
	for _, s := range sim.Scenarios() {
		if s.Name != os.Getenv("DL") {
			continue
		}
		trials, err := judging{pack: pack}.playAll(t.Context(), jobsOf([]sim.Scenario{s}, Seeds{1, 40}))
		if err != nil {
			t.Fatal(err)
		}
		for _, tr := range trials {
			f := tr.found()
			if f == nil {
				fmt.Println(tr.seed, "missed")
				continue
			}
			fmt.Printf("%d found %.2f callable %.2f late %.2f\n", tr.seed, f.first.Sub(tr.onset).Hours(), tr.fourth.Sub(tr.onset).Hours(), f.first.Sub(tr.fourth).Hours())
		}
	}
}
