ALTER TABLE {database}.worker_samples MODIFY SETTING min_bytes_for_wide_part = 134217728, min_parts_to_merge_at_once = 32, max_bytes_to_merge_at_max_space_in_pool = 4294967296
