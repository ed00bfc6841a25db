CREATE OR REPLACE VIEW {database}.worker_minutes AS
SELECT
    w.minute AS minute, w.cluster AS cluster, w.host AS host, w.slot AS slot, w.worker_key AS worker_key, w.pid AS pid,
    w.start_time AS start_time, w.model AS model, w.release AS release, w.gpu_uuid AS gpu_uuid,
    w.live_bytes AS live_bytes, w.awaiting_bytes AS awaiting_bytes, w.cached_bytes AS cached_bytes, w.reserved_bytes AS reserved_bytes,
    w.used_bytes AS used_bytes, w.outside_bytes AS outside_bytes,
    w.anon_bytes AS anon_bytes, w.pinned_bytes AS pinned_bytes, w.fds AS fds, w.threads AS threads, w.ooms_total AS ooms_total,
    e.running AS running, e.waiting AS waiting, e.kv_usage AS kv_usage, e.ttft_p95_seconds AS ttft_p95_seconds,
    e.itl_p95_seconds AS itl_p95_seconds, e.preemptions_total AS preemptions_total,
    e.finished_total AS finished_total, e.aborted_total AS aborted_total, e.errors_total AS errors_total
FROM {database}.memory_minutes(since = {since:DateTime64(3, 'UTC')}, until = {until:DateTime64(3, 'UTC')},
    worker = {worker:String}, slot = {slot:String}, host = {host:String}, release = {release:String}) AS w
LEFT JOIN (
    SELECT
        r.instance_hash AS instance_hash, r.minute AS minute, max(r.running_most) AS running, max(r.waiting_most) AS waiting, max(r.kv_usage_most) AS kv_usage,
        max(r.ttft_p95_most_seconds) AS ttft_p95_seconds, max(r.itl_p95_most_seconds) AS itl_p95_seconds, max(r.preemptions_total) AS preemptions_total,
        max(r.finished_total) AS finished_total, max(r.aborted_total) AS aborted_total, max(r.errors_total) AS errors_total
    FROM {database}.instance_minute_rollup AS r
    WHERE r.minute >= toStartOfMinute({since:DateTime64(3, 'UTC')}) AND r.minute < {until:DateTime64(3, 'UTC')}
        AND ({host:String} = '' OR r.host = {host:String}) AND ({slot:String} = '' OR r.host = splitByChar('/', {slot:String})[2])
        AND ({worker:String} = '' OR r.host IN (
            SELECT n.host FROM {database}.worker_hour_rollup AS n
            WHERE {worker:String} != '' AND n.hour >= toStartOfHour({since:DateTime64(3, 'UTC')}) AND n.hour < {until:DateTime64(3, 'UTC')}
                AND (position(n.slot, {worker:String}) > 0 OR position(n.pod, {worker:String}) > 0 OR toString(n.pid) = {worker:String})))
    GROUP BY r.instance_hash, r.minute
) AS e ON e.instance_hash = w.instance_hash AND e.minute = w.minute
COMMENT 'one row per worker, card and minute: the lowest memory and the highest load of the minute'
