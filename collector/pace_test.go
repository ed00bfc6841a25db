package collector

import (
	"testing"
	"time"
)

// Thirty-two small messages a second, whatever the burst, and a large one counts for its bytes: 1 MiB is worth 128 of them, four seconds.
func TestPace(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	p := pace{rate: 32 * messageCost}
	p.start(now)
	sent := func(bytes int, seconds int) (count int) {
		for end := now.Add(time.Duration(seconds) * time.Second); ; {
			wait := p.delay(costOf(bytes), now)
			if !now.Add(wait).Before(end) {
				now = end
				return count
			}
			now = now.Add(wait)
			if wait == 0 {
				p.spend(costOf(bytes))
				count++
			}
		}
	}
	if got := sent(100, 100); got < 3190 || got > 3210 {
		t.Errorf("%d small messages in 100 s, want 3200", got)
	}
	if got := sent(1<<20, 100); got < 24 || got > 26 {
		t.Errorf("%d messages of 1 MiB in 100 s, want 25", got)
	}
	now = now.Add(time.Hour) // nothing waited, or the broker was slow: no hour's worth is sent at once
	if got := sent(100, 1); got > 32+9 {
		t.Errorf("%d messages in the second after an hour, want 32 and a quarter of a second's", got)
	}
	for range 1000 {
		p.admit(costOf(100))
	}
	if got := sent(100, 10); got < 1300 || got > 1340 {
		t.Errorf("%d messages in 10 s while 1000 came, want 1320", got)
	}
	p.admit(costOf(100))
	p.start(now)
	p.spend(costOf(100))
	now = now.Add(-time.Hour) // of a clock without a monotonic reading
	if wait := p.delay(costOf(100), now); wait <= 0 || wait > time.Second {
		t.Errorf("wait %v at a clock that went back", wait)
	}
}
