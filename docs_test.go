package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"
)

// known says whether a command line of a document is one that the program takes.
func known(t *testing.T, where string, args []string) {
	t.Helper()
	parser, err := kong.New(new(commands), kong.Name("lowtide"), kong.Exit(func(int) {}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(args); err != nil && !strings.Contains(err.Error(), "no such file") {
		t.Errorf("%s: lowtide %s: %v", where, strings.Join(args, " "), err)
	}
}

var quoted = regexp.MustCompile(`"[^"]*"|\S+`)

// Every `lowtide` line in a block of a document is a command that exists, with flags that exist. What they do is tested elsewhere.
func TestDocumentedCommandsExist(t *testing.T) {
	documents, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, path := range append(documents, "README.md", "deploy/README.md", "collector/probe/README.md", "collector/gputest/README.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		block := false
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "```") {
				block = !block
				continue
			}
			line, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(line), "$ "), "./"), "  #")
			if rest, ok := strings.CutPrefix(line, "lowtide "); ok && block {
				args := quoted.FindAllString(rest, -1)
				if to := slices.IndexFunc(args, func(arg string) bool { return arg == ">" || arg == "|" }); to >= 0 {
					args = args[:to] // what follows is the shell's
				}
				for i := range args {
					args[i] = strings.Trim(args[i], `"`)
				}
				known(t, path, args)
				seen++
			}
		}
	}
	if seen < 8 {
		t.Errorf("%d commands were found in the documents, there are more", seen)
	}
}

// The units and the DaemonSet start what they say with flags that exist, and mount what the sources read.
func TestDeployStartsTheAgent(t *testing.T) {
	unit, err := os.ReadFile("deploy/lowtide-collect.service")
	if err != nil {
		t.Fatal(err)
	}
	start := regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/lowtide (.*)$`).FindSubmatch(unit)
	if start == nil {
		t.Fatal("the unit starts something else")
	}
	known(t, "unit", strings.Fields(string(start[1])))
	unit, err = os.ReadFile("deploy/lowtide-process.service")
	if err != nil {
		t.Fatal(err)
	}
	if start = regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/lowtide (.*)$`).FindSubmatch(unit); start == nil {
		t.Fatal("the unit of the processor starts something else")
	}
	known(t, "unit of the processor", strings.Fields(string(start[1])))
	text, err := os.ReadFile("deploy/collect-daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var set struct {
		Spec struct {
			Template struct {
				Spec struct {
					HostPID    bool `yaml:"hostPID"`
					Containers []struct {
						Args         []string
						VolumeMounts []struct {
							Name      string
							MountPath string `yaml:"mountPath"`
						} `yaml:"volumeMounts"`
					}
					Volumes []struct{ Name string }
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &set); err != nil {
		t.Fatal(err)
	}
	pod := set.Spec.Template.Spec
	if !pod.HostPID || len(pod.Containers) != 1 {
		t.Fatalf("hostPID %v, %d containers", pod.HostPID, len(pod.Containers))
	}
	known(t, "daemonset", pod.Containers[0].Args)
	for _, place := range []string{"/run/lowtide", "/dev/kmsg", "/sys/fs/cgroup", "/var/lib/kubelet/pod-resources"} {
		found := false
		for _, m := range pod.Containers[0].VolumeMounts {
			for _, v := range pod.Volumes {
				found = found || m.MountPath == place && m.Name == v.Name
			}
		}
		if !found {
			t.Errorf("the DaemonSet does not mount %s", place)
		}
	}
}
