package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestCurl(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("SKIPPED: curl is not installed, so the README's command is not tried; TestGatewayContract covers the same requests through net/http")
	}
	e := startEngine(t, Options{})
	run := func(arguments ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		out, err := exec.CommandContext(ctx, curl, append([]string{"-sS"}, arguments...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("curl %v: %v\n%s", arguments, err, out)
		}
		return string(out)
	}
	address := "http://" + e.Addr() + "/"
	writer, reader := RoleWriter+":"+e.Password(RoleWriter), RoleReader+":"+e.Password(RoleReader)
	run("-u", writer, address, "-d", "CREATE TABLE c (a UInt32, b String) ENGINE = MergeTree ORDER BY a")
	run("-u", writer, address, "--data-binary", "INSERT INTO c FORMAT JSONEachRow {\"a\": 1, \"b\": \"x\"} {\"a\": 2, \"b\": \"y\"}")
	file := filepath.Join(t.TempDir(), "rows.csv")
	if err := os.WriteFile(file, []byte("3,\"z\n\nz\"\n4,w\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run("-u", writer, address+"?query="+url.QueryEscape("INSERT INTO c FORMAT CSV"), "--data-binary", "@"+file)
	run("-u", writer, address, "-d", "INSERT INTO c VALUES (5, upper('v')), (6, 'u');")
	if got := run("-u", reader, address, "-d", "SELECT a, b FROM c ORDER BY a FORMAT CSV"); got != "1,\"x\"\n2,\"y\"\n3,\"z\n\nz\"\n4,\"w\"\n5,\"V\"\n6,\"u\"\n" {
		t.Errorf("rows:\n%s", got)
	}
	if got := run("-u", reader, "--compressed", address+"?enable_http_compression=1", "-d", "SELECT count() FROM c"); got != "6\n" {
		t.Errorf("compressed: %q", got)
	}
	if got := run("-u", reader, "-w", "%{http_code}", "-d", "INSERT INTO c VALUES (7, 't')", address); !strings.HasSuffix(got, "403") || !strings.Contains(got, "Code: 164.") {
		t.Errorf("reader writes: %s", got)
	}
	if got := run("-u", "reader:wrong-password-here", "-w", "%{http_code}", "-d", "SELECT 1", address); !strings.HasSuffix(got, "403") || !strings.Contains(got, "Code: 516.") {
		t.Errorf("wrong password: %s", got)
	}
	if got := run("-u", writer, "-w", "%{http_code}", "-d", "SELECT * FROM file('/etc/passwd', LineAsString)", address); !strings.HasSuffix(got, "403") || !strings.Contains(got, "Code: 497.") {
		t.Errorf("file(): %s", got)
	}
}

func TestClickHouseClientOfNode(t *testing.T) {
	testLibrary(t)
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal("node is not installed: @clickhouse/client cannot be tried\nhint: install Node.js 20 or newer with npm")
	}
	modules, err := filepath.Abs("npm")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(modules, "node_modules", "@clickhouse", "client")); err != nil {
		t.Fatal("@clickhouse/client is not installed\nhint: npm ci --prefix sink/engine/npm")
	}
	e := startEngine(t, Options{})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, node, "testdata/client.mjs", "http://"+e.Addr(), filepath.Dir(e.PasswordFile(RoleReader)), modules)
	var errors bytes.Buffer
	command.Stderr = &errors
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, errors.String())
	}
	const want = `{"ping":true,"written":"2","queryId":true,` +
		`"rows":[{"id":1,"name":"ebb\n\nflow; 'x'","at":"2026-11-30T01:02:03.456Z"},{"id":2,"name":"ü","at":"2026-11-30T01:02:04.000Z"}],` +
		`"long":200000,"meta":[{"name":"n","type":"UInt64"}],"count":4,"streamed":50000,` +
		`"readerInsert":"164 READONLY","syntax":"497 ACCESS_DENIED","file":"497 ACCESS_DENIED","unknownTable":"60 UNKNOWN_TABLE","wrongPassword":"516 AUTHENTICATION_FAILED"}`
	var got, wanted any
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := json.Unmarshal([]byte(want), &wanted); err != nil {
		t.Fatal(err)
	}
	if a, b := fmt.Sprint(got), fmt.Sprint(wanted); a != b {
		t.Errorf("got  %s\nwant %s", a, b)
	}
}
