CREATE VIEW IF NOT EXISTS {database}.worker_growth AS
SELECT
    cluster, host, slot, worker_key, pid, model, release, gpu_uuid, quiet_points, first_time, last_time, hours, level_bytes, aborts, requests,
    if(isFinite(live_line.1), round(live_line.1) + 0, NULL) AS live_bytes_per_hour, if(isFinite(live_fit), live_fit, NULL) AS fit_ratio,
    if(isFinite(outside_line.1), round(outside_line.1) + 0, NULL) AS outside_bytes_per_hour, if(isFinite(anon_line.1), round(anon_line.1) + 0, NULL) AS anon_bytes_per_hour,
    if(isFinite(abort_line.1), round(abort_line.1) + 0, NULL) AS live_bytes_per_abort, if(isFinite(abort_fit), abort_fit, NULL) AS abort_fit_ratio,
    if(isFinite(request_line.1), round(request_line.1) + 0, NULL) AS live_bytes_per_request, if(isFinite(request_fit), request_fit, NULL) AS request_fit_ratio,
    multiIf(quiet_points < 4, 'too few points',
        ifNull(live_bytes_per_hour > 5242880 AND live_line.1 * hours > 33554432 AND live_fit > 0.6, false), 'live rises',
        ifNull(outside_bytes_per_hour > 5242880 AND outside_line.1 * hours > 33554432 AND outside_fit > 0.6, false), 'outside rises',
        ifNull(anon_bytes_per_hour > 33554432 AND anon_line.1 * hours > 33554432 AND anon_fit > 0.6, false), 'host memory rises', 'level') AS trend
FROM (
    SELECT cluster, host, slot, worker_key, any(pid) AS pid, model, release, gpu_uuid,
        count() AS quiet_points, min(time) AS first_time, max(time) AS last_time, (toUnixTimestamp(last_time) - toUnixTimestamp(first_time)) / 3600 AS hours,
        argMax(ifNull(live_bytes, 0), time) AS level_bytes,
        toInt64(max(aborted_total)) - toInt64(min(aborted_total)) AS aborts, toInt64(max(finished_total)) - toInt64(min(finished_total)) AS requests,
        simpleLinearRegressionIf(x, toFloat64(assumeNotNull(live_bytes)), live_bytes IS NOT NULL) AS live_line,
        pow(corrStableIf(x, toFloat64(assumeNotNull(live_bytes)), live_bytes IS NOT NULL), 2) AS live_fit,
        simpleLinearRegressionIf(x, toFloat64(assumeNotNull(outside_bytes)), outside_bytes IS NOT NULL) AS outside_line,
        pow(corrStableIf(x, toFloat64(assumeNotNull(outside_bytes)), outside_bytes IS NOT NULL), 2) AS outside_fit,
        simpleLinearRegressionIf(x, toFloat64(assumeNotNull(anon_bytes)), anon_bytes IS NOT NULL) AS anon_line,
        pow(corrStableIf(x, toFloat64(assumeNotNull(anon_bytes)), anon_bytes IS NOT NULL), 2) AS anon_fit,
        simpleLinearRegressionIf(toFloat64(assumeNotNull(aborted_total)), toFloat64(assumeNotNull(live_bytes)), live_bytes IS NOT NULL AND aborted_total IS NOT NULL) AS abort_line,
        pow(corrStableIf(toFloat64(assumeNotNull(aborted_total)), toFloat64(assumeNotNull(live_bytes)), live_bytes IS NOT NULL AND aborted_total IS NOT NULL), 2) AS abort_fit,
        simpleLinearRegressionIf(toFloat64(assumeNotNull(finished_total)), toFloat64(assumeNotNull(live_bytes)), live_bytes IS NOT NULL AND finished_total IS NOT NULL) AS request_line,
        pow(corrStableIf(toFloat64(assumeNotNull(finished_total)), toFloat64(assumeNotNull(live_bytes)), live_bytes IS NOT NULL AND finished_total IS NOT NULL), 2) AS request_fit
    FROM (
        SELECT *, (toUnixTimestamp(time) - toUnixTimestamp({since:DateTime64(3, 'UTC')})) / 3600 AS x
        FROM {database}.quiet_points(since = {since:DateTime64(3, 'UTC')}, until = {until:DateTime64(3, 'UTC')},
            worker = {worker:String}, slot = {slot:String}, host = {host:String}, release = {release:String})
        WHERE NOT warming
    )
    GROUP BY cluster, host, slot, worker_key, model, release, gpu_uuid
)
COMMENT 'one row per process life and card: straight lines through its quiet points, against time, aborts and requests'
