ALTER TABLE {database}.findings
    ADD COLUMN IF NOT EXISTS `shadow` Bool CODEC(ZSTD(1))
