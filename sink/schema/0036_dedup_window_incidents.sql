ALTER TABLE {database}.incidents MODIFY SETTING non_replicated_deduplication_window = 20000
