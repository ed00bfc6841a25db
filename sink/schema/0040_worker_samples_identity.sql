ALTER TABLE {database}.worker_samples
    ADD COLUMN IF NOT EXISTS `start_ticks` Nullable(UInt64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `gpu_uuids` Array(LowCardinality(String)) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `bodies` UInt16 CODEC(T64, ZSTD(1))
