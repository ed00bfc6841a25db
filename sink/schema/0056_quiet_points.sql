CREATE OR REPLACE VIEW {database}.quiet_points AS
WITH load AS (
    SELECT r.instance_hash, toUInt32(intDiv(toUnixTimestamp(r.minute), 60)) AS number, r.running_most, r.waiting_most
    FROM {database}.instance_minute_rollup AS r
    WHERE r.minute >= toStartOfMinute({since:DateTime64(3, 'UTC')}) AND r.minute < {until:DateTime64(3, 'UTC')}
        AND ({host:String} = '' OR r.host = {host:String}) AND ({slot:String} = '' OR r.host = splitByChar('/', {slot:String})[2])
        AND ({worker:String} = '' OR r.host IN (
            SELECT n.host FROM {database}.worker_hour_rollup AS n
            WHERE {worker:String} != '' AND n.hour >= toStartOfHour({since:DateTime64(3, 'UTC')}) AND n.hour < {until:DateTime64(3, 'UTC')}
                AND (position(n.slot, {worker:String}) > 0 OR position(n.pod, {worker:String}) > 0 OR toString(n.pid) = {worker:String})))
), quiet AS (
    SELECT instance_hash, toDateTime(60 * arrayJoin(bitmapToArray(bitmapAnd(still, bitmapOr(
        bitmapOr(bitmapBuild(arrayMap(m -> toUInt32(m + 1), stills)), bitmapBuild(arrayMap(m -> toUInt32(m - 1), stills))),
        bitmapOr(bitmapAndnot(bitmapBuild(arrayMap(m -> toUInt32(m + 2), stills)), bitmapBuild(arrayMap(m -> toUInt32(m + 1), seens))),
            bitmapAndnot(bitmapBuild(arrayMap(m -> toUInt32(m - 2), stills)), bitmapBuild(arrayMap(m -> toUInt32(m - 1), seens)))))))), 'UTC') AS minute
    FROM (
        SELECT instance_hash, groupBitmapState(number) AS seen,
            bitmapAndnot(groupBitmapStateIf(number, running_most IS NOT NULL), groupBitmapStateIf(number, running_most > 0 OR waiting_most > 0)) AS still,
            bitmapToArray(still) AS stills, bitmapToArray(seen) AS seens
        FROM load GROUP BY instance_hash
    )
)
SELECT
    p.1 AS time, slot, p.2 AS live_bytes,
    live_bytes - lagInFrame(toNullable(live_bytes), 1, NULL) OVER (PARTITION BY worker_key, gpu_uuid ORDER BY ten ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS live_step_bytes,
    p.3 AS outside_bytes, p.4 AS cached_bytes, p.5 AS anon_bytes, p.6 AS kv_usage, p.7 AS finished_total, p.8 AS aborted_total, toBool(p.9) AS warming,
    cluster, host, worker_key, pid, model, release, gpu_uuid
FROM (
    SELECT *, row_number() OVER (PARTITION BY worker_key, gpu_uuid, work, intDiv(dateDiff('second', first_ten, ten), 3600) ORDER BY ten) AS place
    FROM (
        SELECT cluster, host, slot, worker_key, pid, model, release, gpu_uuid, toStartOfInterval(minute, INTERVAL 10 MINUTE) AS ten,
            argMin(tuple(minute, live_bytes, used_bytes - reserved_bytes, cached_bytes, anon_bytes, kv_usage, finished_total, aborted_total,
                ifNull(minute < start_time + INTERVAL 20 MINUTE, false)), (ifNull(live_bytes, ifNull(used_bytes, anon_bytes)), minute)) AS p,
            max(ifNull(finished_total, 0) + ifNull(aborted_total, 0) + ifNull(errors_total, 0)) AS work,
            min(ten) OVER (PARTITION BY worker_key, gpu_uuid, work) AS first_ten
        FROM (
            SELECT
                r.cluster AS cluster, r.host AS host, r.worker_key AS worker_key, r.gpu_uuid AS gpu_uuid, r.minute AS minute, max(r.slot) AS slot, max(r.pid) AS pid,
                max(r.start_time) AS start_time, max(r.model) AS model, max(r.release) AS release, min(r.live_least_bytes) AS live_bytes,
                min(r.reserved_least_bytes) AS reserved_bytes, min(r.used_least_bytes) AS used_bytes, min(r.cached_least_bytes) AS cached_bytes,
                min(r.anon_least_bytes) AS anon_bytes, any(q.kv_usage) AS kv_usage, any(q.finished_total) AS finished_total, any(q.aborted_total) AS aborted_total,
                any(q.errors_total) AS errors_total
            FROM {database}.worker_minute_rollup AS r
            INNER JOIN (
                SELECT instance_hash, minute, max(kv_usage_most) AS kv_usage, max(i.finished_total) AS finished_total, max(i.aborted_total) AS aborted_total, max(i.errors_total) AS errors_total
                FROM {database}.instance_minute_rollup AS i
                WHERE i.minute >= toStartOfMinute({since:DateTime64(3, 'UTC')}) AND i.minute < {until:DateTime64(3, 'UTC')} AND (i.instance_hash, i.minute) IN (SELECT instance_hash, minute FROM quiet)
                GROUP BY instance_hash, minute
            ) AS q ON q.instance_hash = r.instance_hash AND q.minute = r.minute
            WHERE r.minute >= toStartOfMinute({since:DateTime64(3, 'UTC')}) AND r.minute < {until:DateTime64(3, 'UTC')}
                AND ({host:String} = '' OR r.host = {host:String}) AND ({slot:String} = '' OR r.host = splitByChar('/', {slot:String})[2] AND r.slot = {slot:String})
                AND ({release:String} = '' OR r.release = {release:String})
                AND ({worker:String} = '' OR position(r.slot, {worker:String}) > 0 OR position(r.pod, {worker:String}) > 0 OR toString(r.pid) = {worker:String})
            GROUP BY r.cluster, r.host, r.worker_key, r.gpu_uuid, r.minute
            HAVING live_bytes IS NOT NULL OR used_bytes IS NOT NULL OR anon_bytes IS NOT NULL
        )
        GROUP BY cluster, host, slot, worker_key, pid, model, release, gpu_uuid, ten
    )
)
WHERE place = 1
ORDER BY slot, gpu_uuid, time
COMMENT 'the quiet points of a worker: nothing ran or waited for two minutes, the lowest of ten minutes, with work since the one before or an hour later'
