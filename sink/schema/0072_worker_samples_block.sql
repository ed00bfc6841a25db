ALTER TABLE {database}.worker_samples
    ADD COLUMN IF NOT EXISTS `block` UInt64 CODEC(Delta, ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `load` Nullable(UInt64) CODEC(T64, ZSTD(1)),
    ADD INDEX IF NOT EXISTS block_range block TYPE minmax GRANULARITY 1
