CREATE TABLE IF NOT EXISTS {database}.events (
    `time` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `cluster` LowCardinality(String) CODEC(ZSTD(1)),
    `host` LowCardinality(String) CODEC(ZSTD(1)),
    `boot_id` LowCardinality(String) CODEC(ZSTD(1)),
    `worker_key` String CODEC(ZSTD(1)),
    `slot` String CODEC(ZSTD(1)),
    `pid` Int64 CODEC(ZSTD(1)),
    `start_time` Nullable(DateTime64(9, 'UTC')) CODEC(ZSTD(1)),
    `role` LowCardinality(String) CODEC(ZSTD(1)),
    `rank` Nullable(Int64) CODEC(ZSTD(1)),
    `engine` LowCardinality(String) CODEC(ZSTD(1)),
    `engine_index` Nullable(Int64) CODEC(ZSTD(1)),
    `unit` LowCardinality(String) CODEC(ZSTD(1)),
    `model` LowCardinality(String) CODEC(ZSTD(1)),
    `release` LowCardinality(String) CODEC(ZSTD(1)),
    `pod` LowCardinality(String) CODEC(ZSTD(1)),
    `container_id` LowCardinality(String) CODEC(ZSTD(1)),
    `sequence` UInt64 CODEC(Delta, ZSTD(1)),
    `event` LowCardinality(String) CODEC(ZSTD(1)),
    `gpu_uuid` LowCardinality(String) CODEC(ZSTD(1)),
    `name` LowCardinality(String) CODEC(ZSTD(1)),
    `kind` LowCardinality(String) CODEC(ZSTD(1)),
    `state` LowCardinality(String) CODEC(ZSTD(1)),
    `status` LowCardinality(String) CODEC(ZSTD(1)),
    `signature` LowCardinality(String) CODEC(ZSTD(1)),
    `code` Nullable(UInt64) CODEC(ZSTD(1)),
    `exit_code` Nullable(Int64) CODEC(ZSTD(1)),
    `signal` Nullable(Int64) CODEC(ZSTD(1)),
    `by` LowCardinality(String) CODEC(ZSTD(1)),
    `requested_bytes` Nullable(UInt64) CODEC(ZSTD(1)),
    `free_bytes` Nullable(UInt64) CODEC(ZSTD(1)),
    `limit_bytes` Nullable(UInt64) CODEC(ZSTD(1)),
    `allocated_bytes` Nullable(UInt64) CODEC(ZSTD(1)),
    `reserved_unallocated_bytes` Nullable(UInt64) CODEC(ZSTD(1)),
    `text` String CODEC(ZSTD(1)),
    `body` String CODEC(ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (cluster, host, worker_key, time, sequence)
TTL toDateTime(time) + INTERVAL 30 DAY
SETTINGS non_replicated_deduplication_window = 1000, ttl_only_drop_parts = 1
