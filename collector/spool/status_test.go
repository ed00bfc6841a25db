package spool

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"lowtide/event"
)

// A record of 100 bytes has 164 in its file: 24 of frame and numbers, 22 of subject, 18 of id (19 from sequence 10 on); a segment begins with 16.
func TestMetricsSayWhatWaits(t *testing.T) {
	now := time.Unix(1_800_000_100, 0)
	s := open(t, Options{Folder: t.TempDir(), MaxBytes: 1 << 20, now: func() time.Time { return now }})
	defer closeIt(t, s)
	fill(t, s.Lane(event.LaneSamples), 1, 3, 100)
	fill(t, s.Lane(event.LaneUrgent), 40, 40, 100)
	take(t, s.Lane(event.LaneSamples))
	want := `
# HELP lowtide_spool_bytes Bytes that wait on disk for the broker.
# TYPE lowtide_spool_bytes gauge
lowtide_spool_bytes{lane="samples"} 328
lowtide_spool_bytes{lane="urgent"} 165
# HELP lowtide_spool_disk_bytes Bytes of all segments on disk, sent or not.
# TYPE lowtide_spool_disk_bytes gauge
lowtide_spool_disk_bytes 689
# HELP lowtide_spool_events Events that wait on disk for the broker.
# TYPE lowtide_spool_events gauge
lowtide_spool_events{lane="samples"} 4
lowtide_spool_events{lane="urgent"} 2
# HELP lowtide_spool_messages Messages that wait on disk for the broker.
# TYPE lowtide_spool_messages gauge
lowtide_spool_messages{lane="samples"} 2
lowtide_spool_messages{lane="urgent"} 1
# HELP lowtide_spool_oldest_seconds For how long the oldest message has waited on disk, by the wall clock; 0 when none waits.
# TYPE lowtide_spool_oldest_seconds gauge
lowtide_spool_oldest_seconds{lane="samples"} 99
lowtide_spool_oldest_seconds{lane="urgent"} 60
# HELP lowtide_spool_write_failed 1 while the last write failed, as on a full disk.
# TYPE lowtide_spool_write_failed gauge
lowtide_spool_write_failed 0
`
	if err := testutil.CollectAndCompare(s, strings.NewReader(want), "lowtide_spool_bytes", "lowtide_spool_disk_bytes", "lowtide_spool_events", "lowtide_spool_messages",
		"lowtide_spool_oldest_seconds", "lowtide_spool_write_failed"); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.CollectAndLint(s); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(s); err != nil {
		t.Error(err)
	}
	if _, err := registry.Gather(); err != nil {
		t.Error(err)
	}
}
