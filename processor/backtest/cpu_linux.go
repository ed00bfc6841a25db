package backtest

import (
	"syscall"
	"time"
)

const rusageThread = 1 // RUSAGE_THREAD of getrusage(2)

// processorTime is what the thread has taken so far.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(rusageThread, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
