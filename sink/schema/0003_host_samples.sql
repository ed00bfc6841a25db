CREATE TABLE IF NOT EXISTS {database}.host_samples (
    `time` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `cluster` LowCardinality(String) CODEC(ZSTD(1)),
    `host` LowCardinality(String) CODEC(ZSTD(1)),
    `boot_id` LowCardinality(String) CODEC(ZSTD(1)),
    `memory_total_bytes` Nullable(UInt64) CODEC(T64, ZSTD(1)),
    `memory_available_bytes` Nullable(UInt64) CODEC(T64, ZSTD(1)),
    `fds` Nullable(UInt64) CODEC(T64, ZSTD(1)),
    `fds_limit` Nullable(UInt64) CODEC(T64, ZSTD(1)),
    `driver_version` LowCardinality(String) CODEC(ZSTD(1)),
    `kernel_version` LowCardinality(String) CODEC(ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (cluster, host, time)
TTL toDateTime(time) + INTERVAL 30 DAY
SETTINGS non_replicated_deduplication_window = 1000, ttl_only_drop_parts = 1
