CREATE OR REPLACE VIEW {database}.peers AS
SELECT
    slot, release, toBool(has(asked.keys, worker_key)) AS asked, trend, live_bytes_per_hour, outside_bytes_per_hour, live_bytes_per_abort, level_bytes,
    if(hours > 0, requests / hours, NULL) AS requests_per_hour, if(hours > 0, aborts / hours, NULL) AS aborts_per_hour, quiet_points, hours, gpu_uuid
FROM {database}.worker_growth(since = {since:DateTime64(3, 'UTC')}, until = {until:DateTime64(3, 'UTC')}, worker = '', slot = '', host = '', release = '') AS g
CROSS JOIN (
    SELECT groupUniqArray(s.worker_key) AS keys, groupUniqArray(s.model) AS models
    FROM {database}.worker_hour_rollup AS s
    WHERE s.hour >= toStartOfHour({since:DateTime64(3, 'UTC')}) AND s.hour < {until:DateTime64(3, 'UTC')} AND s.model != '' AND ({slot:String} = '' OR s.slot = {slot:String})
        AND ({worker:String} = '' OR position(s.slot, {worker:String}) > 0 OR position(s.pod, {worker:String}) > 0 OR toString(s.pid) = {worker:String})
) AS asked
WHERE has(asked.models, g.model)
ORDER BY asked DESC, trend LIKE '% rises' DESC, live_bytes_per_hour DESC, slot, gpu_uuid
COMMENT 'the workers of the same model: who grows and who does not, under which load'
