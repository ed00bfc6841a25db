CREATE OR REPLACE VIEW {database}.orphan_memory AS
SELECT
    c.host AS host, c.uuid AS gpu_uuid, c.minutes[-1].1 AS time, c.minutes[-1].2 AS orphan_bytes, c.minutes[-1].3 AS used_bytes, c.minutes[-1].4 AS processes_bytes,
    c.minutes[arrayLastIndex(m -> m.2 <= 268435456, c.minutes) + 1].1 AS since_time,
    arrayReverseSort(d -> d.2, arrayFilter(d -> d.2 < time - INTERVAL 1 MINUTE, p.seen))[1].1 AS last_slot,
    nullIf(arrayReverseSort(d -> d.2, arrayFilter(d -> d.2 < time - INTERVAL 1 MINUTE, p.seen))[1].2, toDateTime(0, 'UTC')) AS last_slot_time
FROM (
    SELECT g.cluster AS cluster, g.host AS host, g.uuid AS uuid,
        arraySort(groupArray((g.minute, g.used_bytes - ifNull(w.used_bytes, 0), g.used_bytes, ifNull(w.used_bytes, 0)))) AS minutes
    FROM (
        SELECT cluster, host, uuid, minute, assumeNotNull(min(r.complete_used_least_bytes)) AS used_bytes
        FROM {database}.gpu_minute_rollup AS r
        WHERE r.complete_used_least_bytes IS NOT NULL AND r.minute >= toStartOfMinute({since:DateTime64(3, 'UTC')}) AND r.minute < {until:DateTime64(3, 'UTC')}
            AND ({host:String} = '' OR r.host = {host:String})
        GROUP BY cluster, host, uuid, minute
    ) AS g
    LEFT JOIN (
        SELECT m.cluster AS cluster, m.host AS host, m.gpu_uuid AS gpu_uuid, m.minute AS minute, sum(assumeNotNull(m.used_bytes)) AS used_bytes
        FROM {database}.memory_minutes(since = {since:DateTime64(3, 'UTC')}, until = {until:DateTime64(3, 'UTC')}, worker = '', slot = '', host = {host:String}, release = '') AS m
        WHERE m.used_bytes IS NOT NULL
        GROUP BY cluster, host, gpu_uuid, minute
    ) AS w ON w.cluster = g.cluster AND w.host = g.host AND w.gpu_uuid = g.uuid AND w.minute = g.minute
    GROUP BY g.cluster, g.host, g.uuid
) AS c
LEFT JOIN (
    SELECT cluster, host, gpu_uuid, groupArray((slot, last)) AS seen FROM (
        SELECT cluster, host, gpu_uuid, slot, max(minute) AS last
        FROM {database}.memory_minutes(since = {since:DateTime64(3, 'UTC')}, until = {until:DateTime64(3, 'UTC')}, worker = '', slot = '', host = {host:String}, release = '')
        GROUP BY cluster, host, gpu_uuid, slot, worker_key
    ) GROUP BY cluster, host, gpu_uuid
) AS p ON p.cluster = c.cluster AND p.host = c.host AND p.gpu_uuid = c.uuid
WHERE orphan_bytes > 268435456
ORDER BY orphan_bytes DESC
COMMENT 'cards whose memory is in use by no process that lives: only where the driver names all processes'
