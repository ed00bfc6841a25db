CREATE OR REPLACE VIEW {database}.noisy_rules AS
SELECT
    rule, class, count() AS incidents, sum(said) AS transitions, transitions / incidents AS transitions_per_incident, countIf(paged) AS paged,
    countIf(NOT confirmed) AS never_confirmed, countIf(resolved AND hours <= 1) AS over_within_an_hour, uniqExact(slot) AS slots, max(last_time) AS last_time
FROM (
    SELECT f.incident AS incident, argMax(f.rule, f.version) AS rule, argMax(f.class, f.version) AS class, count() AS said, max(f.severity = 'page') AS paged,
        max(f.state = 'confirmed') AS confirmed, argMax(f.state, f.version) = 'resolved' AS resolved,
        dateDiff('second', min(f.time), max(f.time)) / 3600 AS hours, any(f.slot) AS slot, max(f.time) AS last_time
    FROM {database}.findings AS f
    WHERE NOT f.shadow AND f.time >= {since:DateTime64(3, 'UTC')} AND f.time < {until:DateTime64(3, 'UTC')}
    GROUP BY f.incident
)
GROUP BY rule, class
ORDER BY transitions DESC, rule
COMMENT 'which rules speak most, and how often nothing confirmed them'
