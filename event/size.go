package event

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes as people write it in flags and settings: 12GiB, 1.5GiB, 512MiB or plain digits.
type Size uint64

// UnmarshalText reads the number and its unit: none, B, KiB, MiB, GiB or TiB.
func (s *Size) UnmarshalText(text []byte) error {
	t := strings.TrimSpace(string(text))
	factor := 1.0
	for _, unit := range []struct {
		name  string
		bytes float64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"B", 1}} {
		if digits, ok := strings.CutSuffix(t, unit.name); ok {
			t, factor = strings.TrimSpace(digits), unit.bytes
			break
		}
	}
	v, err := strconv.ParseFloat(t, 64)
	if bytes := v * factor; err != nil || !(bytes >= 0) || bytes > 1<<60 || math.Signbit(v) {
		return fmt.Errorf("%q is not a number of bytes\nhint: write 12GiB, 1.5GiB, 512MiB or digits", text)
	}
	*s = Size(math.Round(v * factor))
	return nil
}
