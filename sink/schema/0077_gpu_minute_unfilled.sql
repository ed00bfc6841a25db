DROP VIEW IF EXISTS {database}.gpu_minute_fill
