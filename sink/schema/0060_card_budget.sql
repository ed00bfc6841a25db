CREATE OR REPLACE VIEW {database}.card_budget AS
SELECT host, gpu, piece.1 AS part, piece.2 AS slot, piece.3 AS part_bytes, part_bytes / total_bytes AS share_ratio, total_bytes, time
FROM (
    SELECT g.host AS host, concat(toString(ifNull(g.index, -1)), ' ', g.uuid) AS gpu, g.time AS time, g.total_bytes AS total_bytes,
        arrayJoin(arrayConcat([('driver', '', g.driver_bytes)], w.parts,
            [(if(g.complete, 'no living process', 'processes that are not seen'), '', g.used_bytes - w.used_bytes), ('free', '', g.free_bytes)])) AS piece
    FROM (
        SELECT s.cluster AS cluster, s.host AS host, s.uuid AS uuid, max(s.time) AS time, any(s.index) AS index,
            toInt64(assumeNotNull(argMax(s.total_bytes, s.time))) AS total_bytes, toInt64(assumeNotNull(argMax(s.used_bytes, s.time))) AS used_bytes,
            toInt64(ifNull(argMax(s.driver_reserved_bytes, s.time), 0)) AS driver_bytes, total_bytes - used_bytes - driver_bytes AS free_bytes,
            ifNull(argMax(s.processes_complete, s.time), false) AS complete
        FROM {database}.gpu_samples AS s
        WHERE s.total_bytes IS NOT NULL AND s.used_bytes IS NOT NULL AND s.time >= {since:DateTime64(3, 'UTC')} AND s.time < {until:DateTime64(3, 'UTC')}
            AND ({host:String} = '' OR s.host = {host:String})
        GROUP BY cluster, host, uuid
    ) AS g
    LEFT JOIN (
        SELECT cluster, host, gpu_uuid, sum(used) AS used_bytes, arrayFlatten(groupArray(if(reserved IS NULL, [('process', slot, used)],
            [('live', slot, assumeNotNull(live)), ('awaiting', slot, assumeNotNull(awaiting)), ('cached', slot, assumeNotNull(cached)), ('outside', slot, used - assumeNotNull(reserved))]))) AS parts
        FROM (
            SELECT cluster, host, gpu_uuid, slot, worker_key, max(minute) AS last, assumeNotNull(argMax(used_bytes, minute)) AS used,
                argMax(reserved_bytes, minute) AS reserved, argMax(live_bytes, minute) AS live, argMax(awaiting_bytes, minute) AS awaiting, argMax(cached_bytes, minute) AS cached
            FROM {database}.memory_minutes(since = {since:DateTime64(3, 'UTC')}, until = {until:DateTime64(3, 'UTC')}, worker = '', slot = '', host = {host:String}, release = '')
            WHERE used_bytes IS NOT NULL
            GROUP BY cluster, host, gpu_uuid, slot, worker_key
        ) AS m
        INNER JOIN (
            SELECT cluster, host, uuid, max(time) AS newest FROM {database}.gpu_samples
            WHERE time >= {since:DateTime64(3, 'UTC')} AND time < {until:DateTime64(3, 'UTC')} GROUP BY cluster, host, uuid
        ) AS n ON n.cluster = m.cluster AND n.host = m.host AND n.uuid = m.gpu_uuid
        WHERE m.last >= n.newest - INTERVAL 3 MINUTE
        GROUP BY cluster, host, gpu_uuid
    ) AS w ON w.cluster = g.cluster AND w.host = g.host AND w.gpu_uuid = g.uuid
)
ORDER BY host, gpu, part_bytes DESC, part, slot
COMMENT 'where the memory of each card goes at its newest reading'
