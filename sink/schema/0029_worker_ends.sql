CREATE VIEW IF NOT EXISTS {database}.worker_ends AS
SELECT
    e.time AS time, e.slot AS slot, e.pid AS pid, e.release AS release, if(e.by = '', 'unknown', toString(e.by)) AS by, e.signal AS signal, e.exit_code AS exit_code,
    JSONExtract(e.body, 'lifecycle', 'said_bye', 'Nullable(Bool)') AS said_bye, dateDiff('second', e.start_time, e.time) / 3600 AS life_hours,
    arrayCount(t -> t > e.time - INTERVAL 10 MINUTE AND t <= e.time, o.times) AS ooms_before, arrayCount(t -> t > e.time - INTERVAL 10 MINUTE AND t <= e.time, x.times) AS xids_before
FROM {database}.events AS e
LEFT JOIN (
    SELECT worker_key, groupArray(time) AS times FROM {database}.ooms(since = {since:DateTime64(3, 'UTC')}, until = {until:DateTime64(3, 'UTC')}) GROUP BY worker_key
) AS o ON o.worker_key = e.worker_key
LEFT JOIN (
    SELECT cluster, host, groupArray(time) AS times FROM {database}.events
    WHERE event = 'xid' AND time >= {since:DateTime64(3, 'UTC')} AND time < {until:DateTime64(3, 'UTC')} GROUP BY cluster, host
) AS x ON x.cluster = e.cluster AND x.host = e.host
WHERE e.event = 'lifecycle' AND e.state = 'exited' AND e.time >= {since:DateTime64(3, 'UTC')} AND e.time < {until:DateTime64(3, 'UTC')}
    AND ({host:String} = '' OR e.host = {host:String}) AND ({slot:String} = '' OR e.slot = {slot:String}) AND ({release:String} = '' OR e.release = {release:String})
    AND ({worker:String} = '' OR position(e.slot, {worker:String}) > 0 OR position(e.pod, {worker:String}) > 0 OR toString(e.pid) = {worker:String})
ORDER BY time DESC
COMMENT 'processes that ended: by whom, how, and with which failures in the ten minutes before'
