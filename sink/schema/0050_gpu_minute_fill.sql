CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.gpu_minute_fill TO {database}.gpu_minute_rollup AS
SELECT
    cluster, host, uuid, toStartOfMinute(time) AS minute, index AS gpu_index, name, toInt64(total_bytes) AS total_bytes,
    toInt64(gpu_samples.used_bytes) AS used_least_bytes, used_least_bytes AS used_most_bytes,
    if(processes_complete, used_least_bytes, NULL) AS complete_used_least_bytes,
    ifNull(gpu_samples.used_bytes, 0) AS used_sum, toUInt64(gpu_samples.used_bytes IS NOT NULL) AS used_count,
    (if(gpu_samples.used_bytes IS NULL, toDateTime64(0, 9, 'UTC'), time), used_least_bytes) AS used_last,
    toInt64(gpu_samples.driver_reserved_bytes) AS driver_reserved_bytes, ifNull(utilization, 0) AS utilization_sum, toUInt64(utilization IS NOT NULL) AS utilization_count,
    power_watts AS power_most_watts, temperature_celsius AS temperature_most_celsius, ecc_corrected_total, ecc_uncorrected_total, remapped_rows
FROM {database}.gpu_samples
