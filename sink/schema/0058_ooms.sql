CREATE OR REPLACE VIEW {database}.ooms AS
SELECT time, cluster, host, slot, worker_key, pid, release, gpu_uuid, kind, requested_bytes, free_bytes, text
FROM {database}.events
WHERE event = 'oom' AND time >= {since:DateTime64(3, 'UTC')} AND time < {until:DateTime64(3, 'UTC')}
UNION ALL
SELECT c.time, c.cluster, c.host, c.slot, c.worker_key, c.pid, c.release, c.gpu_uuid, 'counter' AS kind, NULL AS requested_bytes, NULL AS free_bytes,
    concat('ooms_total rose by ', toString(c.ooms_total - c.ooms_before)) AS text
FROM (
    SELECT s.time AS time, s.cluster AS cluster, s.host AS host, s.slot AS slot, s.worker_key AS worker_key, s.pid AS pid, s.release AS release,
        s.gpu_uuid AS gpu_uuid, s.ooms_total AS ooms_total,
        lagInFrame(s.ooms_total, 1, s.ooms_total) OVER (PARTITION BY s.worker_key, s.gpu_uuid ORDER BY s.time ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS ooms_before
    FROM {database}.worker_samples AS s
    WHERE (s.cluster, s.host, s.worker_key) IN (
            SELECT r.cluster, r.host, r.worker_key FROM {database}.worker_minute_rollup AS r
            WHERE r.minute >= toStartOfMinute({since:DateTime64(3, 'UTC')}) AND r.minute < {until:DateTime64(3, 'UTC')}
            GROUP BY r.cluster, r.host, r.worker_key HAVING max(r.ooms_total) > min(r.ooms_least_total))
        AND s.ooms_total IS NOT NULL AND s.time >= {since:DateTime64(3, 'UTC')} AND s.time < {until:DateTime64(3, 'UTC')}
) AS c
LEFT JOIN (
    SELECT worker_key, groupArray(time) AS times FROM {database}.events
    WHERE event = 'oom' AND time >= {since:DateTime64(3, 'UTC')} AND time < {until:DateTime64(3, 'UTC')} GROUP BY worker_key
) AS told ON told.worker_key = c.worker_key
WHERE c.ooms_total > c.ooms_before AND NOT arrayExists(t -> abs(dateDiff('second', t, c.time)) <= 120, told.times)
COMMENT 'failed allocations: those that were told, and steps of the counter that no text tells of'
