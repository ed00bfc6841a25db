DROP VIEW IF EXISTS {database}.gpu_hour_fill
