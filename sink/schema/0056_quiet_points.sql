CREATE OR REPLACE VIEW {database}.quiet_points AS
SELECT
    p.1 AS time, slot, p.2 AS live_bytes,
    live_bytes - lagInFrame(toNullable(live_bytes), 1, NULL) OVER (PARTITION BY worker_key, gpu_uuid ORDER BY ten ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS live_step_bytes,
    p.3 AS outside_bytes, p.4 AS cached_bytes, p.5 AS anon_bytes, p.6 AS kv_usage, p.7 AS finished_total, p.8 AS aborted_total, toBool(p.9) AS warming,
    cluster, host, worker_key, pid, model, release, gpu_uuid
FROM (
    SELECT *, row_number() OVER (PARTITION BY worker_key, gpu_uuid, work, intDiv(dateDiff('second', first_ten, ten), 3600) ORDER BY ten) AS place
    FROM (
        SELECT w.cluster AS cluster, w.host AS host, w.slot AS slot, w.worker_key AS worker_key, w.pid AS pid, w.model AS model, w.release AS release, w.gpu_uuid AS gpu_uuid,
            toStartOfInterval(w.minute, INTERVAL 10 MINUTE) AS ten,
            argMin(tuple(w.minute, w.live_bytes, w.outside_bytes, w.cached_bytes, w.anon_bytes, q.kv_usage, q.finished_total, q.aborted_total,
                ifNull(w.minute < w.start_time + INTERVAL 20 MINUTE, false)), (ifNull(w.live_bytes, ifNull(w.used_bytes, w.anon_bytes)), w.minute)) AS p,
            max(ifNull(q.finished_total, 0) + ifNull(q.aborted_total, 0) + ifNull(q.errors_total, 0)) AS work,
            min(ten) OVER (PARTITION BY worker_key, gpu_uuid, work) AS first_ten
        FROM {database}.memory_minutes(since = {since:DateTime64(3, 'UTC')}, until = {until:DateTime64(3, 'UTC')},
            worker = {worker:String}, slot = {slot:String}, host = {host:String}, release = {release:String}) AS w
        INNER JOIN (
            SELECT cityHash64(instance) AS instance_hash, quiet.1 AS minute, quiet.2 AS kv_usage, quiet.3 AS finished_total, quiet.4 AS aborted_total, quiet.5 AS errors_total
            FROM (
                SELECT instance, arraySort(m -> m.1, groupArray((minute, kv_usage, finished_total, aborted_total, errors_total, ifNull(running = 0 AND ifNull(waiting, 0) = 0, false)))) AS minutes,
                    arrayJoin(arrayFilter((m, before, after) -> m.6 AND (before.6 AND m.1 - before.1 <= 120 OR after.6 AND after.1 - m.1 <= 120), minutes,
                        arrayPushFront(arrayPopBack(minutes), (minutes[1].1, NULL, NULL, NULL, NULL, false)), arrayPushBack(arrayPopFront(minutes), (minutes[1].1, NULL, NULL, NULL, NULL, false)))) AS quiet
                FROM {database}.load_minutes(since = {since:DateTime64(3, 'UTC')}, until = {until:DateTime64(3, 'UTC')}, worker = {worker:String}, slot = {slot:String}, host = {host:String})
                GROUP BY instance
            )
        ) AS q ON q.instance_hash = cityHash64(substring(w.slot, 1, length(w.slot) - position(reverse(w.slot), '/'))) AND q.minute = w.minute
        GROUP BY w.cluster, w.host, w.slot, w.worker_key, w.pid, w.model, w.release, w.gpu_uuid, ten
    )
)
WHERE place = 1
ORDER BY slot, gpu_uuid, time
COMMENT 'the quiet points of a worker: nothing ran or waited for two minutes, the lowest of ten minutes, with work since the one before or an hour later'
