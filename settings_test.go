package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
)

// parse reads a command line beside a settings file.
func parse(t *testing.T, file string, args ...string) (*commands, string, error) {
	t.Helper()
	at := filepath.Join(t.TempDir(), "lowtide.yaml")
	if err := os.WriteFile(at, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	c := new(commands)
	parser, err := kong.New(c, kong.Name("lowtide"), kong.Configuration(loadSettings), kong.Exit(func(int) {}))
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse(append(args, "--config", at))
	return c, at, err
}

// Flags, then the environment, then the command's section, then the top of the file, then the default.
func TestSettingsInTheirOrder(t *testing.T) {
	const file = "cluster: top\nhost: top\ninterval: 7s\nnats: nats://file:1\ncollect:\n  interval: 9s\n  recording: [settings.go, settings_test.go]\n"
	t.Setenv("LOWTIDE_NATS", "nats://environment:1")
	c, _, err := parse(t, file, "collect", "--cluster", "flag")
	if err != nil {
		t.Fatal(err)
	}
	got := c.Collect
	if got.Cluster != "flag" || got.NATS != "nats://environment:1" || got.Interval != 9*time.Second || got.Host != "top" || len(got.Recording) != 2 || got.Speed != 1 {
		t.Errorf("cluster %q, nats %q, interval %v, host %q, %d recordings, speed %v", got.Cluster, got.NATS, got.Interval, got.Host, len(got.Recording), got.Speed)
	}
	c, _, err = parse(t, file, "up")
	if err != nil {
		t.Fatal(err)
	}
	if c.Up.Interval != 7*time.Second {
		t.Errorf("the section of another command counts: %v", c.Up.Interval)
	}
}

func TestSettingsThatAreWrong(t *testing.T) {
	for _, test := range []struct {
		file string
		want []string // all in one error, the file's name before each
	}{
		{"clustre: x\ncollect:\n  intervall: 5s\ncolect:\n  a: b\n", []string{":1:1: clustre: ", ":3:3: collect.intervall: ", ":4:1: colect: "}},
		{"collect:\n  interval: soon\n", []string{":2:3: collect.interval: "}},
		{"cluster: a\ncluster: b\n", []string{"2:1"}},
		{"- a\n", []string{":1:1: settings are lines"}},
		{"cluster: [\n", []string{"1:"}},
		{"a: b\n---\nc: d\n", []string{"more than one YAML document"}},
		{"cluster: " + strings.Repeat("x", maxSettings), []string{"bytes of settings"}},
	} {
		_, at, err := parse(t, test.file, "collect")
		if err == nil {
			t.Errorf("%.40q is accepted", test.file)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), at) {
				t.Errorf("%.40q: %v, want %s%s", test.file, err, at, want)
			}
		}
	}
}

func FuzzSettings(f *testing.F) {
	f.Add("cluster: prod\ncollect:\n  interval: 5s\n  slo: ['m*:ttft=1s']\n")
	f.Add("a: &a [*a]\n")
	f.Fuzz(func(t *testing.T, text string) {
		resolver, err := loadSettings(strings.NewReader(text))
		if err != nil {
			return
		}
		parser, err := kong.New(new(commands), kong.Name("lowtide"))
		if err != nil {
			t.Fatal(err)
		}
		_ = resolver.Validate(parser.Model)
	})
}
