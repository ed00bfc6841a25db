CREATE TABLE IF NOT EXISTS {database}.instance_minute_rollup (
    cluster LowCardinality(String),
    host LowCardinality(String),
    instance String CODEC(ZSTD(1)),
    minute DateTime('UTC') CODEC(DoubleDelta, ZSTD(1)),
    instance_hash SimpleAggregateFunction(max, UInt64) CODEC(ZSTD(1)),
    model SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    release SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    running_most SimpleAggregateFunction(max, Nullable(UInt64)) CODEC(T64, ZSTD(1)),
    running_sum SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    running_count SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    waiting_most SimpleAggregateFunction(max, Nullable(UInt64)) CODEC(T64, ZSTD(1)),
    kv_usage_most SimpleAggregateFunction(max, Nullable(Float64)) CODEC(ZSTD(1)),
    ttft_p95_most_seconds SimpleAggregateFunction(max, Nullable(Float64)) CODEC(ZSTD(1)),
    itl_p95_most_seconds SimpleAggregateFunction(max, Nullable(Float64)) CODEC(ZSTD(1)),
    preemptions_total SimpleAggregateFunction(max, Nullable(UInt64)) CODEC(T64, ZSTD(1)),
    finished_total SimpleAggregateFunction(max, Nullable(UInt64)) CODEC(T64, ZSTD(1)),
    aborted_total SimpleAggregateFunction(max, Nullable(UInt64)) CODEC(T64, ZSTD(1)),
    errors_total SimpleAggregateFunction(max, Nullable(UInt64)) CODEC(T64, ZSTD(1)),
    prompt_tokens_total SimpleAggregateFunction(max, Nullable(UInt64)) CODEC(T64, ZSTD(1)),
    generation_tokens_total SimpleAggregateFunction(max, Nullable(UInt64)) CODEC(T64, ZSTD(1))
)
ENGINE = AggregatingMergeTree
PARTITION BY toMonday(minute)
ORDER BY (cluster, host, instance, minute)
TTL minute + INTERVAL 90 DAY
SETTINGS non_replicated_deduplication_window = 20000, ttl_only_drop_parts = 1
