package engine

import (
	"strings"
	"testing"
)

func testReach() *reach { return newReach(nil, nil) }

func testAccounts() (writer, reader account) { return accounts(DefaultMemoryLimit) }

// refused are statements that reach out of the engine; each was seen to work, or is documented to, on the library without the
// gate. why is a part of the refusal.
var refused = []struct{ sql, why string }{
	{"SELECT * FROM file('/etc/passwd', LineAsString)", "function file"},
	{"SELECT * FROM FILE ('/etc/passwd')", "function file"},
	{"SELECT * FROM `file`('/etc/passwd')", "function file"},
	{"SELECT * FROM \"file\" /* x */ ('/etc/passwd')", "function file"},
	{"SELECT * FROM file -- x\n('/etc/passwd')", "function file"},
	{"SELECT * FROM `fi\\x6ce`('/etc/passwd')", "backslash"},
	{"SELECT file('/etc/passwd')", "function file"},
	{"SELECT * APPLY(file) FROM (SELECT '/etc/passwd' AS p)", "function file"},
	{"SELECT * APPLY file FROM (SELECT '/etc/passwd' AS p)", "function file"},
	{"SELECT arrayMap(file, ['/etc/passwd'])", "function file"},
	{"WITH (x -> file(x)) AS f SELECT f('/etc/passwd')", "function file"},
	{"SELECT * FROM (SELECT 1 UNION ALL SELECT length(file('/etc/passwd')))", "function file"},
	{"SELECT * FROM format(Values, 'a String', '(file(\\'/etc/passwd\\'))')", "format"},
	{"SELECT * FROM format(concat('Val', 'ues'), 'a String', '(file(\\'/etc/passwd\\'))')", "format"},
	{"SELECT * FROM format('Values', 'a String', '(file(\\'/etc/passwd\\'))')", "format"},
	{"SELECT {f:Identifier}('/etc/passwd')", "parameter"},
	{"INSERT INTO t VALUES (length(file('/etc/passwd')))", "function file"},
	{"INSERT INTO t FORMAT Values (length(file('/etc/passwd')))", "function file"},
	{"INSERT INTO t SELECT * FROM url('http://127.0.0.1/', CSV)", "function url"},
	{"INSERT INTO FUNCTION file('/tmp/x', CSV, 'a String') SELECT 'x'", "INTO FUNCTION"},
	{"INSERT INTO TABLE FUNCTION file('/tmp/x', CSV, 'a String') SELECT 'x'", "FUNCTION"},
	{"INSERT FUNCTION url('http://127.0.0.1/') SELECT 'x'", "FUNCTION"},
	{"INSERT INTO t FROM INFILE '/etc/passwd' FORMAT CSV", "INFILE"},
	{"INSERT INTO t SETTINGS async_insert = 0 FROM/**/INFILE '/etc/passwd' FORMAT CSV", "INFILE"},
	{"SELECT 1 INTO OUTFILE '/tmp/x'", "OUTFILE"},
	{"SELECT 1 into/**/Outfile '/tmp/x'", "OUTFILE"},
	{"SELECT * FROM s3('http://127.0.0.1/b/o')", "function s3"},
	{"SELECT * FROM s3Cluster('c', 'http://127.0.0.1/b/o')", "function s3cluster"},
	{"SELECT * FROM gcs('x')", "function gcs"}, {"SELECT * FROM oss('x')", "function oss"}, {"SELECT * FROM cosn('x')", "function cosn"},
	{"SELECT * FROM hdfs('hdfs://x')", "function hdfs"}, {"SELECT * FROM azureBlobStorage('x')", "function azureblobstorage"},
	{"SELECT * FROM remote('127.0.0.1', system.one)", "function remote"}, {"SELECT * FROM remoteSecure('127.0.0.1', system.one)", "function remotesecure"},
	{"SELECT * FROM cluster('c', system.one)", "function cluster"}, {"SELECT * FROM clusterAllReplicas('c', system.one)", "function clusterallreplicas"},
	{"SELECT * FROM mysql('h', 'd', 't', 'u', 'p')", "function mysql"}, {"SELECT * FROM postgresql('h')", "function postgresql"},
	{"SELECT * FROM mongodb('h')", "function mongodb"}, {"SELECT * FROM redis('h')", "function redis"}, {"SELECT * FROM sqlite('/x', 't')", "function sqlite"},
	{"SELECT * FROM odbc('x')", "function odbc"}, {"SELECT * FROM jdbc('x')", "function jdbc"},
	{"SELECT * FROM executable('x.sh', TSV, 'a String')", "function executable"}, {"SELECT * FROM python('x')", "function python"},
	{"SELECT * FROM iceberg('x')", "function iceberg"}, {"SELECT * FROM icebergLocal('/x')", "function iceberglocal"},
	{"SELECT * FROM deltaLake('x')", "function deltalake"}, {"SELECT * FROM hudi('x')", "function hudi"}, {"SELECT * FROM paimonLocal('/x')", "function paimonlocal"},
	{"SELECT * FROM urlCluster('c', 'x')", "function urlcluster"}, {"SELECT * FROM fileCluster('c', 'x')", "function filecluster"},
	{"SELECT * FROM filesystem('/etc')", "function filesystem"}, {"SELECT * FROM input('a String')", "function input"},
	{"SELECT * FROM eval('SELECT 1')", "function eval"}, {"SELECT * FROM dictionary('d')", "function dictionary"},
	{"SELECT * FROM mergeTreeTextIndex(a, b, c)", "function mergetreetextindex"}, {"SELECT aiGenerate('x')", "function aigenerate"},
	{"SELECT catboostEvaluate('/x', 1)", "function catboostevaluate"},
	{"DESCRIBE TABLE file('/etc/passwd')", "function file"}, {"EXPLAIN SELECT * FROM url('x')", "function url"},
	{"CREATE TABLE t AS file('/etc/passwd', CSV, 'a String')", "function file"},
	{"CREATE VIEW v AS SELECT * FROM (SELECT * FROM url('http://x'))", "function url"},
	{"CREATE MATERIALIZED VIEW v TO t AS SELECT * FROM s3('x')", "function s3"},
	{"CREATE TABLE t (a String DEFAULT file('/etc/passwd')) ENGINE = Memory", "function file"},
	{"ALTER TABLE t ADD COLUMN b String DEFAULT file('/etc/passwd')", "function file"},
	{"CREATE TABLE t (a String) ENGINE = File(TSV)", "engine file"},
	{"CREATE TABLE t (a String) engine/**/File ( TSV )", "engine file"},
	{"CREATE TABLE t (a String) ENGINE = `URL`('http://x', CSV)", "engine url"},
	{"CREATE TABLE select ENGINE = S3('x')", "engine s3"},
	{"CREATE TABLE t (a String) ENGINE = {e:Identifier}", "engine whose name is a parameter"},
	{"CREATE TABLE t (a UInt8) ENGINE = Distributed(c, d, t)", "engine distributed"},
	{"CREATE TABLE t (a UInt8) ENGINE = Kafka()", "engine kafka"},
	{"CREATE TABLE t (a UInt8) ENGINE = ReplicatedMergeTree('/x', 'r') ORDER BY a", "engine replicatedmergetree"},
	{"CREATE DATABASE d ENGINE = Filesystem('/etc')", "engine filesystem"},
	{"CREATE DATABASE d ENGINE = MySQL('h', 'd', 'u', 'p')", "engine mysql"},
	{"CREATE TABLE t (a UInt8) ENGINE = MergeTree ORDER BY a SETTINGS disk = disk(type = 'local', path = '/')", "value is a call"},
	{"CREATE TABLE t (a UInt8) ENGINE = MergeTree ORDER BY a SETTINGS index_granularity = 1, storage_policy = 'x'", "storage_policy"},
	{"CREATE TABLE t (a UInt8) ENGINE = MergeTree ORDER BY a SETTINGS min_bytes_for_wide_part = -1.5e-3, storage_policy = 'x'", "storage_policy"},
	{"ALTER TABLE t MODIFY SETTING storage_policy = 'x'", "storage_policy"},
	{"ALTER TABLE t FETCH PARTITION 1 FROM '/x'", "FETCH PARTITION"},
	{"ALTER TABLE t MOVE PARTITION 1 TO DISK 'x'", "TO DISK"},
	{"CREATE DICTIONARY d (a UInt8) PRIMARY KEY a SOURCE(FILE(path '/x' format 'CSV')) LIFETIME(0) LAYOUT(FLAT())", "CREATE is taken"},
	{"CREATE FUNCTION f AS x -> x", "CREATE is taken"}, {"CREATE NAMED COLLECTION n AS a = 1", "CREATE is taken"},
	{"CREATE USER u", "CREATE is taken"}, {"CREATE TEMPORARY TABLE t (a UInt8)", "sessions"},
	{"CREATE OR REPLACE FUNCTION f AS x -> x", "CREATE is taken"}, {"DROP FUNCTION f", "DROP is taken"},
	{"SET readonly = 0", "URL parameters"}, {"USE system", "URL parameter"}, {"SYSTEM FLUSH LOGS", "SYSTEM"}, {"ATTACH TABLE t FROM '/x' (a UInt8) ENGINE = Log", "ATTACH"},
	{"DETACH TABLE t", "DETACH"}, {"BACKUP TABLE t TO Disk('d', 'x')", "BACKUP"}, {"RESTORE TABLE t FROM Disk('d', 'x')", "RESTORE"},
	{"KILL QUERY WHERE 1", "KILL"}, {"GRANT ALL ON *.* TO default", "GRANT"}, {"EXECUTE AS u SELECT 1", "EXECUTE"}, {"WATCH v", "WATCH"}, {"BEGIN TRANSACTION", "BEGIN"},
	{"`select` 1", "not taken"}, {"1 + 1", "not taken"}, {"'x'", "not taken"},
	{"SELECT 1; SELECT 2", "Multi"}, {"SELECT 1;; DROP TABLE t", "Multi"}, {"INSERT INTO t VALUES (1); DROP TABLE t", "Multi"},
	{"DROP TABLE a PARALLEL WITH DROP TABLE b", "PARALLEL WITH"}, {"DROP TABLE a ON CLUSTER c", "ON CLUSTER"},
	{"SELECT 1 SETTINGS dialect = 'kusto'", "dialect"}, {"SELECT 1 SETTINGS max_threads = 1, implicit_select = 1", "implicit_select"},
	{"SELECT 1 SETTINGS max_memory_usage = 0", "max_memory_usage"}, {"SELECT 1 SETTINGS max_memory_usage = 99999999999", "max_memory_usage"},
	{"SELECT 1 SETTINGS max_threads = 0.5, max_memory_usage = 0", "max_memory_usage"}, {"SELECT 1 SETTINGS readonly = DEFAULT", "DEFAULT"},
	{"SELECT 1 SETTINGS readonly = 0", "readonly"}, {"SELECT 1 SETTINGS `max_memory_usage` = 0", "max_memory_usage"}, {"SELECT * FROM (SELECT 1 SETTINGS format_schema = 'x')", "format_schema"},
	{"SELECT 1 SETTINGS final, format_schema_source = 'x'", "format_schema"}, {"SELECT 1 SETTINGS max_threads = disk(a)", "value is a call"},
	{"INSERT INTO t SETTINGS input_format_record_errors_file_path = '/x' FORMAT CSV 1", "input_format_record_errors_file_path"},
	{"INSERT INTO t FORMAT CSV SETTINGS max_memory_usage = 0\n1", "SETTINGS after FORMAT"},
	{"", "Empty"}, {" ; ", "not taken"}, {"/* only a comment */", "Empty"}, {"SELECT 'x", "not closed"}, {"SELECT /* x", "not closed"}, {"SELECT `x", "not closed"},
	{"SELECT $tag$ file", "dollar"}, {"SELECT ‘x’", "ASCII"}, {"SELECT 1\x00", "control"},
}

func TestInspectRefuses(t *testing.T) {
	writer, _ := testAccounts()
	for _, c := range refused {
		_, err := testReach().inspect([]byte(c.sql), writer)
		if err == nil {
			t.Errorf("taken: %s", c.sql)
		} else if !strings.Contains(err.message, c.why) {
			t.Errorf("%s\n  refused with %q, want %q in it", c.sql, err.message, c.why)
		}
	}
}

func TestInspectTakes(t *testing.T) {
	writer, reader := testAccounts()
	for _, c := range []struct {
		sql, kind, format string
		reads             bool
	}{
		{"SELECT 'file(', \"url\", `a``b` FROM t -- file('x')\n", "select", "", true},
		{"SELECT $$file('x')$$, $q$ s3('y') $$ $q$", "select", "", true},
		{"SELECT 1 /* file('/etc/passwd') /* */ FORMAT JSON;", "select", "JSON", true},
		{"(SELECT 1) UNION ALL (SELECT 2) FORMAT CSV SETTINGS max_threads = 1", "select", "CSV", true},
		{"WITH x AS (SELECT 1 AS a) SELECT a FROM x", "with", "", true},
		{"SELECT format('{} {}', a, b) FROM t", "select", "", true},
		{"SELECT t.file, settings, engine FROM t WHERE engine = 'File' AND settings = 1", "select", "", true},
		{"SELECT count() FROM numbers(10) AS n, values('a UInt8', 1) AS v", "select", "", true},
		{"SELECT Settings['x'] FROM system.processes", "select", "", true},
		{"SHOW CREATE TABLE t", "show", "", true}, {"DESC t", "desc", "", true}, {"DESCRIBE TABLE t", "describe", "", true},
		{"EXISTS TABLE t", "exists", "", true}, {"EXPLAIN PIPELINE SELECT 1", "explain", "", true}, {"FROM t SELECT 1", "from", "", true},
		{"SELECT {a:UInt8}, 1 IN ({b:UInt8}, 2)", "select", "", true},
		{"SELECT 1 SETTINGS max_memory_usage = 1000000, max_execution_time = 5", "select", "", true},
		{"INSERT INTO t (a, b) FORMAT JSONEachRow {\"a\": \"file('x'); DROP TABLE t\"}", "insert", "JSONEachRow", false},
		{"insert into db.t format Native\n\x00\xff;file('", "insert", "Native", false},
		{"INSERT INTO url (a) SETTINGS insert_deduplication_token = 'x:1-2', async_insert = 1 FORMAT CSV\n1", "insert", "CSV", false},
		{"INSERT INTO {t:Identifier} (a) VALUES (1), (now()), ('file(')", "insert", "Values", false},
		{"INSERT INTO t FORMAT Values (1), (2)", "insert", "Values", false},
		{"INSERT INTO TABLE t SELECT * FROM u", "insert", "", false},
		{"CREATE TABLE IF NOT EXISTS d.t (engine LowCardinality(String), url String) ENGINE = ReplacingMergeTree(v) ORDER BY a TTL ts + INTERVAL 1 DAY SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 1000", "create", "", false},
		{"CREATE MATERIALIZED VIEW v TO t AS SELECT engine FROM u", "create", "", false}, {"CREATE OR REPLACE VIEW v AS SELECT 1", "create", "", false},
		{"CREATE DATABASE IF NOT EXISTS lowtide ENGINE = Atomic", "create", "", false}, {"ALTER TABLE t MODIFY SETTING non_replicated_deduplication_window = 10", "alter", "", false},
		{"ALTER TABLE t ADD COLUMN IF NOT EXISTS fetch String", "alter", "", false}, {"TRUNCATE TABLE t", "truncate", "", false}, {"OPTIMIZE TABLE t FINAL", "optimize", "", false},
		{"DELETE FROM t WHERE a = 1", "delete", "", false}, {"RENAME TABLE a TO b", "rename", "", false}, {"EXCHANGE TABLES a AND b", "exchange", "", false},
		{"DROP VIEW IF EXISTS v SYNC", "drop", "", false}, {"# comment\nSELECT 1", "select", "", true},
	} {
		st, err := testReach().inspect([]byte(c.sql), writer)
		if err != nil {
			t.Errorf("%s\n  refused: %s", c.sql, err.message)
			continue
		}
		if st.kind != c.kind || st.reads != c.reads || st.format != c.format {
			t.Errorf("%s\n  got %+v", c.sql, st)
		}
		_, err = testReach().inspect([]byte(c.sql), reader)
		if c.reads != (err == nil) {
			t.Errorf("%s\n  as reader: %v", c.sql, err)
		} else if err != nil && err.code != codeReadonly {
			t.Errorf("%s\n  as reader: code %d, want %d", c.sql, err.code, codeReadonly)
		}
	}
}

func TestInsertDataIsCutOff(t *testing.T) {
	writer, _ := testAccounts()
	for _, c := range []struct{ query, body, head, format, data string }{
		{"INSERT INTO t FORMAT Native", "\n\x01\x00", "INSERT INTO t \n", "Native", "\n\x01\x00"},
		{"INSERT INTO t (a) FORMAT CSV  ", "1\n\n2", "INSERT INTO t (a) \n", "CSV", "1\n\n2"},
		{"", "INSERT INTO t FORMAT TSV \r\n\n1", "INSERT INTO t \n", "TSV", "\n1"},
		{"", "INSERT INTO t FORMAT JSONEachRow {}", "INSERT INTO t \n", "JSONEachRow", "{}"},
		{"INSERT INTO t -- c\nVALUES", "(1)", "INSERT INTO t -- c\n\n", "Values", "(1)"},
		{"INSERT INTO t VALUES (1),", "(2)", "INSERT INTO t \n", "Values", "(1),\n(2)"},
	} {
		text := []byte(c.body)
		if c.query != "" {
			text = []byte(c.query + "\n" + c.body)
		}
		st, err := testReach().inspect(text, writer)
		if err != nil {
			t.Fatal(c, err)
		}
		q := newQuery(text, st, &request{query: c.query})
		if string(q.head) != c.head || q.format != c.format || string(q.data) != c.data || !q.insert {
			t.Errorf("%+v\n  got head %q format %q data %q", c, q.head, q.format, q.data)
		}
	}
}

// FuzzInspect holds the gate to its promises for any text: it ends, it reads no further than the text, and a call of file that
// is plain to see is never taken, whatever stands around it.
func FuzzInspect(f *testing.F) {
	for _, c := range refused {
		f.Add(c.sql, "")
	}
	f.Add("SELECT 'a' ", " FROM t")
	f.Add("INSERT INTO t VALUES (1, ", ")")
	f.Fuzz(func(t *testing.T, before, after string) {
		if len(before)+len(after) > 1<<16 {
			t.Skip("larger than any statement of interest")
		}
		writer, reader := testAccounts()
		r := testReach()
		st, err := r.inspect([]byte(before), writer)
		if err == nil && (st.head > len(before) || st.data > len(before) || st.kind == "") {
			t.Fatalf("%q: %+v", before, st)
		}
		if _, rerr := r.inspect([]byte(before), reader); rerr == nil && !st.reads {
			t.Fatalf("reader may %q", before)
		}
		// Where before is whole tokens outside of data, a call of file after it is seen.
		l := lexer{source: []byte(before)}
		for {
			token, err := l.next()
			if err != nil {
				return
			}
			if token.kind == tokenEnd {
				break
			}
		}
		if err != nil || st.data > 0 {
			return
		}
		joined := before + "\nfile('/etc/passwd') " + after
		if st, err := r.inspect([]byte(joined), writer); err == nil && st.data == 0 && !strings.HasSuffix(strings.TrimSpace(before), ".") {
			t.Fatalf("taken: %q", joined)
		}
	})
}

func BenchmarkInspectValues(b *testing.B) {
	writer, _ := testAccounts()
	text := []byte("INSERT INTO t VALUES " + strings.Repeat("(1234567, 'worker-17', 0.25, now()), ", 10000))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := testReach().inspect(text, writer); err != nil {
			b.Fatal(err)
		}
	}
}
