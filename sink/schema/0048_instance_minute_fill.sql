CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.instance_minute_fill TO {database}.instance_minute_rollup AS
SELECT
    cluster, host, substring(slot, 1, length(slot) - position(reverse(slot), '/')) AS instance, toStartOfMinute(time) AS minute,
    cityHash64(instance) AS instance_hash, model, release,
    running AS running_most, ifNull(running, 0) AS running_sum, toUInt64(running IS NOT NULL) AS running_count, waiting AS waiting_most,
    kv_usage AS kv_usage_most, ttft_p95_seconds AS ttft_p95_most_seconds, itl_p95_seconds AS itl_p95_most_seconds,
    preemptions_total, finished_total, aborted_total, errors_total, prompt_tokens_total, generation_tokens_total
FROM {database}.worker_samples
WHERE running IS NOT NULL OR kv_usage IS NOT NULL OR finished_total IS NOT NULL
