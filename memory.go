package main

import (
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// ownShare is the part of the cgroup's memory, or of the machine's where there is no such limit, that the collector of garbage may let
// grow: the embedded ClickHouse, the pages of the broker's files and other programs have the rest.
const ownShare = 0.5

// boundMemory sets what a process that judges lets its heap grow to. What is remembered of the workers is large and lives long, and
// messages are small and do not: garbage may become twice what lives, as long as there is room. After an outage everything is read as
// fast as it goes, which needs several times the memory of every day; on a small machine garbage is then collected more often, rather than
// the process killed in the middle of it. GOGC and GOMEMLIMIT of the environment win.
func boundMemory(log *slog.Logger) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200)
	}
	limit, err := memlimit.Set(memlimit.WithRatio(ownShare), memlimit.WithProvider(memlimit.ApplyFallback(memlimit.FromCgroup, memlimit.FromSystem)))
	if err != nil {
		log.Warn("the heap has no limit of its own", "error", err, "hint", "set GOMEMLIMIT")
		return
	}
	log.Debug("the heap has a soft limit", "bytes", limit)
}
