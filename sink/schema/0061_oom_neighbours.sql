CREATE OR REPLACE VIEW {database}.oom_neighbours AS
SELECT
    o.time AS oom_time, o.slot AS oom_slot, o.kind AS kind, o.requested_bytes AS requested_bytes, m.slot AS slot, toBool(m.worker_key = o.worker_key) AS failed,
    argMin(m.used_bytes, m.minute) AS before_bytes, argMaxIf(m.used_bytes, m.minute, m.minute <= o.time AND m.minute > o.time - INTERVAL 3 MINUTE) AS at_bytes,
    argMaxIf(m.used_bytes, m.minute, m.minute > o.time) AS after_bytes, at_bytes - before_bytes AS change_bytes,
    argMaxIf(m.live_bytes, m.minute, m.minute <= o.time AND m.minute > o.time - INTERVAL 3 MINUTE) AS live_bytes, argMaxIf(m.running, m.minute, m.minute <= o.time AND m.minute > o.time - INTERVAL 3 MINUTE) AS running, m.gpu_uuid AS gpu_uuid
FROM {database}.ooms(since = {since:DateTime64(3, 'UTC')}, until = {until:DateTime64(3, 'UTC')}) AS o
INNER JOIN (
    SELECT w.*, e.running AS running
    FROM {database}.memory_minutes(since = {since:DateTime64(3, 'UTC')}, until = {until:DateTime64(3, 'UTC')}, worker = '', slot = '', host = {host:String}, release = '') AS w
    LEFT JOIN (
        SELECT *, cityHash64(instance) AS instance_hash FROM {database}.load_minutes(since = {since:DateTime64(3, 'UTC')}, until = {until:DateTime64(3, 'UTC')}, worker = '', slot = '', host = {host:String})
        WHERE (cluster, host) IN (SELECT cluster, host FROM {database}.ooms(since = {since:DateTime64(3, 'UTC')}, until = {until:DateTime64(3, 'UTC')}))
    ) AS e ON e.instance_hash = w.instance_hash AND e.minute = w.minute
    WHERE (w.cluster, w.host) IN (SELECT cluster, host FROM {database}.ooms(since = {since:DateTime64(3, 'UTC')}, until = {until:DateTime64(3, 'UTC')}))
) AS m ON m.cluster = o.cluster AND m.host = o.host
WHERE m.minute >= toStartOfMinute(o.time) - INTERVAL 10 MINUTE AND m.minute <= o.time + INTERVAL 10 MINUTE
    AND (o.gpu_uuid = '' OR m.gpu_uuid = o.gpu_uuid OR m.worker_key = o.worker_key)
    AND ({slot:String} = '' OR o.slot = {slot:String})
    AND ({worker:String} = '' OR position(o.slot, {worker:String}) > 0 OR toString(o.pid) = {worker:String})
GROUP BY o.time, o.slot, o.kind, o.requested_bytes, o.worker_key, m.slot, m.worker_key, m.gpu_uuid
ORDER BY oom_time, oom_slot, failed DESC, change_bytes DESC, slot
COMMENT 'the processes of the card ten minutes before, at and after each failed allocation'
