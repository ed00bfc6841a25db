DROP VIEW IF EXISTS {database}.worker_hour_fill
