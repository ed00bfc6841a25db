CREATE OR REPLACE VIEW {database}.incidents_by_week AS
SELECT
    toMonday(first_time) AS week, class, count() AS incidents, countIf(paged) AS paged, countIf(confirmed) AS confirmed, countIf(last_state = 'resolved') AS resolved,
    uniqExact(slot) AS slots, arraySort(groupUniqArrayIf(10)(release, release != '')) AS releases
FROM (
    SELECT f.incident AS incident, min(f.time) AS first_time, argMax(f.class, f.version) AS class, max(f.severity = 'page') AS paged, max(f.state = 'confirmed') AS confirmed,
        argMax(f.state, f.version) AS last_state, any(f.slot) AS slot, argMax(f.release, f.version) AS release, any(f.host) AS host
    FROM {database}.findings AS f
    WHERE NOT f.shadow
    GROUP BY f.incident
)
WHERE first_time >= {since:DateTime64(3, 'UTC')} AND first_time < {until:DateTime64(3, 'UTC')}
    AND ({host:String} = '' OR host = {host:String}) AND ({release:String} = '' OR release = {release:String})
GROUP BY week, class
ORDER BY week, incidents DESC, class
COMMENT 'incidents by the week in which they began and by class'
