CREATE VIEW IF NOT EXISTS {database}.quiet_points AS
SELECT
    p.1 AS time, slot, p.2 AS live_bytes,
    live_bytes - lagInFrame(toNullable(live_bytes), 1, NULL) OVER (PARTITION BY worker_key, gpu_uuid ORDER BY ten ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS live_step_bytes,
    p.3 AS outside_bytes, p.4 AS cached_bytes, p.5 AS anon_bytes, p.6 AS kv_usage, p.7 AS finished_total, p.8 AS aborted_total, toBool(p.9) AS warming,
    cluster, host, worker_key, pid, model, release, gpu_uuid
FROM (
    SELECT *, row_number() OVER (PARTITION BY worker_key, gpu_uuid, work, intDiv(dateDiff('second', first_ten, ten), 3600) ORDER BY ten) AS place
    FROM (
        SELECT cluster, host, slot, worker_key, pid, model, release, gpu_uuid, toStartOfInterval(minute, INTERVAL 10 MINUTE) AS ten,
            argMin(tuple(minute, live_bytes, outside_bytes, cached_bytes, anon_bytes, kv_usage, finished_total, aborted_total,
                ifNull(minute < start_time + INTERVAL 20 MINUTE, false)), ifNull(live_bytes, ifNull(used_bytes, anon_bytes))) AS p,
            max(ifNull(finished_total, 0) + ifNull(aborted_total, 0) + ifNull(errors_total, 0)) AS work,
            min(ten) OVER (PARTITION BY worker_key, gpu_uuid, work) AS first_ten
        FROM (
            SELECT *, ifNull(running = 0 AND ifNull(waiting, 0) = 0, false) AS still,
                still AND (lagInFrame(still, 1, false) OVER around AND minute - lagInFrame(minute, 1, minute) OVER around <= 120
                    OR leadInFrame(still, 1, false) OVER around AND leadInFrame(minute, 1, minute) OVER around - minute <= 120) AS quiet
            FROM {database}.worker_minutes(since = {since:DateTime64(3, 'UTC')}, until = {until:DateTime64(3, 'UTC')},
                worker = {worker:String}, slot = {slot:String}, host = {host:String}, release = {release:String})
            WINDOW around AS (PARTITION BY worker_key, gpu_uuid ORDER BY minute ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING)
        )
        WHERE quiet
        GROUP BY cluster, host, slot, worker_key, pid, model, release, gpu_uuid, ten
    )
)
WHERE place = 1
ORDER BY slot, gpu_uuid, time
COMMENT 'the quiet points of a worker: nothing ran or waited for two minutes, the lowest of ten minutes, with work since the one before or an hour later'
