//go:build gpu && cgo

package nvml

import (
	"math"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"lowtide/collector/status"
	"lowtide/event"
)

// smi asks nvidia-smi, the driver's own witness, and returns the rows.
func smi(t *testing.T, query string) [][]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nvidia-smi", query, "--format=csv,noheader,nounits").Output()
	if err != nil {
		t.Fatalf("nvidia-smi %s: %v", query, err)
	}
	var rows [][]string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line != "" {
			rows = append(rows, strings.Split(line, ", "))
		}
	}
	return rows
}

const (
	smiUnit     = 1 << 20  // nvidia-smi rounds to MiB
	memorySlack = 64 << 20 // other programs, nvidia-smi among them, come and go between the two readings
)

func mebibytes(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatalf("nvidia-smi says %q", text)
	}
	return n * smiUnit
}

func near(got uint64, want, slack float64) bool { return math.Abs(float64(got)-want) <= slack }

// What the source says of this machine's cards must be what nvidia-smi says, and a second reading must come from the same child.
func TestAgreesWithSMI(t *testing.T) {
	s := openChild(t, "library", Options{})
	var cards map[string]*event.Gpu
	var processes []*event.Event
	for range 2 {
		events, err := s.Collect(t.Context(), time.Now().UTC())
		if err != nil {
			t.Errorf("status %s: %v", status.Of(err), err)
		}
		cards, processes = make(map[string]*event.Gpu), nil
		for _, e := range events {
			if err := event.Validate(e); err != nil {
				t.Errorf("%v: %v", e, err)
			}
			if e.Gpu != nil {
				cards[e.Gpu.Uuid] = e.Gpu
			}
			if e.GpuProcess != nil {
				processes = append(processes, e)
			}
		}
	}
	rows := smi(t, "--query-gpu=uuid,memory.used,memory.total,temperature.gpu,memory.reserved")
	if len(rows) == 0 {
		t.Fatal("nvidia-smi knows no card")
	}
	for _, row := range rows {
		g := cards[row[0]]
		if g == nil {
			t.Errorf("no event for %s", row[0])
			continue
		}
		if g.UsedBytes == nil || g.TotalBytes == nil || g.DriverReservedBytes == nil || g.TemperatureCelsius == nil || g.PowerWatts == nil || g.Utilization == nil {
			t.Errorf("incomplete: %v", g)
			continue
		}
		if !near(*g.UsedBytes, mebibytes(t, row[1]), memorySlack) || !near(*g.TotalBytes, mebibytes(t, row[2]), smiUnit) ||
			!near(*g.DriverReservedBytes, mebibytes(t, row[4]), smiUnit) {
			t.Errorf("%v\nnvidia-smi: %v", g, row)
		}
		if celsius, err := strconv.ParseFloat(row[3], 64); err != nil || math.Abs(celsius-*g.TemperatureCelsius) > 3 {
			t.Errorf("%v °C, nvidia-smi: %v", *g.TemperatureCelsius, row[3])
		}
		if *g.Utilization < 0 || *g.Utilization > 1 || *g.PowerWatts < 5 || *g.PowerWatts > 2000 {
			t.Errorf("utilization %v, %v W", *g.Utilization, *g.PowerWatts)
		}
		if *g.UsedBytes+*g.FreeBytes+*g.DriverReservedBytes != *g.TotalBytes {
			t.Errorf("used + free + reserved is not the total: %v", g)
		}
		t.Logf("%v", g)
	}
	for _, row := range smi(t, "--query-compute-apps=gpu_uuid,pid,used_memory") {
		i := slices.IndexFunc(processes, func(e *event.Event) bool {
			return e.GpuProcess.GpuUuid == row[0] && strconv.FormatInt(e.Worker.Pid, 10) == row[1]
		})
		if i < 0 {
			t.Errorf("no event for pid %s on %s", row[1], row[0])
			continue
		}
		used := processes[i].GpuProcess.UsedBytes
		if strings.HasPrefix(row[2], "[") { // [N/A], [Not Supported]
			if used != nil {
				t.Errorf("pid %s uses %d bytes, nvidia-smi: %s", row[1], *used, row[2])
			}
		} else if used == nil || !near(*used, mebibytes(t, row[2]), memorySlack) {
			t.Errorf("pid %s: %v, nvidia-smi: %s MiB", row[1], processes[i].GpuProcess, row[2])
		}
		t.Logf("%v", processes[i])
	}
}
