CREATE VIEW IF NOT EXISTS {database}.before_incident AS
SELECT slot, gpu_uuid, reading.1 AS measure, reading.3 AS hour_before, reading.4 AS at_first, at_first - hour_before AS change, reading.2 AS unit, first_time
FROM (
    SELECT slot, gpu_uuid, first_time, arrayJoin([
        ('live', 'bytes', medianIf(live, before), medianIf(live, NOT before)), ('cached', 'bytes', medianIf(cached, before), medianIf(cached, NOT before)),
        ('process on the card', 'bytes', medianIf(used, before), medianIf(used, NOT before)), ('host memory', 'bytes', medianIf(anon, before), medianIf(anon, NOT before)),
        ('kv', 'ratio', medianIf(kv, before), medianIf(kv, NOT before)), ('running', '', medianIf(running, before), medianIf(running, NOT before)),
        ('waiting', '', medianIf(waiting, before), medianIf(waiting, NOT before)), ('ttft p95', 'seconds', medianIf(ttft, before), medianIf(ttft, NOT before)),
        ('itl p95', 'seconds', medianIf(itl, before), medianIf(itl, NOT before)), ('file handles', '', medianIf(fds, before), medianIf(fds, NOT before)),
        ('threads', '', medianIf(threads, before), medianIf(threads, NOT before))]) AS reading
    FROM (
        SELECT s.slot AS slot, s.gpu_uuid AS gpu_uuid, i.first_time AS first_time, s.time < i.first_time - INTERVAL 30 MINUTE AS before,
            toFloat64(s.allocated_bytes) AS live, toFloat64(s.reserved_bytes) - toFloat64(s.active_bytes) AS cached, toFloat64(s.used_bytes) AS used,
            toFloat64(ifNull(s.anon_bytes, s.rss_bytes)) AS anon, s.kv_usage AS kv, toFloat64(s.running) AS running, toFloat64(s.waiting) AS waiting,
            s.ttft_p95_seconds AS ttft, s.itl_p95_seconds AS itl, toFloat64(s.fds) AS fds, toFloat64(s.threads) AS threads
        FROM {database}.worker_samples AS s
        INNER JOIN (
            SELECT cluster, host, argMin(slot, time) AS slot, min(time) AS first_time
            FROM {database}.findings WHERE startsWith(incident, {incident:String}) GROUP BY incident, cluster, host
        ) AS i ON i.cluster = s.cluster AND i.host = s.host
        WHERE s.time >= (SELECT min(time) - INTERVAL 2 HOUR FROM {database}.findings WHERE startsWith(incident, {incident:String}))
            AND (i.slot = '' OR s.slot = i.slot)
            AND (s.time > i.first_time - INTERVAL 65 MINUTE AND s.time <= i.first_time - INTERVAL 55 MINUTE
                OR s.time > i.first_time - INTERVAL 10 MINUTE AND s.time <= i.first_time)
    )
    GROUP BY slot, gpu_uuid, first_time
)
WHERE hour_before IS NOT NULL OR at_first IS NOT NULL
COMMENT 'medians of the ten minutes around an hour before an incident was first called, beside those of the ten minutes before the call'
