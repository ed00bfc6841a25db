ALTER TABLE {database}.host_samples MODIFY SETTING non_replicated_deduplication_window = 20000
