CREATE OR REPLACE VIEW {database}.quiet_points AS
WITH toInt64(-9223372036854775808) AS none, load AS (
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
    time, slot, live_bytes,
    live_bytes - lagInFrame(toNullable(live_bytes), 1, NULL) OVER (PARTITION BY p.series ORDER BY ten ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS live_step_bytes,
    outside_bytes, cached_bytes, anon_bytes, kv_usage, finished_total, aborted_total, warming,
    cluster, host, worker_key, pid, model, release, gpu_uuid
FROM (
    SELECT *, row_number() OVER (PARTITION BY series, work, intDiv(dateDiff('second', first_ten, ten), 3600) ORDER BY ten) AS place
    FROM (
        -- What was read in the lowest minute of ten. What was not read then is `none`, a number that no reading is, since argMin would pass over it.
        SELECT
            series, ten, argMin(g.minute, g.low) AS time, toBool(argMin(g.warming, g.low)) AS warming,
            nullIf(argMin(ifNull(g.live_bytes, none), g.low), none) AS live_bytes, nullIf(argMin(ifNull(g.used_bytes - g.reserved_bytes, none), g.low), none) AS outside_bytes,
            nullIf(argMin(ifNull(g.cached_bytes, none), g.low), none) AS cached_bytes, nullIf(argMin(ifNull(g.anon_bytes, none), g.low), none) AS anon_bytes,
            nullIf(argMin(ifNull(g.kv_usage, -1), g.low), -1) AS kv_usage, nullIf(argMin(ifNull(g.finished_total, 18446744073709551615), g.low), 18446744073709551615) AS finished_total,
            nullIf(argMin(ifNull(g.aborted_total, 18446744073709551615), g.low), 18446744073709551615) AS aborted_total,
            max(ifNull(g.finished_total, 0) + ifNull(g.aborted_total, 0) + ifNull(g.errors_total, 0)) AS work,
            min(ten) OVER (PARTITION BY series, work) AS first_ten
        FROM (
            SELECT
                cityHash64(r.worker_key, r.gpu_uuid) AS series, r.minute AS minute, toStartOfInterval(r.minute, INTERVAL 10 MINUTE) AS ten, min(r.live_least_bytes) AS live_bytes,
                min(r.reserved_least_bytes) AS reserved_bytes, min(r.used_least_bytes) AS used_bytes, min(r.cached_least_bytes) AS cached_bytes,
                min(r.anon_least_bytes) AS anon_bytes, any(q.kv_usage) AS kv_usage, any(q.finished_total) AS finished_total, any(q.aborted_total) AS aborted_total,
                any(q.errors_total) AS errors_total, ifNull(minute < max(r.start_time) + INTERVAL 20 MINUTE, false) AS warming,
                16 * assumeNotNull(coalesce(live_bytes, used_bytes, anon_bytes)) + intDiv(toUnixTimestamp(minute) % 600, 60) AS low
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
            GROUP BY series, r.minute
            HAVING live_bytes IS NOT NULL OR used_bytes IS NOT NULL OR anon_bytes IS NOT NULL
        ) AS g
        GROUP BY series, ten
    )
) AS p
INNER JOIN (
    SELECT cityHash64(worker_key, gpu_uuid) AS series, any(h.cluster) AS cluster, any(h.host) AS host, any(h.worker_key) AS worker_key, any(h.gpu_uuid) AS gpu_uuid, max(h.slot) AS slot,
        max(h.pid) AS pid, max(h.model) AS model, max(h.release) AS release
    FROM {database}.worker_hour_rollup AS h
    WHERE h.hour >= toStartOfHour({since:DateTime64(3, 'UTC')}) AND h.hour < {until:DateTime64(3, 'UTC')} AND ({host:String} = '' OR h.host = {host:String})
    GROUP BY h.worker_key, h.gpu_uuid
) AS who ON who.series = p.series
WHERE place = 1
ORDER BY slot, gpu_uuid, time
COMMENT 'the quiet points of a worker: nothing ran or waited for two minutes, the lowest of ten minutes, with work since the one before or an hour later'
