DROP VIEW IF EXISTS {database}.instance_minute_fill
