CREATE OR REPLACE VIEW {database}.growth_by_release AS
SELECT
    g.release AS release, g.model AS model, g.workers AS workers, g.rising AS rising, g.live_bytes_per_hour AS live_bytes_per_hour,
    g.live_bytes_per_abort AS live_bytes_per_abort, g.outside_bytes_per_hour AS outside_bytes_per_hour, g.anon_bytes_per_hour AS anon_bytes_per_hour,
    g.quiet_points AS quiet_points, g.hours AS hours, g.first_time AS first_time, nullIf(i.incidents, 0) AS incidents, i.onset AS onset
FROM (
    SELECT release, model, uniqExact(slot) AS workers, uniqExactIf(slot, trend LIKE '% rises') AS rising,
        median(live_bytes_per_hour) AS live_bytes_per_hour, medianIf(live_bytes_per_abort, trend = 'live rises' AND abort_fit_ratio > 0.6) AS live_bytes_per_abort,
        median(outside_bytes_per_hour) AS outside_bytes_per_hour, median(anon_bytes_per_hour) AS anon_bytes_per_hour,
        sum(quiet_points) AS quiet_points, max(hours) AS hours, min(first_time) AS first_time
    FROM {database}.worker_growth(since = {since:DateTime64(3, 'UTC')}, until = {until:DateTime64(3, 'UTC')},
        worker = {worker:String}, slot = {slot:String}, host = {host:String}, release = {release:String})
    GROUP BY release, model
) AS g
LEFT JOIN (
    SELECT release, uniqExact(incident) AS incidents, min(onset) AS onset
    FROM {database}.findings
    WHERE time >= {since:DateTime64(3, 'UTC')} AND time < {until:DateTime64(3, 'UTC')}
        AND NOT shadow AND class IN ('retention', 'native_growth', 'graph_pools', 'stream_backlog', 'host_memory', 'pinned_memory', 'kv_block_leak', 'fd_leak', 'thread_leak')
    GROUP BY release
) AS i ON i.release = g.release
ORDER BY greatest(ifNull(live_bytes_per_hour, 0), ifNull(outside_bytes_per_hour, 0)) DESC, release
COMMENT 'how fast the workers of each release grow at their quiet points'
