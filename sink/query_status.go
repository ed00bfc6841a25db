package sink

import (
	"context"
	"fmt"
	"os"
)

// StatusCommand is `lowtide status`.
type StatusCommand struct {
	Access
	JSON bool `name:"json" help:"One JSON object a row."`
}

// fleetQuery has the newest reading of each sensor within the hour; one that was not read in that time stays empty.
const fleetQuery = `SELECT
    w.slot AS worker, w.host AS host, w.gpu AS gpu, w.model AS model, w.release AS release,
    %s, w.kv AS kv, w.running AS running, w.seen AS last_seen, i.verdict AS verdict
FROM (
    SELECT slot, gpu_uuid AS gpu, any(host) AS host, argMax(model, time) AS model, argMax(release, time) AS release,
        argMax(allocated_bytes, time) AS live,
        argMax(toInt64(used_bytes) - toInt64(reserved_bytes), time) AS outside,
        round(argMax(kv_usage, time), 3) AS kv, argMax(running, time) AS running, max(time) AS seen
    FROM workers WHERE time > now() - INTERVAL 1 HOUR OR slot IN (SELECT slot FROM incidents FINAL WHERE state != 'resolved')
    GROUP BY slot, gpu_uuid
) AS w
LEFT JOIN (
    SELECT slot, arrayStringConcat(arraySort(groupUniqArray(concat(class, ' ', state))), ', ') AS verdict
    FROM incidents FINAL WHERE state != 'resolved' GROUP BY slot
) AS i ON i.slot = w.slot
ORDER BY host, worker, gpu`

// Run prints one table of the fleet; bytes are numbers with --json and readable otherwise.
func (c *StatusCommand) Run(ctx context.Context) error {
	if c.JSON {
		return c.ask(ctx, fmt.Sprintf(fleetQuery, "w.live AS live_bytes, w.outside AS outside_bytes"), "JSONEachRow", os.Stdout)
	}
	return c.ask(ctx, fmt.Sprintf(fleetQuery, "formatReadableSize(w.live) AS live, formatReadableSize(w.outside) AS outside"),
		"PrettyCompactNoEscapes", os.Stdout)
}
