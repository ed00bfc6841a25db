package engine

import (
	"math"
	"strconv"
	"strings"
)

// settingVerdict says what the gate does with a setting of a request or of a SETTINGS clause.
type settingVerdict uint8

const (
	settingRefused settingVerdict = iota
	settingIgnored                // about the connection or about logs: accepted and without effect here
	settingPassed
)

// ignoredSettings are what drivers send by habit. async_insert is among them: every insert here is synchronous, which promises
// more than what was asked for.
var ignoredSettings = wordSet(`async_insert wait_for_async_insert log_comment log_queries log_profile_events log_query_threads
	send_progress_in_http_headers http_headers_progress_interval_ms wait_end_of_query buffer_size
	cancel_http_readonly_queries_on_client_close connect_timeout connect_timeout_with_failover_ms receive_timeout send_timeout
	network_compression_method network_zstd_compression_level enable_http_compression http_zlib_compression_level
	client_protocol_version stacktrace quota_key session_id session_timeout session_check add_http_cors_header
	http_response_buffer_size http_wait_end_of_query http_write_exception_in_output_format http_receive_timeout
	http_send_timeout http_connection_timeout http_max_tries http_response_headers close_session use_client_time_zone send_logs_level
	readonly framed_progress_output_format`)

// passedSettings are set for the statement. Whatever is on neither list is refused, so that a setting of a newer library which
// reaches out of the engine is not passed on unseen.
var passedSettings = wordSet(`final extremes limit offset transform_null_in session_timezone set_overflow_mode union_default_mode
	except_default_mode intersect_default_mode priority any_join_distinct_right_table_keys joined_subquery_requires_alias
	date_time_input_format date_time_output_format bool_true_representation bool_false_representation format_csv_delimiter
	interval_output_format allow_experimental_json_type allow_experimental_object_type allow_experimental_dynamic_type
	allow_experimental_variant_type allow_experimental_analyzer allow_simdjson
	select_sequential_consistency short_circuit_function_evaluation totals_mode totals_auto_threshold count_distinct_implementation
	throw_if_no_data_to_insert materialize_ttl_after_modify type_json_skip_duplicated_paths cast_keep_nullable`)

var passedPrefixes = []string{"max_", "min_", "output_format_", "input_format_", "format_csv_", "format_tsv_", "join_", "group_by_",
	"optimize_", "use_", "enable_", "insert_", "date_time_", "cast_", "distinct_", "sort_", "read_", "merge_tree_", "aggregate_",
	"aggregation_", "query_plan_", "prefer_", "deduplicate_", "low_cardinality_", "compile_", "allow_suspicious_", "timeout_",
	"mutations_", "alter_", "lightweight_", "result_overflow_", "schema_inference_", "force_", "grace_hash_", "partial_merge_",
	"partial_result_", "parallel_view_", "update_"}

// refusedSettings match a prefix above and still reach out of the engine, or lift a bound on its stack or memory.
var refusedSettings = wordSet(`input_format_record_errors_file_path max_untracked_memory max_parser_depth max_parser_backtracks
	max_ast_depth max_ast_elements max_expanded_ast_elements max_subquery_depth max_memory_usage_for_user
	enable_filesystem_cache enable_filesystem_cache_on_write_operations enable_filesystem_cache_log enable_url_encoding`)

// judgeSetting says what to do with a query setting, and refuses names that are no plain words.
func judgeSetting(name string) settingVerdict {
	if !plainName(name) {
		return settingRefused
	}
	if ignoredSettings[name] || strings.HasPrefix(name, "async_insert_") {
		return settingIgnored
	}
	if refusedSettings[name] {
		return settingRefused
	}
	if passedSettings[name] {
		return settingPassed
	}
	for _, prefix := range passedPrefixes {
		if strings.HasPrefix(name, prefix) && len(name) > len(prefix) {
			return settingPassed
		}
	}
	return settingRefused
}

// judgeTableSetting says whether a table may be made with the setting; those that place parts elsewhere are refused.
func judgeTableSetting(name string) bool {
	if !plainName(name) || name == "disk" || name == "storage_policy" || name == "table_disk" {
		return false
	}
	for _, part := range []string{"path", "remote", "zookeeper", "s3", "replicas", "script", "search_orphaned", "schema", "url"} {
		if strings.Contains(name, part) {
			return false
		}
	}
	return true
}

// withinBound reports whether value is a number above 0 and at most bound.
func withinBound(value string, bound int64) bool {
	v, err := strconv.ParseFloat(value, 64)
	return err == nil && !math.IsNaN(v) && v > 0 && v <= float64(bound)
}

// clampSetting returns value, or bound where value asks for more or for none.
func clampSetting(value string, bound int64) string {
	if withinBound(value, bound) {
		return value
	}
	return strconv.FormatInt(bound, 10)
}

func plainName(name string) bool {
	if name == "" || len(name) > 128 || name[0] >= '0' && name[0] <= '9' {
		return false
	}
	for i := range len(name) {
		if !wordByte(name[i]) {
			return false
		}
	}
	return true
}

func wordSet(words string) map[string]bool {
	set := make(map[string]bool)
	for word := range strings.FieldsSeq(words) {
		set[word] = true
	}
	return set
}
