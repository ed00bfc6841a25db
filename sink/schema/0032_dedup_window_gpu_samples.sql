ALTER TABLE {database}.gpu_samples MODIFY SETTING non_replicated_deduplication_window = 20000
