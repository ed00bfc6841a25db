CREATE VIEW IF NOT EXISTS {database}.kv_ttft AS
SELECT
    slot, release, tenth / 10 AS kv_from_ratio, count() AS minutes, median(ttft_p95_seconds) AS ttft_p95_median_seconds, max(ttft_p95_seconds) AS ttft_p95_most_seconds,
    median(itl_p95_seconds) AS itl_p95_median_seconds, avg(running) AS running, avg(waiting) AS waiting, sum(preempted) AS preemptions
FROM (
    SELECT slot, release, minute, least(toInt64(floor(max(kv_usage) * 10)), 9) AS tenth, max(ttft_p95_seconds) AS ttft_p95_seconds, max(itl_p95_seconds) AS itl_p95_seconds,
        max(running) AS running, max(waiting) AS waiting, max(preemptions_total) AS total,
        greatest(toInt64(total) - toInt64(lagInFrame(total, 1, total) OVER (PARTITION BY slot, release ORDER BY minute ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)), 0) AS preempted
    FROM {database}.worker_minutes(since = {since:DateTime64(3, 'UTC')}, until = {until:DateTime64(3, 'UTC')},
        worker = {worker:String}, slot = {slot:String}, host = {host:String}, release = {release:String})
    WHERE kv_usage IS NOT NULL
    GROUP BY slot, release, minute
)
GROUP BY slot, release, tenth
ORDER BY slot, release, tenth
COMMENT 'latency and queue by tenths of the KV cache in use'
