CREATE TABLE IF NOT EXISTS {database}.gpu_hour_rollup (
    cluster LowCardinality(String),
    host LowCardinality(String),
    uuid LowCardinality(String),
    hour DateTime('UTC') CODEC(DoubleDelta, ZSTD(1)),
    gpu_index SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),
    name SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    total_bytes SimpleAggregateFunction(max, Nullable(Int64)) CODEC(T64, ZSTD(1)),
    used_least_bytes SimpleAggregateFunction(min, Nullable(Int64)) CODEC(T64, ZSTD(1)),
    used_most_bytes SimpleAggregateFunction(max, Nullable(Int64)) CODEC(T64, ZSTD(1)),
    complete_used_least_bytes SimpleAggregateFunction(min, Nullable(Int64)) CODEC(T64, ZSTD(1)),
    used_sum SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    used_count SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    used_last SimpleAggregateFunction(max, Tuple(DateTime64(9, 'UTC'), Nullable(Int64))) CODEC(ZSTD(1)),
    driver_reserved_bytes SimpleAggregateFunction(max, Nullable(Int64)) CODEC(T64, ZSTD(1)),
    utilization_sum SimpleAggregateFunction(sum, Float64) CODEC(ZSTD(1)),
    utilization_count SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    power_most_watts SimpleAggregateFunction(max, Nullable(Float64)) CODEC(ZSTD(1)),
    temperature_most_celsius SimpleAggregateFunction(max, Nullable(Float64)) CODEC(ZSTD(1)),
    ecc_corrected_total SimpleAggregateFunction(max, Nullable(UInt64)) CODEC(T64, ZSTD(1)),
    ecc_uncorrected_total SimpleAggregateFunction(max, Nullable(UInt64)) CODEC(T64, ZSTD(1)),
    remapped_rows SimpleAggregateFunction(max, Nullable(UInt64)) CODEC(T64, ZSTD(1))
)
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMM(hour)
ORDER BY (cluster, host, uuid, hour)
TTL hour + INTERVAL 2 YEAR
SETTINGS non_replicated_deduplication_window = 20000, ttl_only_drop_parts = 1
