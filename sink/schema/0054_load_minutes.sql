CREATE OR REPLACE VIEW {database}.load_minutes AS
SELECT
    r.minute AS minute, r.cluster AS cluster, r.host AS host, r.instance AS instance, max(r.model) AS model, max(r.release) AS release,
    max(r.running_most) AS running, max(r.waiting_most) AS waiting, max(r.kv_usage_most) AS kv_usage, max(r.ttft_p95_most_seconds) AS ttft_p95_seconds,
    max(r.itl_p95_most_seconds) AS itl_p95_seconds, max(r.preemptions_total) AS preemptions_total, max(r.finished_total) AS finished_total,
    max(r.aborted_total) AS aborted_total, max(r.errors_total) AS errors_total, max(r.prompt_tokens_total) AS prompt_tokens_total,
    max(r.generation_tokens_total) AS generation_tokens_total, if(sum(r.running_count) = 0, NULL, sum(r.running_sum) / sum(r.running_count)) AS running_mean
FROM {database}.instance_minute_rollup AS r
WHERE r.minute >= toStartOfMinute({since:DateTime64(3, 'UTC')}) AND r.minute < {until:DateTime64(3, 'UTC')}
    AND ({host:String} = '' OR r.host = {host:String}) AND ({slot:String} = '' OR r.host = splitByChar('/', {slot:String})[2])
    AND ({worker:String} = '' OR r.host IN (
        SELECT n.host FROM {database}.worker_hour_rollup AS n
        WHERE {worker:String} != '' AND n.hour >= toStartOfHour({since:DateTime64(3, 'UTC')}) AND n.hour < {until:DateTime64(3, 'UTC')}
            AND (position(n.slot, {worker:String}) > 0 OR position(n.pod, {worker:String}) > 0 OR toString(n.pid) = {worker:String})))
GROUP BY r.cluster, r.host, r.instance, r.minute
SETTINGS optimize_aggregation_in_order = 1
COMMENT 'one row per instance and minute: the highest load of the minute'
