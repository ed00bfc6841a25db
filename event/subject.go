package event

import (
	"strconv"
	"strings"
)

// The streams, and the number of partitions that events are spread over. Changing the number re-hashes every host.
const (
	StreamEvents   = "LOWTIDE_EVENTS"
	StreamFindings = "LOWTIDE_FINDINGS"
	PartitionCount = 64
)

// AllSources stands in a Batch and in its subject where one source would, when the events are of several.
const AllSources = "all"

// SubjectFor returns the subject that a collector publishes to: lowtide.event.<cluster>.<host>.<source>.
func SubjectFor(cluster, host, source string) string {
	return "lowtide.event." + cluster + "." + host + "." + source
}

// SplitSubject returns cluster and host of a subject as published (lowtide.event.…) or as stored (lowtide.p.<partition>.…).
func SplitSubject(subject string) (cluster, host string, ok bool) {
	tokens := strings.Split(subject, ".")
	switch {
	case len(tokens) == 5 && tokens[0] == "lowtide" && tokens[1] == "event":
		return tokens[2], tokens[3], true
	case len(tokens) == 6 && tokens[0] == "lowtide" && tokens[1] == "p":
		return tokens[3], tokens[4], true
	}
	return "", "", false
}

// PartitionOf returns the partition of a subject as stored.
func PartitionOf(subject string) (partition int, ok bool) {
	rest, ok := strings.CutPrefix(subject, "lowtide.p.")
	if !ok {
		return 0, false
	}
	text, _, _ := strings.Cut(rest, ".")
	partition, err := strconv.Atoi(text)
	if err != nil || partition < 0 || partition >= PartitionCount {
		return 0, false
	}
	return partition, true
}

// MessageID is what the server drops duplicates by: host, producer, lane and sequence.
func MessageID(host, producer, lane string, sequence uint64) string {
	return host + "/" + producer + "/" + lane + "/" + strconv.FormatUint(sequence, 10)
}

// FindingSubject returns the subject of a finding: lowtide.finding.<incident>, or lowtide.shadow.<incident>, which nobody announces.
func FindingSubject(f *Finding) string {
	if f.Shadow {
		return "lowtide.shadow." + Token(f.Incident)
	}
	return "lowtide.finding." + Token(f.Incident)
}
