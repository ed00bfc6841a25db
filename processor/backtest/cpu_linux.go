package backtest

import (
	"time"

	"golang.org/x/sys/unix"
)

// processorTime is what the thread has taken so far. The clock is exact where getrusage may count in ticks, of which a short test has none.
func processorTime() time.Duration {
	var spent unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &spent) != nil {
		return 0
	}
	return time.Duration(spent.Nano())
}
