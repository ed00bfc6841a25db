package rules

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
)

// Fingerprint tells a rule from one that is judged differently, or says something else. It depends on what is written, in the rule and in its
// advice, and on nothing else: where it is written, comments and the order of fields do not matter.
func (r *Rule) Fingerprint() uint64 { return r.print }

// fingerprint is computed once the rule is compiled: thresholds count as they were merged, so that the same numbers are the same rule.
func fingerprint(s *spec, r *Rule) uint64 {
	sum := fnv.New64a()
	write := func(text string) {
		var length [8]byte
		binary.LittleEndian.PutUint64(length[:], uint64(len(text)))
		sum.Write(length[:])
		sum.Write([]byte(text))
	}
	write(s.id)
	for _, name := range slices.Sorted(maps.Keys(s.fields)) {
		if name == "thresholds" || name == "advice" {
			continue
		}
		write(name)
		if value := s.fields[name].value; value != nil {
			write(value.String())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Thresholds)) {
		write(name)
		write(fmt.Sprintf("%x", r.Thresholds[name]))
	}
	for _, line := range r.Advice {
		write(line)
	}
	return sum.Sum64()
}
