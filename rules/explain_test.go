package rules

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	json "github.com/go-json-experiment/json"

	"lowtide/rules/variable"
)

func explained(t *testing.T, c ExplainCommand) string {
	t.Helper()
	var out bytes.Buffer
	c.Stdout = &out
	if err := c.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestExplainVariablesAndRules(t *testing.T) {
	for _, what := range []string{"live", "queue", "retention", "blind", "stall", "functions"} {
		golden(t, "testdata/explain_"+what+".golden", explained(t, ExplainCommand{What: what}))
	}
	golden(t, "testdata/explain_fd_leak_json.golden", explained(t, ExplainCommand{What: "fd_leak", JSON: true}))
}

// The whole list holds every variable with what an author must know of it.
func TestExplainListsEveryVariable(t *testing.T) {
	text := explained(t, ExplainCommand{})
	lines := map[string]string{}
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 0 && strings.HasPrefix(line, "  ") {
			lines[fields[0]] = line
		}
	}
	for _, v := range variable.All() {
		line := lines[v.Name]
		for _, want := range []string{v.Kind.String(), v.Sensor, v.Example, v.Doc} {
			if !strings.Contains(line, want) {
				t.Errorf("%s: no %q in %q", v.Name, want, line)
			}
		}
	}
	for _, want := range []string{"known(VARIABLE)", "KiB, MiB, GiB", "who it is\n", "symptom\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	var answer struct {
		Variables []VariableInfo `json:"variables"`
	}
	if err := json.Unmarshal([]byte(explained(t, ExplainCommand{JSON: true})), &answer); err != nil || len(answer.Variables) != len(variable.All()) {
		t.Errorf("%d variables in JSON: %v", len(answer.Variables), err)
	}
}

func TestExplainAnOwnRule(t *testing.T) {
	text := explained(t, ExplainCommand{What: "busy_team", Rules: []string{"testdata/good_own_rule.yaml"}})
	for _, want := range []string{"busy_team: class capacity, judged for each worker", "testdata/good_own_rule.yaml:2", "kv.now > t.limit", "t.limit is 95 %", "a loop over labels"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestExplainNothingNamesTheNearest(t *testing.T) {
	for name, want := range map[string]string{"live.groth": "did you mean live.growth?", "retentoin": "did you mean retention?", "lives": "did you mean live?", "growth_low": "did you mean live.growth_low, ", "zzz": "`lowtide rules explain` lists"} {
		err := (&ExplainCommand{What: name}).Run(context.Background())
		var unknown *unknownName
		if !errors.As(err, &unknown) || !strings.HasPrefix(unknown.Hint(), want) || unknown.ExitCode() != 2 || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
	}
}

// What explain prints of a condition is the condition: compiled again, it comes to the same on any sample.
func TestPrintedConditionsMeanTheSame(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 9))
	samples := make([]*variable.Sample, 40)
	for i := range samples {
		samples[i] = randomSample(random)
	}
	for _, r := range shippedPack(t).Rules {
		for _, c := range r.named() {
			again := compiled(t, c.whole.source(), r.Thresholds)
			for _, s := range samples {
				got, missing := again.evaluate(s)
				want, wantMissing := c.evaluate(s)
				if got != want || missing != wantMissing {
					t.Fatalf("rule %s, %s: %s is %v (%s), as written %v (%s)", r.ID, c.name, c.whole.source(), got, missing, want, wantMissing)
				}
			}
		}
	}
	for text, want := range map[string]string{
		`!(live.early && live.steady) || (kv.now > 1 ? live.step : !known(live.z))`: `!(live.early && live.steady) || (kv.now > 1 ? live.step : !known(live.z))`,
		`(live.now + 1) * 2 - (3 - 1) > -live.growth / (2 * MiB)`:                   `(live.now + 1) * 2 - (3 - 1) > -live.growth / (2 * MiB)`,
		`engine in ["a", "b"] && labels["team"].startsWith("x")`:                    `engine in ["a", "b"] && labels["team"].startsWith("x")`,
	} {
		if got := compiled(t, text, nil).whole.source(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// Examples are there to be copied: each of a function is a condition, each of a variable a value of its kind.
func TestExamplesCompile(t *testing.T) {
	for _, f := range functionTable {
		compiled(t, f.Example, map[string]float64{"floor": 5 << 20})
	}
	for _, v := range variable.All() {
		if v.Kind != variable.Labels {
			compiled(t, v.Name+" == "+v.Example, nil)
		}
	}
}

func compiled(t *testing.T, text string, thresholds map[string]float64) program {
	t.Helper()
	c, err := newCompiler(thresholds)
	if err != nil {
		t.Fatal(err)
	}
	var problems Problems
	p, ok := c.condition(scalar{doc: &document{name: "probe.yaml", problems: &problems, lines: []string{text}}, text: text, line: 1, column: 1}, "when")
	if !ok {
		t.Fatal(problems)
	}
	return p
}
