//go:build !linux

package backtest

import "time"

// processorTime is not known for one thread here; the cost is then left out.
func processorTime() time.Duration { return 0 }
