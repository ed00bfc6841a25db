ALTER TABLE {database}.findings
    ADD COLUMN IF NOT EXISTS `holders` String CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `snapshot` String CODEC(ZSTD(1))
