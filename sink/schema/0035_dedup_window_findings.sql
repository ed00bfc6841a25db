ALTER TABLE {database}.findings MODIFY SETTING non_replicated_deduplication_window = 20000
