package main

import (
	"strings"
	"testing"
)

// What YAML would make of a text is not what was written: a cluster called 1.10 is not 1.1, and a host called 0123 is not 83.
func TestSettingsAreTextsAsTheyStand(t *testing.T) {
	c, _, err := parse(t, "cluster: 1.10\nhost: 0123\ninterval: '7s'\ncollect:\n  seed: 12\n  speed: 1.50\n  discover: false\n  without: [nvml, kernel]\n  slo: [\"a:ttft=1s,itl=5ms\"]\n  log: [0x10, 1_000]\n  match: |-\n    vllm\n", "collect")
	if err != nil {
		t.Fatal(err)
	}
	got := c.Collect
	if got.Cluster != "1.10" || got.Host != "0123" || got.Seed != 12 || got.Speed != 1.5 || got.Discover || got.Match != "vllm" || len(got.SLO) != 1 || len(got.Without) != 2 {
		t.Errorf("cluster %q, host %q, seed %d, speed %v, discover %v, match %q, slo %q, without %q", got.Cluster, got.Host, got.Seed, got.Speed, got.Discover, got.Match, got.SLO, got.Without)
	}
	if strings.Join(got.Log, " ") != "0x10 1_000" {
		t.Errorf("log %q", got.Log)
	}
	if c, _, err := parse(t, "up:\n  demo: false\n", "up"); err != nil || c.Up.Demo == nil || *c.Up.Demo {
		t.Errorf("demo: %v, %v", c.Up.Demo, err)
	}
}

// A key without a value, and a mapping where a value belongs, are mistakes and no texts.
func TestSettingsWithoutAValue(t *testing.T) {
	for file, want := range map[string]string{
		"match:\n":                       ":1:1: match: ",
		"collect:\n  probe-socket: ~\n":  ":2:3: collect.probe-socket: ",
		"collect:\n  log: [a, ~]\n":      ":2:3: collect.log: ",
		"collect:\n  match: {a: b}\n":    ":2:3: collect.match: ",
		"collect:\n  log: [[a]]\n":       ":2:3: collect.log: ",
		"collect:\n":                     ":1:1: collect: ",
		"config: other.yaml\n":           ":1:1: config: ",
		"collect:\n  config: other.yaml": ":2:3: collect.config: ",
	} {
		_, at, err := parse(t, file, "collect")
		if err == nil || !strings.Contains(err.Error(), at+want) {
			t.Errorf("%q: %v, want %s%s", file, err, at, want)
		}
	}
}
