CREATE OR REPLACE VIEW {database}.gpu_hours AS
SELECT
    r.hour AS hour, r.cluster AS cluster, r.host AS host, r.uuid AS gpu_uuid, max(r.gpu_index) AS gpu_index, max(r.name) AS name, max(r.total_bytes) AS total_bytes,
    min(r.used_least_bytes) AS used_least_bytes, max(r.used_most_bytes) AS used_most_bytes, if(sum(r.used_count) = 0, NULL, sum(r.used_sum) / sum(r.used_count)) AS used_mean_bytes,
    max(r.used_last).2 AS used_last_bytes, max(r.driver_reserved_bytes) AS driver_reserved_bytes,
    if(sum(r.utilization_count) = 0, NULL, sum(r.utilization_sum) / sum(r.utilization_count)) AS utilization_ratio,
    max(r.power_most_watts) AS power_watts, max(r.temperature_most_celsius) AS temperature_celsius,
    max(r.ecc_corrected_total) AS ecc_corrected_total, max(r.ecc_uncorrected_total) AS ecc_uncorrected_total, max(r.remapped_rows) AS remapped_rows
FROM {database}.gpu_hour_rollup AS r
WHERE r.hour >= toStartOfHour({since:DateTime64(3, 'UTC')}) AND r.hour < {until:DateTime64(3, 'UTC')} AND ({host:String} = '' OR r.host = {host:String})
GROUP BY r.cluster, r.host, r.uuid, r.hour
SETTINGS optimize_aggregation_in_order = 1
COMMENT 'one row per card and hour: lowest, highest, mean and last use, and the highest of the rest'
