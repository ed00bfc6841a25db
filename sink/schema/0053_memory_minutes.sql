CREATE OR REPLACE VIEW {database}.memory_minutes AS
SELECT
    r.minute AS minute, r.cluster AS cluster, r.host AS host, r.worker_key AS worker_key, r.gpu_uuid AS gpu_uuid,
    max(r.slot) AS slot, max(r.instance_hash) AS instance_hash, max(r.pid) AS pid, max(r.start_time) AS start_time, max(r.model) AS model, max(r.release) AS release,
    min(r.live_least_bytes) AS live_bytes, min(r.awaiting_least_bytes) AS awaiting_bytes, min(r.cached_least_bytes) AS cached_bytes,
    min(r.reserved_least_bytes) AS reserved_bytes, min(r.used_least_bytes) AS used_bytes, used_bytes - reserved_bytes AS outside_bytes,
    min(r.anon_least_bytes) AS anon_bytes, coalesce(min(r.pinned_allocated_least_bytes), min(r.pinned_kernel_least_bytes)) AS pinned_bytes,
    min(r.fds_least) AS fds, min(r.threads_least) AS threads, max(r.ooms_total) AS ooms_total,
    max(r.live_most_bytes) AS live_most_bytes, max(r.reserved_most_bytes) AS reserved_most_bytes, max(r.used_most_bytes) AS used_most_bytes,
    max(r.anon_most_bytes) AS anon_most_bytes
FROM {database}.worker_minute_rollup AS r
WHERE r.minute >= toStartOfMinute({since:DateTime64(3, 'UTC')}) AND r.minute < {until:DateTime64(3, 'UTC')}
    AND ({host:String} = '' OR r.host = {host:String}) AND ({slot:String} = '' OR r.host = splitByChar('/', {slot:String})[2] AND r.slot = {slot:String})
    AND ({release:String} = '' OR r.release = {release:String})
    AND ({worker:String} = '' OR position(r.slot, {worker:String}) > 0 OR position(r.pod, {worker:String}) > 0 OR toString(r.pid) = {worker:String})
GROUP BY r.cluster, r.host, r.worker_key, r.gpu_uuid, r.minute
HAVING live_bytes IS NOT NULL OR used_bytes IS NOT NULL OR anon_bytes IS NOT NULL
SETTINGS optimize_aggregation_in_order = 1
COMMENT 'one row per worker, card and minute: the lowest memory of the minute, and the highest of some'
