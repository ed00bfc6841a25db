CREATE VIEW IF NOT EXISTS {database}.worker_minutes AS
SELECT
    w.minute AS minute, w.cluster AS cluster, w.host AS host, w.slot AS slot, w.worker_key AS worker_key, w.pid AS pid,
    w.start_time AS start_time, w.model AS model, w.release AS release, w.gpu_uuid AS gpu_uuid,
    w.live_bytes AS live_bytes, w.awaiting_bytes AS awaiting_bytes, w.cached_bytes AS cached_bytes, w.reserved_bytes AS reserved_bytes,
    w.used_bytes AS used_bytes, w.used_bytes - w.reserved_bytes AS outside_bytes,
    w.anon_bytes AS anon_bytes, w.pinned_bytes AS pinned_bytes, w.fds AS fds, w.threads AS threads, w.ooms_total AS ooms_total,
    e.running AS running, e.waiting AS waiting, e.kv_usage AS kv_usage, e.ttft_p95_seconds AS ttft_p95_seconds,
    e.itl_p95_seconds AS itl_p95_seconds, e.preemptions_total AS preemptions_total,
    e.finished_total AS finished_total, e.aborted_total AS aborted_total, e.errors_total AS errors_total
FROM (
    SELECT
        toStartOfMinute(s.time) AS minute, s.cluster AS cluster, s.host AS host, s.worker_key AS worker_key, s.gpu_uuid AS gpu_uuid,
        any(s.slot) AS slot, any(s.pid) AS pid, any(s.start_time) AS start_time, any(s.model) AS model, any(s.release) AS release,
        substring(slot, 1, length(slot) - position(reverse(slot), '/')) AS instance,
        toInt64(min(s.allocated_bytes)) AS live_bytes, min(toInt64(s.active_bytes) - toInt64(s.allocated_bytes)) AS awaiting_bytes,
        min(toInt64(s.reserved_bytes) - toInt64(s.active_bytes)) AS cached_bytes,
        toInt64(min(s.reserved_bytes)) AS reserved_bytes, toInt64(min(s.used_bytes)) AS used_bytes,
        toInt64(min(ifNull(s.anon_bytes + ifNull(s.swap_bytes, 0), s.rss_bytes))) AS anon_bytes,
        toInt64(min(coalesce(s.pinned_allocated_bytes, s.pinned_kernel_bytes))) AS pinned_bytes,
        toInt64(min(s.fds)) AS fds, toInt64(min(s.threads)) AS threads, max(s.ooms_total) AS ooms_total
    FROM {database}.worker_samples AS s
    WHERE s.time >= {since:DateTime64(3, 'UTC')} AND s.time < {until:DateTime64(3, 'UTC')}
        AND ({host:String} = '' OR s.host = {host:String}) AND ({slot:String} = '' OR s.host = splitByChar('/', {slot:String})[2] AND s.slot = {slot:String})
        AND ({release:String} = '' OR s.release = {release:String})
        AND ({worker:String} = '' OR position(s.slot, {worker:String}) > 0 OR position(s.pod, {worker:String}) > 0 OR toString(s.pid) = {worker:String})
    GROUP BY s.cluster, s.host, s.worker_key, s.gpu_uuid, minute
) AS w
LEFT JOIN (
    SELECT
        toStartOfMinute(s.time) AS minute, substring(s.slot, 1, length(s.slot) - position(reverse(s.slot), '/')) AS instance,
        max(s.running) AS running, max(s.waiting) AS waiting, max(s.kv_usage) AS kv_usage, max(s.ttft_p95_seconds) AS ttft_p95_seconds,
        max(s.itl_p95_seconds) AS itl_p95_seconds, max(s.preemptions_total) AS preemptions_total,
        max(s.finished_total) AS finished_total, max(s.aborted_total) AS aborted_total, max(s.errors_total) AS errors_total
    FROM {database}.worker_samples AS s
    WHERE s.time >= {since:DateTime64(3, 'UTC')} AND s.time < {until:DateTime64(3, 'UTC')}
        AND ({host:String} = '' OR s.host = {host:String}) AND ({slot:String} = '' OR s.host = splitByChar('/', {slot:String})[2])
        AND ({worker:String} = '' OR s.host IN (
            SELECT n.host FROM {database}.worker_samples AS n
            WHERE {worker:String} != '' AND n.time >= {since:DateTime64(3, 'UTC')} AND n.time < {until:DateTime64(3, 'UTC')}
                AND (position(n.slot, {worker:String}) > 0 OR position(n.pod, {worker:String}) > 0 OR toString(n.pid) = {worker:String})))
        AND (s.running IS NOT NULL OR s.kv_usage IS NOT NULL OR s.finished_total IS NOT NULL)
    GROUP BY instance, minute
) AS e ON e.instance = w.instance AND e.minute = w.minute
WHERE w.live_bytes IS NOT NULL OR w.used_bytes IS NOT NULL OR w.anon_bytes IS NOT NULL
COMMENT 'one row per worker, card and minute: the lowest memory and the highest load of the minute'
