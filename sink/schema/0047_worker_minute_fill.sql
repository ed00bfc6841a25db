CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.worker_minute_fill TO {database}.worker_minute_rollup AS
SELECT
    cluster, host, worker_key, gpu_uuid, toStartOfMinute(time) AS minute, slot,
    cityHash64(substring(slot, 1, length(slot) - position(reverse(slot), '/'))) AS instance_hash, pid, start_time, model, release, pod,
    toInt64(allocated_bytes) AS live_least_bytes, live_least_bytes AS live_most_bytes,
    toInt64(active_bytes) - toInt64(allocated_bytes) AS awaiting_least_bytes, toInt64(reserved_bytes) - toInt64(active_bytes) AS cached_least_bytes,
    toInt64(reserved_bytes) AS reserved_least_bytes, reserved_least_bytes AS reserved_most_bytes,
    toInt64(used_bytes) AS used_least_bytes, used_least_bytes AS used_most_bytes,
    toInt64(ifNull(anon_bytes + ifNull(swap_bytes, 0), rss_bytes)) AS anon_least_bytes, anon_least_bytes AS anon_most_bytes,
    toInt64(pinned_allocated_bytes) AS pinned_allocated_least_bytes, toInt64(pinned_kernel_bytes) AS pinned_kernel_least_bytes,
    toInt64(fds) AS fds_least, toInt64(threads) AS threads_least,
    ooms_total AS ooms_least_total, ooms_total
FROM {database}.worker_samples
