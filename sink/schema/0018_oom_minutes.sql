CREATE VIEW IF NOT EXISTS {database}.oom_minutes AS
SELECT
    o.time AS oom_time, dateDiff('minute', o.time, m.minute) AS minutes, m.slot AS slot, m.live_bytes AS live_bytes, m.cached_bytes AS cached_bytes,
    m.outside_bytes AS outside_bytes, m.used_bytes AS used_bytes, m.running AS running, m.waiting AS waiting, m.kv_usage AS kv_usage, m.ttft_p95_seconds AS ttft_p95_seconds
FROM {database}.ooms(since = {since:DateTime64(3, 'UTC')}, until = {until:DateTime64(3, 'UTC')}) AS o
INNER JOIN {database}.worker_minutes(since = {since:DateTime64(3, 'UTC')}, until = {until:DateTime64(3, 'UTC')}, worker = {worker:String}, slot = {slot:String}, host = {host:String}, release = '') AS m
    ON m.worker_key = o.worker_key
WHERE m.minute >= toStartOfMinute(o.time) - INTERVAL 10 MINUTE AND m.minute <= o.time + INTERVAL 10 MINUTE AND (o.gpu_uuid = '' OR m.gpu_uuid = o.gpu_uuid)
ORDER BY oom_time, slot, minutes
COMMENT 'minute by minute around each failed allocation of a worker'
