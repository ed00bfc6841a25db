package engine

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Names below the data folder. The library's tables are in a folder of their own, apart from the password files.
const (
	storeFolder = "store"
	configFile  = "config.xml"
	usersFile   = "users.xml"
)

// Bounds of the two accounts; memory is a share of the engine's limit.
const (
	writerSeconds     = 300
	readerSeconds     = 30
	resultBytes       = 256 << 20
	readerResultRows  = 1_000_000
	writerResultRows  = 10_000_000
	defaultDatabaseID = "6c6f7774-6964-4e00-8000-656e67696e65" // fixed, so that two starts write the same file
)

// accounts returns the writer and the reader of an engine with the memory limit, in bytes.
func accounts(memoryLimit int64) (writer, reader account) {
	writer = account{role: RoleWriter, writes: true, bounds: map[string]int64{
		"max_execution_time": writerSeconds, "max_memory_usage": memoryLimit / 4 * 3,
		"max_result_rows": writerResultRows, "max_result_bytes": resultBytes}}
	reader = account{role: RoleReader, bounds: map[string]int64{
		"max_execution_time": readerSeconds, "max_memory_usage": memoryLimit / 2,
		"max_result_rows": readerResultRows, "max_result_bytes": resultBytes}}
	return writer, reader
}

// writeConfig writes the library's configuration below the data folder. The library enforces, apart from the gate: the memory of the whole engine; that the account of its sessions has no grant for any source
// or engine that reaches out; the bounds of settings; no change of the settings listed as fixed. A database default is placed
// in a new folder, because the library's own one would take the path of any file as the name of a table.
func writeConfig(folder string, memoryLimit int64) error {
	store := filepath.Join(folder, storeFolder)
	if err := os.MkdirAll(filepath.Join(store, "metadata"), 0o700); err != nil {
		return fmt.Errorf("create store folder: %w", err)
	}
	definition := filepath.Join(store, "metadata", "default.sql")
	if _, err := os.Stat(definition); os.IsNotExist(err) {
		if err := writeWhole(definition, "ATTACH DATABASE _ UUID '"+defaultDatabaseID+"' ENGINE = Atomic\n"); err != nil {
			return err
		}
	}
	users := filepath.Join(folder, usersFile)
	if err := writeWhole(users, usersConfig(memoryLimit)); err != nil {
		return err
	}
	return writeWhole(filepath.Join(folder, configFile), mainConfig(folder, users, memoryLimit))
}

// sessionArguments are what every session of the library is opened with.
func sessionArguments(folder string) []string {
	return []string{"--path=" + filepath.Join(folder, storeFolder), "--config-file=" + filepath.Join(folder, configFile)}
}

func mainConfig(folder, users string, memoryLimit int64) string {
	var b strings.Builder
	b.WriteString("<clickhouse>\n")
	for _, e := range [][2]string{
		{"max_server_memory_usage", fmt.Sprint(memoryLimit)},
		{"mark_cache_size", fmt.Sprint(memoryLimit / 32)},
		{"primary_index_cache_size", fmt.Sprint(memoryLimit / 64)},
		{"index_mark_cache_size", fmt.Sprint(memoryLimit / 64)},
		{"query_condition_cache_size", fmt.Sprint(memoryLimit / 64)},
		{"compiled_expression_cache_size", fmt.Sprint(memoryLimit / 64)},
		{"uncompressed_cache_size", "0"},
		{"users_config", users},
		{"user_scripts_path", filepath.Join(folder, storeFolder, "scripts-none")},
		{"default_database", ""},
		{"database", "default"},
		{"max_open_files", "65536"},
	} {
		fmt.Fprintf(&b, "  <%s>%s</%s>\n", e[0], escapeXML(e[1]), e[0])
	}
	b.WriteString("</clickhouse>\n")
	return b.String()
}

// fixedSettings cannot be changed by any statement; the value is the one that holds.
var fixedSettings = [][2]string{
	{"async_insert", "0"}, {"implicit_select", "0"}, {"dialect", "clickhouse"}, {"allow_introspection_functions", "0"},
	{"allow_settings_after_format_in_insert", "0"}, {"allow_experimental_eval_table_function", "0"},
	{"input_format_record_errors_file_path", ""}, {"max_untracked_memory", "4194304"}, {"max_parser_depth", "1000"},
	{"max_subquery_depth", "100"},
}

func usersConfig(memoryLimit int64) string {
	writer, _ := accounts(memoryLimit)
	var profile, constraints, grants strings.Builder
	for _, s := range fixedSettings {
		fmt.Fprintf(&profile, "    <%s>%s</%s>\n", s[0], s[1], s[0])
		fmt.Fprintf(&constraints, "      <%s><const/></%s>\n", s[0], s[0])
	}
	for _, name := range []string{"max_execution_time", "max_memory_usage", "max_result_rows", "max_result_bytes"} {
		fmt.Fprintf(&profile, "    <%s>%d</%s>\n", name, writer.bounds[name], name)
		fmt.Fprintf(&constraints, "      <%s><min>1</min><max>%d</max></%s>\n", name, writer.bounds[name], name)
	}
	grants.WriteString("        <query>GRANT CHECK, SHOW, SELECT, INSERT, ALTER UPDATE, ALTER DELETE, ALTER COLUMN, ALTER INDEX, ALTER PROJECTION, " +
		"ALTER STATISTICS, ALTER CONSTRAINT, ALTER TTL, ALTER SETTINGS, ALTER MOVE PARTITION, ALTER VIEW, ALTER TABLE, " +
		"CREATE DATABASE, CREATE TABLE, CREATE VIEW, CREATE TEMPORARY TABLE, DROP, TRUNCATE, OPTIMIZE, KILL QUERY ON *.*</query>\n")
	for _, name := range allowedEngineNames {
		fmt.Fprintf(&grants, "        <query>GRANT TABLE ENGINE ON %s</query>\n", name)
	}
	return "<clickhouse>\n  <profiles><default>\n" + profile.String() + "    <constraints>\n" + constraints.String() +
		"    </constraints>\n  </default></profiles>\n  <users><default>\n    <password></password>\n    <networks><ip>::/0</ip></networks>\n" +
		"    <profile>default</profile>\n    <quota>default</quota>\n    <grants>\n" + grants.String() +
		"    </grants>\n  </default></users>\n  <quotas><default></default></quotas>\n</clickhouse>\n"
}

func escapeXML(text string) string {
	var b strings.Builder
	// Writing to a Builder cannot fail.
	_ = xml.EscapeText(&b, []byte(text))
	return b.String()
}

// writeWhole replaces the file at path, so that a crash or a full disk never leaves half of it.
func writeWhole(path, content string) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == content {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("create %s: %w", filepath.Base(path), err)
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(content)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}
