CREATE TABLE IF NOT EXISTS {database}.rollup_progress (
    rollup String,
    day Date,
    done DateTime DEFAULT now()
)
ENGINE = ReplacingMergeTree
ORDER BY (rollup, day)
