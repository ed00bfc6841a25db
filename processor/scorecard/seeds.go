package scorecard

import (
	"fmt"
	"strconv"
	"strings"
)

// The seeds that thresholds are tuned on end here; what is reported is measured on others.
const lastTuningSeed = 999

// Seeds is a range of seeds, both ends included.
type Seeds struct {
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}

func (s Seeds) count() uint64 { return s.To - s.From + 1 }

// String is the form that UnmarshalText reads.
func (s Seeds) String() string { return fmt.Sprintf("%d-%d", s.From, s.To) }

// UnmarshalText reads "1000-1009" or "7".
func (s *Seeds) UnmarshalText(text []byte) error {
	from, to, isRange := strings.Cut(string(text), "-")
	if !isRange {
		to = from
	}
	var err error
	if s.From, err = strconv.ParseUint(from, 10, 32); err == nil {
		s.To, err = strconv.ParseUint(to, 10, 32)
	}
	if err != nil || s.To < s.From || s.count() > 10_000 {
		return fmt.Errorf("seeds %q: want one number, or FROM-TO with at most 10000 seeds", text)
	}
	return nil
}
