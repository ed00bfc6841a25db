package engine

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"lowtide/collector/status"
)

// Each count is a number, and so are their edges; their sum, their difference and the quantile are none. Such a target must cost
// neither the agent nor a value that is no number.
func TestNumbersThatAddUpToNone(t *testing.T) {
	const f = "time_to_first_token_seconds"
	for name, text := range map[string]string{
		"a sum beyond all numbers": exposition(f, "1e308", "1e308", "1e308", "1e308", "1e308") +
			strings.ReplaceAll(exposition(f, "1e308", "1e308", "1e308", "1e308", "1e308"), "org/m", "org/n"),
		"an edge below all numbers": strings.ReplaceAll(exposition(f, "%[1]d", "%[1]d", "%[1]d", "%[1]d", "%[1]d"), `"0.1"`, `"-Inf"`),
		"a negative edge":           strings.ReplaceAll(exposition(f, "%[1]d", "%[1]d", "%[1]d", "%[1]d", "%[1]d"), `"0.1"`, `"-5"`),
	} {
		t.Run(name, func(t *testing.T) {
			texts := shelf{}
			client, _ := serve(t, texts)
			s := newSource(t, Options{Client: client, SLOs: []SLO{{Model: "*", TTFT: time.Second}},
				Targets: []Target{{URL: "http://127.0.0.1:8000/metrics", Worker: worker(), Configured: true}}})
			for i := range 4 {
				texts["/metrics"] = vllmLine + strings.ReplaceAll(text, "%[1]d", fmt.Sprint(10*i))
				for _, e := range bodies(collect(t, s, at(5*i)), "engine") {
					if v := e.Engine.TtftP50Seconds; v != nil && !(*v >= 0 && *v < 1e9) {
						t.Errorf("reading %d: a quantile of %v", i, *v)
					}
					if v := e.Engine.GetSloTotal(); v > 1<<53 {
						t.Errorf("reading %d: %d requests", i, v)
					}
				}
			}
		})
	}
}

// An endpoint whose engines are numbered anew at each reading must not be remembered for ever.
func TestIndicesThatChangeAreForgotten(t *testing.T) {
	texts := shelf{}
	client, _ := serve(t, texts)
	s := newSource(t, Options{Client: client, SLOs: []SLO{{Model: "*", TTFT: time.Second}},
		Targets: []Target{{URL: "http://127.0.0.1:8000/metrics", Worker: worker(), Configured: true}}})
	for i := range 20 {
		var text strings.Builder
		for j := range 200 {
			index := fmt.Sprintf(`"%d"`, 200*i+j)
			text.WriteString(strings.ReplaceAll(vllmLine+exposition("time_to_first_token_seconds", "1", "2", "3", "4", "5"), `"0"`, index))
		}
		texts["/metrics"] = text.String()
		collect(t, s, at(5*i))
	}
	l := &s.configured[0].learned
	for name, n := range map[string]int{"histograms": len(l.histogram), "promises": len(l.promises), "notes": len(l.noted), "configurations": len(l.config.told)} {
		if n > 2*maxIndices {
			t.Errorf("%d %s are remembered", n, name)
		}
	}
}

// As many models as there may be series: a table's rows are put in place within a part of a tick, not in the square of their number.
func TestManyModelsAreBounded(t *testing.T) {
	s := newSource(t, Options{})
	var text strings.Builder
	for i := range maxLines {
		fmt.Fprintf(&text, "vllm:num_requests_running{model_name=\"%s%d\"} 1\n", strings.Repeat("m", 100), i)
	}
	events, err := s.readText(text.String())
	if err != nil || len(bodies(events, "engine")) != 1 || bodies(events, "engine")[0].Engine.GetRunning() != maxLines {
		t.Fatalf("%v %v", events, err)
	}
	s.scratch[0].body.WriteString(text.String())
	families, err := s.scratch[0].decode(s.wanted)
	if err != nil {
		t.Fatal(err)
	}
	m := s.mapping("vllm")
	r, err := m.read(families)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(m.models(r, noIndex)); n != maxModels {
		t.Errorf("%d models", n)
	}
}

// The parser's time is the square of the labels of a line, and it heeds no context: such a line never reaches it.
func TestManyLabelsAreRefused(t *testing.T) {
	s := newSource(t, Options{})
	line := func(labels int) string {
		text := "vllm:num_requests_running{"
		for i := range labels {
			text += fmt.Sprintf("a%d=\"\",", i)
		}
		return text + "} 3\n"
	}
	for name, text := range map[string]string{"one line": line(3000), "many lines": strings.Repeat(line(60), 3000), "blanks": strings.ReplaceAll(line(3000), "=", " = ")} {
		if _, err := s.readText(text); !errors.Is(err, status.ErrUnsupported) || !strings.Contains(err.Error(), "too many labels") {
			t.Errorf("%s: %v", name, err)
		}
	}
	events, err := s.readText(line(300)) // no engine has half as many
	if err != nil || bodies(events, "engine")[0].Engine.GetRunning() != 3 {
		t.Errorf("%v %v", events, err)
	}
}
