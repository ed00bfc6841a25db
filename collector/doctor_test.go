package collector

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	json "github.com/go-json-experiment/json"

	"lowtide/collector/allocator"
)

// An empty root has nothing: every check says what is missing and how to get it, and only what is required is an error.
func TestDoctorOnAnEmptyHost(t *testing.T) {
	var out bytes.Buffer
	d := &DoctorCommand{JSON: true, Stdout: &out, Root: t.TempDir(), NATS: "nats://127.0.0.1:1"}
	err := d.Run(t.Context())
	if !errors.Is(err, ErrRequired) || !strings.Contains(err.Error(), "process is absent") || !strings.Contains(err.Error(), "nats is absent") {
		t.Errorf("error %v", err)
	}
	var checks []Check
	if err := json.Unmarshal(out.Bytes(), &checks); err != nil {
		t.Fatalf("%v in %s", err, out.Bytes())
	}
	seen := map[string]Check{}
	for _, c := range checks {
		seen[c.Name] = c
		if c.Name != "engine library" && (c.Status != "absent" || c.Hint == "" || c.Missing == "" || c.Found == "") {
			t.Errorf("check %+v", c)
		}
	}
	for _, name := range []string{"process", "open files", "cgroup", "nvml", "kernel", "engine", "allocator", "logs", "podresources", "engine library", "nats"} {
		if _, ok := seen[name]; !ok {
			t.Errorf("no check %q in %s", name, out.Bytes())
		}
	}
}

func TestDoctorSeesWhatIsThere(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"proc/stat": "btime 1790000000\n", "proc/meminfo": "MemTotal: 1 kB\n", "sys/fs/cgroup/cgroup.controllers": "memory\n", "dev/kmsg": "",
		"usr/lib64/libnvidia-ml.so.1": "", "dev/nvidiactl": "",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	folder, err := os.MkdirTemp("", "lt") // a socket's path has 107 characters at most
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	probes, err := allocator.Listen(allocator.Options{Socket: filepath.Join(folder, "p.sock")})
	if err != nil {
		t.Fatal(err)
	}
	defer probes.Close()
	d := &DoctorCommand{Root: root, ProbeSocket: filepath.Join(folder, "p.sock")}
	absent := map[string]bool{"engine": true, "logs": true, "podresources": true} // nothing listens, and this is no Kubernetes node
	for _, c := range d.Checks(t.Context()) {
		want := "ok"
		if absent[c.Name] {
			want = "absent"
		}
		if c.Name == "kernel" {
			want = "unsupported" // a file in the place of the device, as some containers have it, opens and cannot be followed
		}
		if c.Name != "engine library" && (c.Status != want || (c.Hint == "") != (want == "ok")) {
			t.Errorf("check %+v, want %s", c, want)
		}
	}
	var out bytes.Buffer
	d.Stdout = &out
	if err := d.Run(t.Context()); err != nil || !strings.Contains(out.String(), "cgroup") {
		t.Errorf("%v: %s", err, out.String())
	}
	// The library alone is not enough: the device must be reachable too.
	if err := os.Remove(filepath.Join(root, "dev/nvidiactl")); err != nil {
		t.Fatal(err)
	}
	if c := d.nvml(t.Context()); c.Status != "absent" || !strings.Contains(c.Hint, "/dev/nvidia") {
		t.Errorf("without a device: %+v", c)
	}
}
