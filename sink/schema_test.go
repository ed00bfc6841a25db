package sink

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// The .sql files are written by hand, the columns of the rows come from the generated types: they must be the same list.
func TestSchemaHasTheColumnsOfTheVocabulary(t *testing.T) {
	want := map[string][]string{}
	for name, all := range tableFields {
		want[name] = columnNames(all)
	}
	list, err := migrations("lowtide")
	if err != nil {
		t.Fatal(err)
	}
	column := regexp.MustCompile("(?m)^    (?:ADD COLUMN IF NOT EXISTS )?`([a-z0-9_]+)` [A-Z]")
	have := map[string][]string{}
	for _, m := range list {
		added := strings.Count(m.statement, "ADD COLUMN")
		idempotent := strings.HasPrefix(m.statement, "CREATE OR REPLACE VIEW lowtide.") || strings.HasPrefix(m.statement, "INSERT INTO lowtide.rollup_progress ") || strings.Contains(m.statement, " MODIFY SETTING ") || strings.HasPrefix(m.statement, "DROP VIEW IF EXISTS ") || strings.Count(m.statement, "IF NOT EXISTS") == max(1, added+strings.Count(m.statement, "ADD INDEX"))
		if strings.Contains(m.statement, ";") || !idempotent || strings.Contains(m.statement, "{database}") {
			t.Errorf("%s is not one idempotent statement", m.name)
		}
		name := strings.TrimSuffix(m.name[len("0000_"):], ".sql")
		if changed := alteredTable.FindStringSubmatch(m.statement); changed != nil {
			name = changed[1]
		}
		if name == "workers" {
			if strings.HasPrefix(m.statement, "CREATE VIEW") {
				continue // replaced since
			}
			for _, c := range want[TableWorkers] {
				if c != blockField.name && c != loadField.name && !strings.Contains(m.statement, " AS "+c+",\n") && !strings.Contains(m.statement, " AS "+c+"\n") {
					t.Errorf("view workers lacks %s", c)
				}
			}
			continue
		}
		for _, match := range column.FindAllStringSubmatch(m.statement, -1) {
			have[name] = append(have[name], match[1])
		}
	}
	for name, columns := range want {
		if !slices.Equal(have[name], columns) {
			t.Errorf("%s has columns\n%v\nwant\n%v", name, have[name], columns)
		}
		delete(have, name)
	}
	if len(have) > 0 {
		t.Errorf("no rows for %v", have)
	}
	for i, m := range list {
		if n, _ := strconv.Atoi(m.name[:4]); m.name[4] != '_' || n == 0 || i > 0 && m.name[:4] <= list[i-1].name[:4] {
			t.Errorf("%s: numbers of four digits that grow", m.name)
		}
	}
}

var alteredTable = regexp.MustCompile(`^ALTER TABLE lowtide\.([a-z_]+)`)

// Two programs that start at once make one schema, and what one of them left half done the next one ends.
func TestSchemaIsMadeByTwoAtOnceAndGoesOnWhereItStopped(t *testing.T) {
	f := startEngine(t)
	fresh, err := f.store.Schema(t.Context())
	if err != nil || len(filesIn(fresh, SchemaPending)) != len(fresh) {
		t.Fatalf("an empty store: %v, %v", fresh, err)
	}
	var both sync.WaitGroup
	errs := make([]error, 2)
	for i := range errs {
		both.Go(func() { errs[i] = f.store.Migrate(t.Context()) })
	}
	both.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	f.schemaIs(t, SchemaOK)
	// As if it had ended before a file was recorded: each one may run again on what it made.
	if err := f.store.exec(t.Context(), "TRUNCATE TABLE lowtide.schema_version"); err != nil {
		t.Fatal(err)
	}
	f.schemaIs(t, SchemaPending)
	if err := f.store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.schemaIs(t, SchemaOK)
	t.Run("newer", f.schemaOfANewerProgram)
	t.Run("changed", f.schemaThatChanged)
	t.Run("kept", f.schemaKeeps)
}

func (f fleet) schemaIs(t *testing.T, state string) {
	t.Helper()
	files, err := f.store.Schema(t.Context())
	if err != nil || len(files) < 50 || len(filesIn(files, state)) != len(files) {
		t.Errorf("%d of %d files are %s, %v", len(filesIn(files, state)), len(files), state, err)
	}
}

func (f fleet) owner() Owner { return Owner{DataDir: f.access.DataDir} }

func (f fleet) schemaOfANewerProgram(t *testing.T) {
	if err := f.store.exec(t.Context(), "INSERT INTO lowtide.schema_version (name, checksum) VALUES ('9001_later.sql', 'x')"); err != nil {
		t.Fatal(err)
	}
	if err := f.store.Migrate(t.Context()); err != nil {
		t.Errorf("a program that is older than the store: %v, want it to go on", err)
	}
	err := (&SchemaUpCommand{Owner: f.owner(), Stdout: io.Discard, Stderr: io.Discard}).Run(t.Context())
	if !errors.Is(err, ErrSchemaNewer) || !strings.Contains(err.Error(), "9001_later.sql") {
		t.Errorf("schema up: %v, want ErrSchemaNewer with the file", err)
	}
	var out, messages strings.Builder
	if err := (&SchemaStatusCommand{Owner: f.owner(), Stdout: &out, Stderr: &messages}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if !regexp.MustCompile(`^number +name +applied +checksum$`).MatchString(lines[0]) || !regexp.MustCompile(`^0001 +worker_samples +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d +ok$`).MatchString(lines[1]) ||
		!regexp.MustCompile(`^9001 +later +\S+ \S+ +unknown$`).MatchString(lines[len(lines)-1]) || !strings.Contains(messages.String(), "1 of a newer program") {
		t.Errorf("status\n%s%s", out.String(), messages.String())
	}
	if err := f.store.exec(t.Context(), "DELETE FROM lowtide.schema_version WHERE name = '9001_later.sql'"); err != nil {
		t.Fatal(err)
	}
}

func (f fleet) schemaThatChanged(t *testing.T) {
	// Recorded a second later, so that it is the newer word.
	if err := f.store.exec(t.Context(), "INSERT INTO lowtide.schema_version (name, checksum, applied) VALUES ('0007_workers.sql', 'another', now() + 1)"); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"migrate": f.store.Migrate(t.Context()), "schema up": (&SchemaUpCommand{Owner: f.owner(), Stdout: io.Discard, Stderr: io.Discard}).Run(t.Context())} {
		if !errors.Is(err, ErrSchemaChanged) || !strings.Contains(err.Error(), "0007_workers.sql") || !strings.Contains(err.Error(), "hint: undo the change") {
			t.Errorf("%s: %v, want ErrSchemaChanged with the file and a remedy", what, err)
		}
	}
	var out strings.Builder
	if err := (&SchemaStatusCommand{Owner: f.owner(), JSON: true, Stdout: &out, Stderr: io.Discard}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^\{"number":7,"name":"workers","applied":"20[^"]+Z","checksum":"changed"\}$`).MatchString(out.String()) {
		t.Errorf("status --json\n%s", out.String())
	}
	if err := f.store.exec(t.Context(), "DELETE FROM lowtide.schema_version WHERE checksum = 'another'"); err != nil {
		t.Fatal(err)
	}
}

func (f fleet) schemaKeeps(t *testing.T) {
	for _, wrong := range []string{"0", "a week", "-3d", "99999d"} {
		err := (&SchemaUpCommand{Owner: f.owner(), KeepMinutes: wrong, Stdout: io.Discard, Stderr: io.Discard}).Run(t.Context())
		var coded interface{ ExitCode() int }
		if !errors.As(err, &coded) || coded.ExitCode() != 2 {
			t.Errorf("--keep-minutes %q: %v, want wrong usage", wrong, err)
		}
	}
	var out strings.Builder
	up := SchemaUpCommand{Owner: f.owner(), KeepSamples: "7d", KeepMinutes: "40", KeepHours: "400d", Stdout: &out, Stderr: io.Discard}
	if err := up.Run(t.Context()); err != nil || !strings.HasPrefix(out.String(), "the schema is up to date: ") {
		t.Fatalf("%v %s", err, out.String())
	}
	rows := f.rows(t, "SELECT name, create_table_query AS text FROM system.tables WHERE database = 'lowtide'", nil)
	for table, days := range map[string]string{TableWorkers: "7", TableEvents: "7", "worker_minute_rollup": "40", "instance_minute_rollup": "40", "gpu_hour_rollup": "400", TableFindings: ""} {
		text := fmt.Sprint(only(t, rows, map[string]any{"name": table})["text"])
		if days != "" && !strings.Contains(text, "toIntervalDay("+days+")") || days == "" && !strings.Contains(text, "toIntervalYear(1)") {
			t.Errorf("%s is kept: %s", table, text)
		}
	}
}

func TestSchemaCommandsSayWhereTheStoreIs(t *testing.T) {
	err := (&SchemaStatusCommand{Owner: Owner{DataDir: t.TempDir()}, Stdout: io.Discard, Stderr: io.Discard}).Run(t.Context())
	if !errors.Is(err, ErrNoStore) || !strings.Contains(err.Error(), "hint: start `lowtide up`") {
		t.Errorf("no store: %v", err)
	}
	err = (&SchemaStatusCommand{Owner: Owner{ClickHouse: "127.0.0.1:1", Protocol: ProtocolHTTP, User: "x"}, Stdout: io.Discard, Stderr: io.Discard}).Run(t.Context())
	var hinted interface{ Hint() string }
	if !errors.Is(err, ErrAway) || !errors.As(err, &hinted) || !strings.Contains(hinted.Hint(), "127.0.0.1:1") {
		t.Errorf("nobody there: %v", err)
	}
	err = (&SchemaStatusCommand{Owner: Owner{ClickHouse: "nowhere", Protocol: ProtocolHTTP}, Stdout: io.Discard, Stderr: io.Discard}).Run(t.Context())
	var coded interface{ ExitCode() int }
	if !errors.As(err, &coded) || coded.ExitCode() != 2 {
		t.Errorf("no address: %v", err)
	}
}
