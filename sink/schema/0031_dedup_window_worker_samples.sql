ALTER TABLE {database}.worker_samples MODIFY SETTING non_replicated_deduplication_window = 20000
