CREATE VIEW IF NOT EXISTS {database}.snapshot_stacks AS
SELECT
    time, slot, reason, stack.2 AS stack_bytes, stack.3 AS blocks,
    stack_bytes - lagInFrame(toNullable(stack_bytes), 1, NULL) OVER (PARTITION BY worker_key, gpu_uuid, stack.1 ORDER BY time ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS change_bytes,
    stack.1 AS frames, snapshot_file, gpu_uuid
FROM (
    SELECT e.time AS time, e.slot AS slot, e.worker_key AS worker_key, e.gpu_uuid AS gpu_uuid, e.kind AS reason, e.name AS snapshot_file,
        arrayJoin(JSONExtract(e.body, 'snapshot', 'stacks', 'Array(Tuple(frames Array(String), live_bytes Int64, blocks UInt64))')) AS stack
    FROM {database}.events AS e
    WHERE e.event = 'snapshot' AND e.time >= {since:DateTime64(3, 'UTC')} AND e.time < {until:DateTime64(3, 'UTC')} AND ({slot:String} = '' OR e.slot = {slot:String})
        AND ({worker:String} = '' OR position(e.slot, {worker:String}) > 0 OR position(e.pod, {worker:String}) > 0 OR toString(e.pid) = {worker:String})
)
ORDER BY slot, gpu_uuid, time, stack_bytes DESC, frames
COMMENT 'the stacks that hold memory in each allocator snapshot, and what changed since the one before'
