ALTER TABLE {database}.gpu_samples
    ADD COLUMN IF NOT EXISTS `block` UInt64 CODEC(Delta, ZSTD(1)),
    ADD INDEX IF NOT EXISTS block_range block TYPE minmax GRANULARITY 1
