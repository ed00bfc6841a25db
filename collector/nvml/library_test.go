//go:build cgo

package nvml

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/collector/status"
	"lowtide/event"
)

// oldLibrary builds testdata/old_nvml.c.
func oldLibrary(t testing.TB) string {
	t.Helper()
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("SKIPPED: no cc to build a library with")
	}
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if out, err := exec.CommandContext(t.Context(), compiler, "-shared", "-fPIC", "-o", path, "testdata/old_nvml.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// The whole way, through the real bindings and a real child: what the library lacks must not be called.
func TestLibraryOfAnOldDriver(t *testing.T) {
	s := openChild(t, "library", Options{Library: oldLibrary(t)})
	tick := time.Now().UTC()
	events, err := s.Collect(t.Context(), tick)
	if err != nil {
		t.Fatal(err)
	}
	events = slices.DeleteFunc(events, func(e *event.Event) bool { return e.Xid != nil })
	if len(events) != 24 {
		t.Fatalf("%d events of 8 cards with two processes each", len(events))
	}
	var lines []string
	for _, e := range events[3:6] {
		line, err := event.MarshalEvent(e)
		if err != nil {
			t.Fatal(err)
		}
		_, body, _ := strings.Cut(string(line), `Z",`)
		lines = append(lines, body)
	}
	const uuid = "GPU-0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f1"
	for i, want := range []string{
		`"gpu":{"uuid":"` + uuid + `","index":1,"name":"Tesla V100-SXM2-32GB","total_bytes":34359738368,"used_bytes":5492310016,"free_bytes":28867428352,` +
			`"processes_complete":false,"power_watts":61.25,"temperature_celsius":41,"utilization":0.5,"ecc_corrected_total":1,"ecc_uncorrected_total":2}}`,
		`"worker":{"pid":4242},"gpu_process":{"gpu_uuid":"` + uuid + `","used_bytes":4847370240}}`,
		`"worker":{"pid":4343},"gpu_process":{"gpu_uuid":"` + uuid + `"}}`,
	} {
		if lines[i] != want {
			t.Errorf("%s\nwant %s", lines[i], want)
		}
	}
}

func TestXidThroughTheLibrary(t *testing.T) {
	s := openChild(t, "library", Options{Library: oldLibrary(t)})
	s.options.Interval = time.Hour // the second call only takes what waits
	first, err := s.Collect(t.Context(), time.Now().UTC())
	if err != nil {
		t.Fatal(err)
	}
	<-s.Wake()
	second, err := s.Collect(t.Context(), time.Now().UTC())
	if err != nil {
		t.Fatal(err)
	}
	xids := slices.DeleteFunc(append(first, second...), func(e *event.Event) bool { return e.Xid == nil })
	if len(xids) != 1 || xids[0].Xid.GetCode() != 31 || xids[0].Xid.Pci != "0000:1b:00" || xids[0].Xid.Source != "nvml" ||
		xids[0].Xid.GpuUuid != "GPU-0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f1" {
		t.Errorf("%v", xids)
	}
}

func TestNoLibrary(t *testing.T) {
	s := openChild(t, "library", Options{Library: filepath.Join(t.TempDir(), "libnvidia-ml.so.1")})
	if got, err := collect(t, s, time.Minute); got != "" || status.Of(err) != status.Absent || !strings.Contains(err.Error(), "no libnvidia-ml.so.1") {
		t.Errorf("%q, %v", got, err)
	}
}

// BenchmarkCollect is one tick of eight cards with two processes each through a real child and a library that costs nothing.
func BenchmarkCollect(b *testing.B) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	s := New(Options{Command: []string{self, "child", "library"}, Library: oldLibrary(b), Interval: time.Nanosecond})
	defer s.Close()
	if _, err := s.Collect(b.Context(), time.Now()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.Collect(b.Context(), time.Now()); err != nil {
			b.Fatal(err)
		}
	}
}
