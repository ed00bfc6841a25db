CREATE TABLE IF NOT EXISTS {database}.findings (
    `time` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `cluster` LowCardinality(String) CODEC(ZSTD(1)),
    `host` LowCardinality(String) CODEC(ZSTD(1)),
    `id` String CODEC(ZSTD(1)),
    `incident` String CODEC(ZSTD(1)),
    `subject_kind` LowCardinality(String) CODEC(ZSTD(1)),
    `subject_key` String CODEC(ZSTD(1)),
    `slot` String CODEC(ZSTD(1)),
    `pid` Nullable(Int64) CODEC(ZSTD(1)),
    `rule` LowCardinality(String) CODEC(ZSTD(1)),
    `class` LowCardinality(String) CODEC(ZSTD(1)),
    `state` LowCardinality(String) CODEC(ZSTD(1)),
    `severity` LowCardinality(String) CODEC(ZSTD(1)),
    `confidence` Float64 CODEC(ZSTD(1)),
    `summary` String CODEC(ZSTD(1)),
    `growth` Nullable(Float64) CODEC(ZSTD(1)),
    `growth_low` Nullable(Float64) CODEC(ZSTD(1)),
    `growth_high` Nullable(Float64) CODEC(ZSTD(1)),
    `growth_unit` LowCardinality(String) CODEC(ZSTD(1)),
    `per_request` Nullable(Float64) CODEC(ZSTD(1)),
    `per_abort` Nullable(Float64) CODEC(ZSTD(1)),
    `hours_to_limit_low` Nullable(Float64) CODEC(ZSTD(1)),
    `hours_to_limit_high` Nullable(Float64) CODEC(ZSTD(1)),
    `onset` Nullable(DateTime64(9, 'UTC')) CODEC(ZSTD(1)),
    `release` LowCardinality(String) CODEC(ZSTD(1)),
    `config_hash` LowCardinality(String) CODEC(ZSTD(1)),
    `engine_version` LowCardinality(String) CODEC(ZSTD(1)),
    `torch_version` LowCardinality(String) CODEC(ZSTD(1)),
    `alloc_conf` LowCardinality(String) CODEC(ZSTD(1)),
    `labels` String CODEC(ZSTD(1)),
    `evidence` String CODEC(ZSTD(1)),
    `counter_evidence` String CODEC(ZSTD(1)),
    `symptoms` String CODEC(ZSTD(1)),
    `advice` String CODEC(ZSTD(1)),
    `not_assessable` String CODEC(ZSTD(1)),
    `body` String CODEC(ZSTD(1)),
    `version` UInt64 CODEC(ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (cluster, host, incident, time, id)
TTL toDateTime(time) + INTERVAL 1 YEAR
SETTINGS non_replicated_deduplication_window = 1000, ttl_only_drop_parts = 1
