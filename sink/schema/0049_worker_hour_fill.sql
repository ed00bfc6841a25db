CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.worker_hour_fill TO {database}.worker_hour_rollup AS
SELECT
    cluster, host, worker_key, gpu_uuid, toStartOfHour(time) AS hour, slot, pid, start_time, model, release, pod,
    toInt64(allocated_bytes) AS live_least_bytes, live_least_bytes AS live_most_bytes,
    if((max(running + ifNull(waiting, 0)) OVER tick) = 0 AS quiet, live_least_bytes, NULL) AS quiet_live_bytes, if(quiet, used_least_bytes, NULL) AS quiet_used_bytes, if(quiet, anon_least_bytes, NULL) AS quiet_anon_bytes,
    toInt64(reserved_bytes) AS reserved_least_bytes, reserved_least_bytes AS reserved_most_bytes,
    toInt64(used_bytes) AS used_least_bytes, used_least_bytes AS used_most_bytes,
    ifNull(worker_samples.used_bytes, 0) AS used_sum, toUInt64(worker_samples.used_bytes IS NOT NULL) AS used_count,
    (if(worker_samples.used_bytes IS NULL, toDateTime64(0, 9, 'UTC'), time), used_least_bytes) AS used_last,
    toInt64(ifNull(anon_bytes + ifNull(swap_bytes, 0), rss_bytes)) AS anon_least_bytes, anon_least_bytes AS anon_most_bytes,
    toInt64(fds) AS fds_least, toInt64(threads) AS threads_least, ooms_total
FROM {database}.worker_samples
WINDOW tick AS (PARTITION BY cluster, host, substring(slot, 1, length(slot) - position(reverse(slot), '/')), time)
