CREATE OR REPLACE VIEW {database}.worker_hours AS
SELECT
    r.hour AS hour, r.cluster AS cluster, r.host AS host, r.worker_key AS worker_key, r.gpu_uuid AS gpu_uuid,
    max(r.slot) AS slot, max(r.pid) AS pid, max(r.start_time) AS start_time, max(r.model) AS model, max(r.release) AS release,
    min(r.quiet_live_bytes) AS quiet_live_bytes, min(r.quiet_used_bytes) AS quiet_used_bytes, min(r.quiet_anon_bytes) AS quiet_anon_bytes,
    min(r.live_least_bytes) AS live_least_bytes, max(r.live_most_bytes) AS live_most_bytes,
    min(r.reserved_least_bytes) AS reserved_least_bytes, max(r.reserved_most_bytes) AS reserved_most_bytes,
    min(r.used_least_bytes) AS used_least_bytes, max(r.used_most_bytes) AS used_most_bytes, if(sum(r.used_count) = 0, NULL, sum(r.used_sum) / sum(r.used_count)) AS used_mean_bytes,
    max(r.used_last).2 AS used_last_bytes, min(r.anon_least_bytes) AS anon_least_bytes, max(r.anon_most_bytes) AS anon_most_bytes,
    min(r.fds_least) AS fds, min(r.threads_least) AS threads, max(r.ooms_total) AS ooms_total
FROM {database}.worker_hour_rollup AS r
WHERE r.hour >= toStartOfHour({since:DateTime64(3, 'UTC')}) AND r.hour < {until:DateTime64(3, 'UTC')}
    AND ({host:String} = '' OR r.host = {host:String}) AND ({slot:String} = '' OR r.host = splitByChar('/', {slot:String})[2] AND r.slot = {slot:String})
    AND ({release:String} = '' OR r.release = {release:String})
    AND ({worker:String} = '' OR position(r.slot, {worker:String}) > 0 OR position(r.pod, {worker:String}) > 0 OR toString(r.pid) = {worker:String})
GROUP BY r.cluster, r.host, r.worker_key, r.gpu_uuid, r.hour
SETTINGS optimize_aggregation_in_order = 1
COMMENT 'one row per worker, card and hour, kept for two years: lowest, highest, mean and last memory, and the lowest while nothing ran or waited'
