CREATE VIEW IF NOT EXISTS {database}.first_xid AS
SELECT
    x.host AS host, x.gpu_uuid AS gpu_uuid, x.first_time AS first_time, x.code AS code, x.text AS text, x.xids AS xids, x.followed_by AS followed_by,
    arrayMap(d -> concat(d.2, ' (', if(d.4 != 0, concat('signal ', toString(d.4)), 'no signal'), ' by ', if(d.3 = '', 'unknown', d.3), ')'),
        arrayFilter(d -> d.1 >= x.first_time AND d.1 <= x.first_time + INTERVAL 10 MINUTE, e.ended)) AS ended
FROM (
    SELECT cluster, host, gpu_uuid, min(time) AS first_time, argMin(code, (time, sequence)) AS code, argMin(text, (time, sequence)) AS text, count() AS xids,
        arrayFilter(c -> c != assumeNotNull(code), arrayDistinct(arrayMap(c -> c.3, arraySort(groupArray((time, sequence, assumeNotNull(events.code))))))) AS followed_by
    FROM {database}.events AS events
    WHERE event = 'xid' AND time >= {since:DateTime64(3, 'UTC')} AND time < {until:DateTime64(3, 'UTC')} AND ({host:String} = '' OR host = {host:String})
    GROUP BY cluster, host, gpu_uuid
) AS x
LEFT JOIN (
    SELECT cluster, host, groupArray((time, slot, by, ifNull(signal, 0))) AS ended FROM {database}.events
    WHERE event = 'lifecycle' AND state = 'exited' AND time >= {since:DateTime64(3, 'UTC')} AND time < {until:DateTime64(3, 'UTC')}
    GROUP BY cluster, host
) AS e ON e.cluster = x.cluster AND e.host = x.host
ORDER BY first_time
COMMENT 'the first Xid of each card, what followed, and which workers of the host ended within ten minutes'
