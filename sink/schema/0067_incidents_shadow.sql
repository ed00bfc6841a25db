ALTER TABLE {database}.incidents
    ADD COLUMN IF NOT EXISTS `shadow` Bool CODEC(ZSTD(1))
