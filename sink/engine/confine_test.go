package engine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// probeMark makes the test binary a program that confines itself as the child does and then does, without the gate, what the
// gate refuses.
const probeMark = "LOWTIDE_ENGINE_TEST_PROBE"

// probes reach out of the engine; each must fail by the library's grants or by the kernel alone.
var probes = []struct{ sql string }{
	{"SELECT file('/etc/passwd')"},
	{"SELECT * FROM file('/etc/passwd', LineAsString)"},
	{"SELECT * FROM `/etc/passwd`"},
	{"SELECT * FROM format(Values, 'a String', '(file(\\'/etc/passwd\\'))')"},
	{"SELECT file('PASSWORD')"},
	{"SELECT 1 INTO OUTFILE '/tmp/lowtide-probe-outfile'"},
	{"INSERT INTO probe FROM INFILE '/etc/passwd' FORMAT LineAsString"},
	{"SELECT * FROM url('http://ADDRESS/', LineAsString)"},
	{"SELECT * FROM s3('http://ADDRESS/b/o', LineAsString)"},
	{"SELECT * FROM remote('127.0.0.2:9000', system.one)"},
	{"SELECT * FROM mysql('ADDRESS', 'a', 'b', 'c', 'd')"},
	{"SELECT * FROM executable('x.sh', TSV, 'a String')"},
	{"CREATE TABLE f (a String) ENGINE = File(TSV)"},
	{"CREATE TABLE f (a String) ENGINE = URL('http://ADDRESS/', CSV)"},
	{"CREATE TABLE f (a UInt8) ENGINE = MergeTree ORDER BY a SETTINGS disk = disk(type = 'local', path = '/tmp/')"},
	{"CREATE DATABASE f ENGINE = Filesystem('/etc')"},
	{"CREATE FUNCTION f AS x -> x"},
	{"CREATE NAMED COLLECTION c AS a = 1"},
	{"CREATE USER u"},
	{"SYSTEM SHUTDOWN"},
	{"BACKUP TABLE probe TO File('/tmp/lowtide-probe-backup')"},
	{"SET dialect = 'kusto'"},
	{"SET allow_introspection_functions = 1"},
	{"SET max_memory_usage = 0"},
	{"SET async_insert = 1"},
}

func beProbe(folder string) {
	library := os.Getenv(LibraryVariable)
	fail := func(err error) {
		fmt.Println("error", err)
		os.Exit(1)
	}
	if !slices.Contains(os.Args, "--confined") {
		if err := writeConfig(folder, DefaultMemoryLimit); err != nil {
			fail(err)
		}
		fail(confine(folder, library))
	}
	if _, err := os.ReadFile("/etc/passwd"); !errors.Is(err, os.ErrPermission) {
		fail(fmt.Errorf("/etc/passwd can be read: %v", err))
	}
	if err := os.WriteFile(filepath.Join(folder, "x"), nil, 0o600); !errors.Is(err, os.ErrPermission) {
		fail(fmt.Errorf("beside the store can be written: %v", err))
	}
	address := os.Getenv("LOWTIDE_ENGINE_TEST_ADDRESS")
	if _, err := net.DialTimeout("tcp", address, time.Second); !errors.Is(err, syscall.EACCES) {
		fail(fmt.Errorf("%s can be reached: %v", address, err))
	}
	lib, err := loadLibrary(library)
	if err != nil {
		fail(err)
	}
	c, err := lib.open(sessionArguments(folder)...)
	if err != nil {
		fail(err)
	}
	if r, err := c.run([]byte("CREATE TABLE probe (a String) ENGINE = MergeTree ORDER BY a"), "TSV", nil); err != nil {
		fail(err)
	} else {
		r.free()
	}
	// A nil pointer still panics in Go after the library was loaded and sessions were opened.
	func() {
		defer func() {
			if recover() == nil {
				fail(errors.New("no panic"))
			}
		}()
		var p *probeTarget
		p.touch()
	}()
	replace := strings.NewReplacer("ADDRESS", address, "PASSWORD", passwordFile(folder, RoleReader))
	for i, p := range probes {
		r, err := c.run([]byte(replace.Replace(p.sql)), "TSV", nil)
		if err != nil {
			fmt.Println("held", i, asQueryError(err).code)
			continue
		}
		fmt.Printf("through %d %.60q\n", i, r.data)
		r.free()
	}
	os.Exit(0)
}

type probeTarget struct{ field int }

//go:noinline
func (p *probeTarget) touch() { p.field++ }

// TestWhatHoldsWithoutTheGate runs what the gate refuses against the confined library itself.
func TestWhatHoldsWithoutTheGate(t *testing.T) {
	library := testLibrary(t)
	folder := filepath.Join(t.TempDir(), "engine")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := ensurePasswords(folder); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, os.Args[0])
	command.Env = append(os.Environ(), probeMark+"="+folder, LibraryVariable+"="+library, "LOWTIDE_ENGINE_TEST_ADDRESS="+listener.Addr().String())
	out, err := command.CombinedOutput()
	if strings.Contains(string(out), "ask kernel for landlock") {
		t.Skipf("SKIPPED: this kernel has no Landlock, so the confinement of the child is not tried: %s", out)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	held := 0
	lines := bufio.NewScanner(strings.NewReader(string(out)))
	for lines.Scan() {
		var verdict string
		var i int
		if _, err := fmt.Sscan(lines.Text(), &verdict, &i); err == nil && verdict == "held" {
			held++
		} else if verdict == "through" {
			t.Errorf("%s went through: %s", probes[i].sql, lines.Text())
		}
	}
	if held != len(probes) {
		t.Errorf("%d of %d held:\n%s", held, len(probes), out)
	}
}
