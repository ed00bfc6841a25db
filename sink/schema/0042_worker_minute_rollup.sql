CREATE TABLE IF NOT EXISTS {database}.worker_minute_rollup (
    cluster LowCardinality(String),
    host LowCardinality(String),
    worker_key String CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String),
    minute DateTime('UTC') CODEC(DoubleDelta, ZSTD(1)),
    slot SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    instance_hash SimpleAggregateFunction(max, UInt64) CODEC(ZSTD(1)),
    pid SimpleAggregateFunction(max, Int64) CODEC(ZSTD(1)),
    start_time SimpleAggregateFunction(max, Nullable(DateTime64(9, 'UTC'))) CODEC(ZSTD(1)),
    model SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    release SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    pod SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    live_least_bytes SimpleAggregateFunction(min, Nullable(Int64)) CODEC(T64, ZSTD(1)),
    live_most_bytes SimpleAggregateFunction(max, Nullable(Int64)) CODEC(T64, ZSTD(1)),
    awaiting_least_bytes SimpleAggregateFunction(min, Nullable(Int64)) CODEC(T64, ZSTD(1)),
    cached_least_bytes SimpleAggregateFunction(min, Nullable(Int64)) CODEC(T64, ZSTD(1)),
    reserved_least_bytes SimpleAggregateFunction(min, Nullable(Int64)) CODEC(T64, ZSTD(1)),
    reserved_most_bytes SimpleAggregateFunction(max, Nullable(Int64)) CODEC(T64, ZSTD(1)),
    used_least_bytes SimpleAggregateFunction(min, Nullable(Int64)) CODEC(T64, ZSTD(1)),
    used_most_bytes SimpleAggregateFunction(max, Nullable(Int64)) CODEC(T64, ZSTD(1)),
    anon_least_bytes SimpleAggregateFunction(min, Nullable(Int64)) CODEC(T64, ZSTD(1)),
    anon_most_bytes SimpleAggregateFunction(max, Nullable(Int64)) CODEC(T64, ZSTD(1)),
    pinned_allocated_least_bytes SimpleAggregateFunction(min, Nullable(Int64)) CODEC(T64, ZSTD(1)),
    pinned_kernel_least_bytes SimpleAggregateFunction(min, Nullable(Int64)) CODEC(T64, ZSTD(1)),
    fds_least SimpleAggregateFunction(min, Nullable(Int64)) CODEC(T64, ZSTD(1)),
    threads_least SimpleAggregateFunction(min, Nullable(Int64)) CODEC(T64, ZSTD(1)),
    ooms_least_total SimpleAggregateFunction(min, Nullable(UInt64)) CODEC(T64, ZSTD(1)),
    ooms_total SimpleAggregateFunction(max, Nullable(UInt64)) CODEC(T64, ZSTD(1))
)
ENGINE = AggregatingMergeTree
PARTITION BY toMonday(minute)
ORDER BY (cluster, host, worker_key, gpu_uuid, minute)
TTL minute + INTERVAL 90 DAY
SETTINGS non_replicated_deduplication_window = 20000, ttl_only_drop_parts = 1
