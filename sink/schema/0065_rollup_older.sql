INSERT INTO {database}.rollup_progress (rollup, day)
SELECT if(older, concat(rollup, ':until'), rollup), if(older, today(), toDate('1970-01-01'))
FROM (
    SELECT arrayJoin(['worker_minute_rollup', 'instance_minute_rollup', 'worker_hour_rollup']) AS rollup, (SELECT count() FROM {database}.worker_samples) > 0 AS older
    UNION ALL
    SELECT arrayJoin(['gpu_minute_rollup', 'gpu_hour_rollup']) AS rollup, (SELECT count() FROM {database}.gpu_samples) > 0 AS older
)
