CREATE OR REPLACE VIEW {database}.orphan_memory AS
SELECT
    c.host AS host, c.uuid AS gpu_uuid, c.minutes[-1].1 AS time, c.minutes[-1].2 AS orphan_bytes, c.minutes[-1].3 AS used_bytes, c.minutes[-1].4 AS processes_bytes,
    c.minutes[arrayLastIndex(m -> m.2 <= 268435456, c.minutes) + 1].1 AS since_time,
    arrayReverseSort(d -> d.2, arrayFilter(d -> d.2 < time - INTERVAL 1 MINUTE, p.seen))[1].1 AS last_slot,
    nullIf(arrayReverseSort(d -> d.2, arrayFilter(d -> d.2 < time - INTERVAL 1 MINUTE, p.seen))[1].2, toDateTime(0, 'UTC')) AS last_slot_time
FROM (
    SELECT cluster, host, uuid, arraySort(groupArrayIf((minute, toInt64(assumeNotNull(card)) - processes, assumeNotNull(card), processes), card IS NOT NULL)) AS minutes
    FROM (
        SELECT cluster, host, uuid, minute, min(card_bytes) AS card, toInt64(sum(process_bytes)) AS processes
        FROM (
            SELECT r.cluster AS cluster, r.host AS host, r.uuid AS uuid, r.minute AS minute, r.complete_used_least_bytes AS card_bytes, toInt64(0) AS process_bytes
            FROM {database}.gpu_minute_rollup AS r
            WHERE r.complete_used_least_bytes IS NOT NULL AND r.minute >= toStartOfMinute({since:DateTime64(3, 'UTC')}) AND r.minute < {until:DateTime64(3, 'UTC')}
                AND ({host:String} = '' OR r.host = {host:String})
            UNION ALL
            SELECT m.cluster, m.host, m.gpu_uuid, m.minute, CAST(NULL, 'Nullable(Int64)'), assumeNotNull(min(m.used_least_bytes))
            FROM {database}.worker_minute_rollup AS m
            WHERE m.used_least_bytes IS NOT NULL AND m.minute >= toStartOfMinute({since:DateTime64(3, 'UTC')}) AND m.minute < {until:DateTime64(3, 'UTC')}
                AND ({host:String} = '' OR m.host = {host:String})
            GROUP BY m.cluster, m.host, m.worker_key, m.gpu_uuid, m.minute
        )
        GROUP BY cluster, host, uuid, minute
    )
    GROUP BY cluster, host, uuid
) AS c
LEFT JOIN (
    SELECT cluster, host, gpu_uuid, groupArray((slot, last)) AS seen FROM (
        SELECT s.cluster AS cluster, s.host AS host, s.gpu_uuid AS gpu_uuid, s.slot AS slot, max(s.minute) AS last
        FROM {database}.worker_minute_rollup AS s
        WHERE (s.live_least_bytes IS NOT NULL OR s.used_least_bytes IS NOT NULL OR s.anon_least_bytes IS NOT NULL)
            AND s.minute >= toStartOfMinute({since:DateTime64(3, 'UTC')}) AND s.minute < {until:DateTime64(3, 'UTC')} AND ({host:String} = '' OR s.host = {host:String})
        GROUP BY s.cluster, s.host, s.gpu_uuid, s.slot, s.worker_key
    ) GROUP BY cluster, host, gpu_uuid
) AS p ON p.cluster = c.cluster AND p.host = c.host AND p.gpu_uuid = c.uuid
WHERE orphan_bytes > 268435456
ORDER BY orphan_bytes DESC
SETTINGS optimize_aggregation_in_order = 1
COMMENT 'cards whose memory is in use by no process that lives: only where the driver names all processes'
