package sink

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed schema/*.sql
var schemaFiles embed.FS

var (
	// ErrSchemaChanged says that a file of the schema is another than the one that was applied under its name.
	ErrSchemaChanged = errors.New("schema file changed after it was applied")
	// ErrSchemaNewer says that the store has files that this program does not know: a newer one was here.
	ErrSchemaNewer = errors.New("the store's schema is newer than this program")
)

type migration struct{ name, statement, checksum string }

// migrations returns the files in the order of their numbers.
func migrations(database string) ([]migration, error) {
	names, err := fs.Glob(schemaFiles, "schema/*.sql")
	if err != nil {
		return nil, fmt.Errorf("list schema: %w", err)
	}
	slices.Sort(names)
	out := make([]migration, len(names))
	for i, name := range names {
		content, err := schemaFiles.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read schema: %w", err)
		}
		sum := sha256.Sum256(content)
		out[i] = migration{strings.TrimPrefix(name, "schema/"), strings.ReplaceAll(string(content), "{database}", database), hex.EncodeToString(sum[:])}
	}
	return out, nil
}

// The states of a file of the schema.
const (
	SchemaOK      = "ok"
	SchemaPending = "pending" // not applied yet
	SchemaChanged = "changed" // applied with another content
	SchemaUnknown = "unknown" // applied by a newer program, which this one does not have
)

// SchemaFile is one numbered file of the schema and how the store has it.
type SchemaFile struct {
	Number  int
	Name    string    // without number and ending
	File    string    // as it is called in sink/schema
	Applied time.Time // zero where it was not
	State   string
}

type appliedFile struct {
	checksum string
	at       time.Time
}

// Schema tells how the store has each file, in the order of their numbers. A store without a database has none.
func (c *ClickHouse) Schema(ctx context.Context) ([]SchemaFile, error) {
	list, err := migrations(c.database)
	if err != nil {
		return nil, err
	}
	applied, err := c.applied(ctx)
	if err != nil {
		return nil, c.explain("read schema_version", err)
	}
	return compareSchema(list, applied), nil
}

func compareSchema(list []migration, applied map[string]appliedFile) []SchemaFile {
	out := make([]SchemaFile, 0, len(list))
	add := func(file, state string, at time.Time) {
		number, name, _ := strings.Cut(strings.TrimSuffix(file, ".sql"), "_")
		n, _ := strconv.Atoi(number) // 0 for what no program of ours has written
		out = append(out, SchemaFile{Number: n, Name: name, File: file, Applied: at, State: state})
	}
	known := make(map[string]bool, len(list))
	for _, m := range list {
		known[m.name] = true
		have, ok := applied[m.name]
		switch {
		case !ok:
			add(m.name, SchemaPending, time.Time{})
		case have.checksum != m.checksum:
			add(m.name, SchemaChanged, have.at)
		default:
			add(m.name, SchemaOK, have.at)
		}
	}
	for file, have := range applied {
		if !known[file] {
			add(file, SchemaUnknown, have.at)
		}
	}
	slices.SortFunc(out, func(a, b SchemaFile) int { return strings.Compare(a.File, b.File) })
	return out
}

// Migrate creates the database and applies each file that is not recorded in `schema_version`, in their order. It may run again after any
// failure, also by two at a time, since each file is one idempotent statement and is recorded once it is through. A file that changed after it
// was applied is ErrSchemaChanged, before anything is done. A newer store is only said in the log: its tables still take what this program writes.
func (c *ClickHouse) Migrate(ctx context.Context) error {
	list, err := migrations(c.database)
	if err != nil {
		return err
	}
	for _, statement := range []string{
		"CREATE DATABASE IF NOT EXISTS " + c.database,
		"CREATE TABLE IF NOT EXISTS " + c.versions() + " (name String, checksum String, applied DateTime DEFAULT now()) ENGINE = ReplacingMergeTree ORDER BY name",
	} {
		if err := c.exec(ctx, statement); err != nil {
			return c.explain("prepare database "+c.database, err)
		}
	}
	applied, err := c.applied(ctx)
	if err != nil {
		return c.explain("read schema_version", err)
	}
	state := compareSchema(list, applied)
	if err := refuseChanged(state); err != nil {
		return err
	}
	if newer := filesIn(state, SchemaUnknown); len(newer) > 0 {
		c.log.Warn("the store's schema is newer than this program, which leaves it as it is", "files", strings.Join(newer, ", "))
	}
	for _, m := range list {
		if _, ok := applied[m.name]; ok {
			continue
		}
		if err := c.exec(ctx, m.statement); err != nil {
			return c.explain("migrate "+m.name, err)
		}
		if err := c.exec(ctx, "INSERT INTO "+c.versions()+" (name, checksum) VALUES ('"+m.name+"', '"+m.checksum+"')"); err != nil {
			return c.explain("record "+m.name, err)
		}
		c.log.Info("schema applied", "file", m.name)
	}
	return nil
}

func refuseChanged(state []SchemaFile) error {
	if changed := filesIn(state, SchemaChanged); len(changed) > 0 {
		return fmt.Errorf("migrate %s: %w\nhint: undo the change in sink/schema and add a new numbered file; `lowtide schema status` lists all", strings.Join(changed, ", "), ErrSchemaChanged)
	}
	return nil
}

func filesIn(all []SchemaFile, state string) (files []string) {
	for _, f := range all {
		if f.State == state {
			files = append(files, f.File)
		}
	}
	return files
}

func (c *ClickHouse) versions() string { return c.database + ".schema_version" }

// applied reads the version table; without one there is nothing. Two programs that applied a file at once recorded it twice: the first is told.
func (c *ClickHouse) applied(ctx context.Context) (map[string]appliedFile, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var there uint64
	if err := c.conn.QueryRow(ctx, "SELECT count() FROM system.tables WHERE database = '"+c.database+"' AND name = 'schema_version'").Scan(&there); err != nil {
		return nil, err
	}
	out := map[string]appliedFile{}
	if there == 0 {
		return out, nil
	}
	rows, err := c.conn.Query(ctx, "SELECT name, argMax(checksum, applied), min(applied) FROM "+c.versions()+" GROUP BY name")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var one appliedFile
		if err := rows.Scan(&name, &one.checksum, &one.at); err != nil {
			return nil, err
		}
		out[name] = one
	}
	return out, rows.Err()
}
