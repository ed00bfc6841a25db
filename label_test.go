package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"lowtide/processor"
)

// parsed is what a configuration of these labels is.
func parsed(t *testing.T, texts ...string) (all labels) {
	t.Helper()
	for _, text := range texts {
		l, err := processor.ParseLabel(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	return all
}

// A label comes from a flag, from several, or from the settings, as a text or as a list of them; its commas are its own.
func TestLabelsFromFlagsAndSettings(t *testing.T) {
	const both, host = "host=prod/gpu-7*,model=llama*:team=ml", "host=*/*:tier=gold"
	for _, test := range []struct {
		file string
		args []string
		want labels
	}{
		{"", []string{"process"}, nil},
		{"", []string{"process", "--label", both, "--label=" + host}, parsed(t, both, host)},
		{"", []string{"up", "--label", both}, parsed(t, both)},
		{"label: " + both + "\n", []string{"up"}, parsed(t, both)},
		{"label:\n  - " + both + "\n  - '" + host + "'\n", []string{"process"}, parsed(t, both, host)},
		{"label: [\"" + host + "\"]\nprocess:\n  label: [\"" + both + "\"]\n", []string{"process"}, parsed(t, both)},
		{"label: [\"" + host + "\"]\n", []string{"process", "--label", both}, parsed(t, both)},
	} {
		c, _, err := parse(t, test.file, test.args...)
		if err != nil {
			t.Errorf("%q %q: %v", test.file, test.args, err)
			continue
		}
		if got := slices.Concat(c.Up.Label, c.Process.Label); !slices.Equal(got, test.want) {
			t.Errorf("%q %q: %v, want %v", test.file, test.args, got, test.want)
		}
	}
}

func TestLabelsThatAreRefused(t *testing.T) {
	many := make([]string, processor.MaxLabels+1)
	for i := range many {
		many[i] = fmt.Sprintf("--label=model=m%d:team=ml", i)
	}
	for _, test := range []struct {
		file string
		args []string
		want []string
	}{
		{"", []string{"process", "--label", "prod/gpu-7*:team=ml"}, []string{`--label: "prod/gpu-7*:team=ml": "prod/gpu-7*" selects neither by host nor by model; write host=CLUSTER/HOST`}},
		{"", append([]string{"process"}, many...), []string{"--label: 65 labels, and at most 64 are kept"}},
		{"nats: x\nprocess:\n  label: [\"model=a:host=b\", \"model=a:team=ml\", \"host=a:team=ml\"]\n", []string{"process"},
			[]string{":3:3: process.label: ", `"model=a:host=b": every finding has its own host`, `"host=a:team=ml": "a" is no pattern of cluster/host`}},
		{"label: [\"" + strings.Repeat("model=a:team=ml\", \"", processor.MaxLabels) + "model=b:team=ml\"]\n", []string{"up"}, []string{":1:1: label: 65 labels"}},
	} {
		_, at, err := parse(t, test.file, test.args...)
		if err == nil {
			t.Errorf("%.60q %.60q is taken", test.file, test.args)
			continue
		}
		for i, want := range test.want {
			if test.file != "" && i == 0 {
				want = at + want
			}
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%.60q: %v, want %s", test.file, err, want)
			}
		}
	}
	var out strings.Builder
	if code := run(t.Context(), []string{"process", "--label", "team=ml"}, &out); code != 2 || !strings.Contains(out.String(), "no colon between selector and label; write host=prod/gpu-7*,model=llama*:team=ml") {
		t.Errorf("exit code %d: %s", code, out.String())
	}
}
