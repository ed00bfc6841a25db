CREATE TABLE IF NOT EXISTS {database}.gpu_samples (
    `time` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `cluster` LowCardinality(String) CODEC(ZSTD(1)),
    `host` LowCardinality(String) CODEC(ZSTD(1)),
    `boot_id` LowCardinality(String) CODEC(ZSTD(1)),
    `uuid` LowCardinality(String) CODEC(ZSTD(1)),
    `index` Nullable(Int64) CODEC(T64, ZSTD(1)),
    `name` LowCardinality(String) CODEC(ZSTD(1)),
    `total_bytes` Nullable(UInt64) CODEC(T64, ZSTD(1)),
    `used_bytes` Nullable(UInt64) CODEC(T64, ZSTD(1)),
    `free_bytes` Nullable(UInt64) CODEC(T64, ZSTD(1)),
    `driver_reserved_bytes` Nullable(UInt64) CODEC(T64, ZSTD(1)),
    `processes_complete` Nullable(Bool) CODEC(ZSTD(1)),
    `power_watts` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `utilization` Nullable(Float64) CODEC(ZSTD(1)),
    `ecc_corrected_total` Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    `ecc_uncorrected_total` Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    `remapped_rows` Nullable(UInt64) CODEC(T64, ZSTD(1)),
    `remap_pending` Nullable(Bool) CODEC(ZSTD(1)),
    `mig` LowCardinality(String) CODEC(ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (cluster, host, uuid, time)
TTL toDateTime(time) + INTERVAL 30 DAY
SETTINGS non_replicated_deduplication_window = 1000, ttl_only_drop_parts = 1
