package sink

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

//go:embed schema/*.sql
var schemaFiles embed.FS

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

// Migrate creates the database and applies each file that is not recorded in `schema_version`. It may run again, also by two at a time,
// since each file is one idempotent statement. A file that changed after it was applied is an error.
func (c *ClickHouse) Migrate(ctx context.Context) error {
	list, err := migrations(c.database)
	if err != nil {
		return err
	}
	versions := c.database + ".schema_version"
	for _, statement := range []string{
		"CREATE DATABASE IF NOT EXISTS " + c.database,
		"CREATE TABLE IF NOT EXISTS " + versions + " (name String, checksum String, applied DateTime DEFAULT now()) ENGINE = ReplacingMergeTree ORDER BY name",
	} {
		if err := c.exec(ctx, statement); err != nil {
			return c.explain("prepare database "+c.database, err)
		}
	}
	applied, err := c.applied(ctx, versions)
	if err != nil {
		return c.explain("read schema_version", err)
	}
	for _, m := range list {
		if have, ok := applied[m.name]; ok {
			if have != m.checksum {
				return fmt.Errorf("migrate %s: the file changed after it was applied\nhint: undo the change and add a new numbered file", m.name)
			}
			continue
		}
		if err := c.exec(ctx, m.statement); err != nil {
			return c.explain("migrate "+m.name, err)
		}
		if err := c.exec(ctx, "INSERT INTO "+versions+" (name, checksum) VALUES ('"+m.name+"', '"+m.checksum+"')"); err != nil {
			return c.explain("record "+m.name, err)
		}
		c.log.Info("schema applied", "file", m.name)
	}
	return nil
}

func (c *ClickHouse) applied(ctx context.Context, versions string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	rows, err := c.conn.Query(ctx, "SELECT name, checksum FROM "+versions+" FINAL")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := map[string]string{}
	for rows.Next() {
		var name, checksum string
		if err := rows.Scan(&name, &checksum); err != nil {
			return nil, err
		}
		out[name] = checksum
	}
	return out, rows.Err()
}
