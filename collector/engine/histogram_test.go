package engine

import (
	"bytes"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/event"
)

func dist(edges, counts []float64) distribution { return distribution{edges, counts} }

var inf = math.Inf(1)

// The rules are those of Prometheus' histogram_quantile (prometheus/promql/quantile.go, bucketQuantile).
func TestQuantileIsThatOfPrometheus(t *testing.T) {
	for _, c := range []struct {
		name    string
		d       distribution
		q, want float64 // NaN: none
	}{
		{"in the middle of a bucket", dist([]float64{1, 2, 4, inf}, []float64{10, 20, 20, 20}), 0.75, 1.5},
		{"the lowest bucket begins at zero", dist([]float64{1, 2, inf}, []float64{10, 10, 10}), 0.5, 0.5},
		{"a lowest edge of zero is itself", dist([]float64{0, 1, inf}, []float64{10, 10, 10}), 0.5, 0},
		{"above the last edge", dist([]float64{1, 2, inf}, []float64{1, 1, 10}), 0.95, 2},
		{"exactly at an edge", dist([]float64{1, 2, inf}, []float64{5, 10, 10}), 0.5, 1},
		{"empty buckets between", dist([]float64{1, 2, 4, 8, inf}, []float64{5, 5, 5, 10, 10}), 0.9, 7.2},
		{"nothing observed", dist([]float64{1, inf}, []float64{0, 0}), 0.5, math.NaN()},
		{"no finite edge", dist([]float64{inf}, []float64{3}), 0.5, math.NaN()},
		{"no histogram", distribution{}, 0.5, math.NaN()},
	} {
		got, ok := c.d.quantile(c.q)
		if ok == math.IsNaN(c.want) || ok && math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%s: %v %v, want %v", c.name, got, ok, c.want)
		}
	}
}

func TestDifferenceOfTwoReadings(t *testing.T) {
	edges := []float64{1, 2, inf}
	for _, c := range []struct {
		name          string
		before, after distribution
		want          []float64 // nil: not known
	}{
		{"grew", dist(edges, []float64{1, 2, 3}), dist(edges, []float64{2, 5, 7}), []float64{1, 3, 4}},
		{"the process began again", dist(edges, []float64{10, 20, 30}), dist(edges, []float64{1, 2, 4}), []float64{1, 2, 4}},
		{"a bucket was read before a request and the total after it", dist(edges, []float64{5, 6, 6}), dist(edges, []float64{4, 7, 8}), []float64{0, 1, 2}},
		{"other edges", dist([]float64{1, 4, inf}, []float64{1, 2, 3}), dist(edges, []float64{2, 5, 7}), nil},
		{"first", distribution{}, dist(edges, []float64{2, 5, 7}), nil},
		{"gone", dist(edges, []float64{2, 5, 7}), distribution{}, nil},
	} {
		if got := c.after.since(c.before); !slices.Equal(got.counts, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got.counts, c.want)
		}
	}
}

// exposition is a vLLM histogram with edges 0.1, 0.25, 0.5 and 1.
func exposition(family string, counts ...string) string {
	text := ""
	for i, edge := range []string{"0.1", "0.25", "0.5", "1.0", "+Inf"} {
		text += "vllm:" + family + `_bucket{engine="0",le="` + edge + `",model_name="org/m"} ` + counts[i] + "\n"
	}
	return text + "vllm:" + family + `_count{engine="0",model_name="org/m"} ` + counts[4] + "\n"
}

func TestResetMissingAndRepeatedReadings(t *testing.T) {
	texts := shelf{}
	client, _ := serve(t, texts)
	s := newSource(t, Options{Client: client, Targets: []Target{{URL: "http://127.0.0.1:8000/metrics", Worker: worker(), Configured: true}}})
	read := func(second int, text string) *event.Engine {
		texts["/metrics"] = vllmLine + text
		return bodies(collect(t, s, at(second)), "engine")[0].Engine
	}
	const f = "time_to_first_token_seconds"
	if e := read(0, exposition(f, "10.0", "10.0", "10.0", "10.0", "10.0")); e.TtftP50Seconds != nil {
		t.Errorf("a first reading has a quantile of %v", *e.TtftP50Seconds)
	}
	if e := read(5, exposition(f, "10.0", "10.0", "10.0", "10.0", "10.0")); e.TtftP50Seconds != nil {
		t.Errorf("no new observation has a quantile of %v", *e.TtftP50Seconds)
	}
	if e := read(10, ""); e.TtftP50Seconds != nil || e.Running == nil {
		t.Errorf("without the family: %v", e)
	}
	if e := read(15, exposition(f, "10.0", "14.0", "14.0", "14.0", "14.0")); math.Abs(e.GetTtftP50Seconds()-0.175) > 1e-12 {
		t.Errorf("4 new in (0.1, 0.25]: %v", e)
	}
	if e := read(20, exposition(f, "0.0", "0.0", "2.0", "2.0", "2.0")); math.Abs(e.GetTtftP50Seconds()-0.375) > 1e-12 {
		t.Errorf("began again, with 2 in (0.25, 0.5]: %v", e)
	}
	if e := read(25, strings.Replace(exposition(f, "0.0", "0.0", "NaN", "2.0", "3.0"), "# TYPE", "", 1)); e.TtftP50Seconds != nil {
		t.Errorf("a bucket that is no number: %v", e)
	}
}

func TestSLOCountsRequestsWithinEveryObjective(t *testing.T) {
	texts := shelf{}
	client, _ := serve(t, texts)
	var said bytes.Buffer
	s := newSource(t, Options{Client: client, Targets: []Target{{URL: "http://127.0.0.1:8000/metrics", Worker: worker(), Configured: true}},
		Log:  slog.New(slog.NewTextHandler(&said, nil)),
		SLOs: []SLO{{Model: "other*", E2E: time.Second}, {Model: "*m", TTFT: 250 * time.Millisecond, E2E: 700 * time.Millisecond}, {Model: "*", E2E: time.Hour}}})
	read := func(second int, first, whole []string) *event.Engine {
		texts["/metrics"] = vllmLineOf("org/m") + exposition("time_to_first_token_seconds", first...) + exposition("e2e_request_latency_seconds", whole...)
		return bodies(collect(t, s, at(second)), "engine")[0].Engine
	}
	want := func(when string, e *event.Engine, ok, total uint64) {
		t.Helper()
		if e.SloTotal == nil || *e.SloOkTotal != ok || *e.SloTotal != total {
			t.Errorf("%s: %v of %v, want %d of %d", when, e.GetSloOkTotal(), e.GetSloTotal(), ok, total)
		}
	}
	if e := read(0, []string{"10", "10", "10", "10", "10"}, []string{"0", "0", "10", "10", "10"}); e.SloTotal != nil || e.SloOkTotal != nil {
		t.Errorf("a first reading counts: %v", e)
	}
	// 20 new requests. Within 0.25 s: 17. Within 0.7 s, which is judged at the edge 0.5: 15. The lower of the two.
	want("same requests", read(5, []string{"20", "27", "30", "30", "30"}, []string{"0", "0", "25", "30", "30"}), 15, 20)
	// 4 first tokens, all late, of requests that are still running.
	want("late first tokens", read(10, []string{"20", "27", "34", "34", "34"}, []string{"0", "0", "25", "30", "30"}), 15, 20)
	// They end, in time as a whole, with 2 others: 4 of the 6 have missed.
	want("the same requests end", read(15, []string{"22", "29", "36", "36", "36"}, []string{"0", "0", "31", "36", "36"}), 17, 26)
	// The process begins again: 3 requests, 1 of them too long.
	want("after a restart", read(20, []string{"3", "3", "3", "3", "3"}, []string{"0", "0", "2", "3", "3"}), 19, 29)
	if text := said.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "e2e 700ms lies between edges and is judged at 500ms") || strings.Contains(text, "ttft") {
		t.Errorf("said %q", text)
	}
}

func TestSLOOnTokensPrefersRequestsMeans(t *testing.T) {
	edges := []float64{0.05, 0.1, inf}
	slo := SLO{ITL: 100 * time.Millisecond}
	// Per token: 90 of 95 within. Per request: 7 of 10.
	var p promise
	p.count(slo, &[measures]distribution{itl: dist(edges, []float64{80, 90, 95}), tpot: dist(edges, []float64{5, 7, 10})})
	if p.total != 10 || p.ok != 7 {
		t.Errorf("%v of %v, want 7 of 10", p.ok, p.total)
	}
	// Without the means, 5 of 95 tokens late are 0.53 of 10 requests: one.
	p = promise{}
	p.count(slo, &[measures]distribution{itl: dist(edges, []float64{80, 90, 95}), e2e: dist([]float64{inf}, []float64{10})})
	if p.total != 10 || p.ok != 9 {
		t.Errorf("%v of %v, want 9 of 10", p.ok, p.total)
	}
	// Without a histogram of requests nothing can be counted.
	p = promise{}
	p.count(slo, &[measures]distribution{itl: dist(edges, []float64{80, 90, 95})})
	if p.counted {
		t.Errorf("%v of %v out of nothing", p.ok, p.total)
	}
}

func vllmLineOf(model string) string {
	return strings.ReplaceAll(vllmLine, `model_name="m"`, `model_name="`+model+`"`)
}
