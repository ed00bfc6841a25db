DROP VIEW IF EXISTS {database}.worker_minute_fill
