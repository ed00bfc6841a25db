CREATE VIEW IF NOT EXISTS {database}.incident_holders AS
SELECT
    incident, class, state, slot, holder.2 AS stack_bytes, holder.3 AS blocks, holder.4 AS growth_bytes, holder.1 AS frames, snapshot AS snapshot_file, time
FROM (
    SELECT i.incident AS incident, i.class AS class, i.state AS state, i.slot AS slot, i.snapshot AS snapshot, i.time AS time,
        arrayJoin(JSONExtract(i.holders, 'Array(Tuple(frames Array(String), live_bytes Int64, blocks UInt64, growth_bytes Nullable(Int64)))')) AS holder
    FROM {database}.incidents AS i FINAL
    WHERE startsWith(i.incident, {incident:String})
)
ORDER BY incident, stack_bytes DESC, frames
COMMENT 'who holds the memory, by the last snapshot that an incident has'
