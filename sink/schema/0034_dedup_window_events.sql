ALTER TABLE {database}.events MODIFY SETTING non_replicated_deduplication_window = 20000
