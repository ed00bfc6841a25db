CREATE VIEW IF NOT EXISTS {database}.source_health AS
SELECT host, source, slot, status, since_time, changes, error FROM (
    SELECT e.host AS host, toString(e.name) AS source, e.slot AS slot, arraySort(groupArray((e.time, e.sequence, toString(e.status), e.text))) AS told,
        told[-1].3 AS status, told[arrayLastIndex(s -> s.3 != status, told) + 1].1 AS since_time, told[-1].4 AS error,
        arrayCount((a, b) -> a != b, arrayMap(s -> s.3, arrayPopFront(told)), arrayMap(s -> s.3, arrayPopBack(told))) AS changes
    FROM {database}.events AS e
    WHERE e.event = 'source' AND e.time >= {since:DateTime64(3, 'UTC')} AND e.time < {until:DateTime64(3, 'UTC')} AND ({host:String} = '' OR e.host = {host:String})
    GROUP BY e.host, e.name, e.slot
    UNION ALL
    SELECT host, 'any reading' AS source, '' AS slot, [] AS told, if(newest < least({until:DateTime64(3, 'UTC')}, now64(3, 'UTC')) - INTERVAL 5 MINUTE, 'silent', 'ok') AS status,
        newest AS since_time, '' AS error, 0 AS changes
    FROM (
        SELECT host, max(time) AS newest FROM (
            SELECT host, time FROM {database}.worker_samples WHERE time >= {since:DateTime64(3, 'UTC')} AND time < {until:DateTime64(3, 'UTC')}
            UNION ALL SELECT host, time FROM {database}.gpu_samples WHERE time >= {since:DateTime64(3, 'UTC')} AND time < {until:DateTime64(3, 'UTC')}
            UNION ALL SELECT host, time FROM {database}.host_samples WHERE time >= {since:DateTime64(3, 'UTC')} AND time < {until:DateTime64(3, 'UTC')})
        WHERE {host:String} = '' OR host = {host:String} GROUP BY host)
)
ORDER BY status = 'ok', host, source, slot
COMMENT 'what each sensor last said of itself, since when, and hosts that say nothing'
