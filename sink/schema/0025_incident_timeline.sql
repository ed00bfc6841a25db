CREATE VIEW IF NOT EXISTS {database}.incident_timeline AS
SELECT time, what, name, slot, text FROM (
    SELECT f.time AS time, 'finding' AS what, concat(f.class, ' ', f.state, ' ', f.severity) AS name, f.slot AS slot, f.summary AS text
    FROM {database}.findings AS f WHERE startsWith(f.incident, {incident:String})
    UNION ALL
    SELECT e.time, e.event, multiIf(e.event = 'oom', e.kind, e.event = 'xid', toString(ifNull(e.code, 0)), e.event = 'lifecycle', e.state,
            e.event = 'log', e.signature, e.event = 'snapshot', e.kind, e.name), e.slot,
        if(e.event = 'lifecycle', concat('by ', if(e.by = '', 'unknown', e.by), if(ifNull(e.signal, 0) = 0, '', concat(', signal ', toString(e.signal)))), e.text)
    FROM {database}.events AS e
    INNER JOIN (
        SELECT cluster, host, min(least(ifNull(onset, time), time)) AS first, max(time) AS last
        FROM {database}.findings WHERE startsWith(incident, {incident:String}) GROUP BY cluster, host
    ) AS i ON i.cluster = e.cluster AND i.host = e.host
    WHERE e.event IN ('oom', 'xid', 'lifecycle', 'mark', 'log', 'snapshot') AND e.time >= i.first - INTERVAL 1 HOUR AND e.time <= i.last + INTERVAL 1 HOUR
)
ORDER BY time, what, slot, name
COMMENT 'the transitions of an incident and the events of its host around them'
