package scorecard

import (
	"slices"
	"strings"

	"lowtide/processor/worker"
)

// hidden are the classes that cannot be judged where a sensor is missing, and how the sensor's name begins.
var hidden = map[string]struct {
	sensor  string
	classes []string
}{
	"no-probe":   {"allocator", []string{"retention", "native_growth", "graph_pools", "stream_backlog"}},
	"no-engine":  {"engine", []string{"kv_block_leak", "kv_pressure"}},
	"no-process": {"process", []string{"fd_leak", "host_memory", "thread_leak"}},
}

// blindSpot is one class of one worker that its sensors cannot settle, and what the report says about it.
type blindSpot struct {
	class, want, got string // the sensor's name; got is empty when the report does not say that the class is not assessable
}

func (b blindSpot) told() bool { return strings.HasPrefix(b.got, b.want) }

// blindSpots asks each report for the classes that the missing sensor hides.
func blindSpots(sensors string, reports []worker.Report) (out []blindSpot) {
	of, missing := hidden[sensors]
	if !missing {
		return nil
	}
	for _, r := range reports {
		if r.Who.GetRole() == "other" {
			continue
		}
		for _, class := range of.classes {
			out = append(out, blindSpot{class, of.sensor, r.Missing[class]})
		}
	}
	slices.SortFunc(out, func(a, b blindSpot) int { return strings.Compare(a.class, b.class) })
	return out
}
