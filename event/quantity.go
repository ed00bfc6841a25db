package event

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// FormatQuantity writes a value as a person reads it: 1.9 GiB/h, 12 %, 44.5 s. Units are those of the rule variables: bytes,
// ratio, seconds, hours, 1 (a count) and any of them per something (bytes/h, 1/h, bytes/abort).
func FormatQuantity(value float64, unit string) string {
	if math.IsNaN(value) {
		return "unknown"
	}
	base, per, divided := strings.Cut(unit, "/")
	if divided {
		per = "/" + per
	}
	switch base {
	case "bytes":
		return formatBytes(value) + per
	case "ratio":
		return number(value*100) + " %" + per
	case "seconds":
		return number(value) + " s" + per
	case "hours":
		return number(value) + " h" + per
	case "1", "":
		return number(value) + per
	}
	return number(value) + " " + unit
}

func formatBytes(value float64) string {
	for _, step := range []struct {
		size float64
		name string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if math.Abs(value) >= step.size {
			return number(value/step.size) + " " + step.name
		}
	}
	return number(value) + " B"
}

// number keeps three significant digits, and whole numbers whole.
func number(value float64) string {
	switch size := math.Abs(value); {
	case value == math.Trunc(value) && size < 1e6:
		return strconv.FormatFloat(value, 'f', 0, 64)
	case size >= 100:
		return fmt.Sprintf("%.0f", value)
	case size >= 10:
		return fmt.Sprintf("%.1f", value)
	case size >= 0.01:
		return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", value), "0"), ".")
	}
	return strconv.FormatFloat(value, 'g', 2, 64)
}
