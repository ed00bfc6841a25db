package engine

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary be the child of the engines that the tests start.
func TestMain(m *testing.M) {
	ServeIfChild()
	if folder := os.Getenv(parentMark); folder != "" {
		beParent(folder)
	}
	if folder := os.Getenv(probeMark); folder != "" {
		beProbe(folder)
	}
	os.Exit(m.Run())
}

// parentMark makes the test binary a program that starts an engine and waits to be killed.
const parentMark = "LOWTIDE_ENGINE_TEST_PARENT"

func beParent(folder string) {
	e, err := Start(context.Background(), Options{DataDir: folder})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(e.ChildPID())
	e.Wait(context.Background())
	os.Exit(0)
}

// testLibrary is the library that `make engine` installs; a test that needs it fails without it.
func testLibrary(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED because of -short: this test needs the real libchdb and is not run; run without -short")
	}
	explicit := os.Getenv(LibraryVariable)
	if explicit == "" {
		explicit = npmLibrary
	}
	path, err := FindLibrary(explicit)
	if err != nil {
		t.Fatalf("%v\nhint: run `make engine`", err)
	}
	return path
}

// testLog writes the engine's log into the test's log.
type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%s", strings.TrimSpace(string(p)))
	return len(p), nil
}

func startEngine(t testing.TB, o Options) *Engine {
	t.Helper()
	o.Library = testLibrary(t)
	if o.DataDir == "" {
		o.DataDir = filepath.Join(t.TempDir(), "engine")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(testLog{t}, nil))
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	e, err := Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close engine: %v", err)
		}
	})
	return e
}

// answer is a reply of the engine.
type answer struct {
	status int
	code   string
	body   string
	header http.Header
}

// ask posts sql to the engine as role, with URL parameters.
func ask(t testing.TB, e *Engine, role, parameters, sql string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+e.Addr()+"/?"+parameters, strings.NewReader(sql))
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth(role, e.Password(role))
	return send(t, req)
}

func send(t testing.TB, req *http.Request) answer {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header.Get("X-ClickHouse-Exception-Code"), string(body), resp.Header}
}

// must asks as the writer and fails the test on an error.
func must(t testing.TB, e *Engine, sql string) string {
	t.Helper()
	a := ask(t, e, RoleWriter, "", sql)
	if a.status != http.StatusOK {
		t.Fatalf("%s\n→ %d %s", sql, a.status, a.body)
	}
	return a.body
}

func TestKilledChildComesBackWithItsData(t *testing.T) {
	var log bytes.Buffer
	var mu sync.Mutex
	e := startEngine(t, Options{Log: slog.New(slog.NewTextHandler(locked{&mu, &log}, nil))})
	addr := e.Addr()
	must(t, e, "CREATE TABLE kept (id UInt64) ENGINE = MergeTree ORDER BY id")
	want := 0
	for life := 1; life <= 3; life++ {
		// Inserts go on while the child is killed: one at a time, each either acknowledged or not.
		killed := make(chan struct{})
		pid := e.ChildPID()
		acknowledged, tried := 0, 0
		for acknowledged < 20 {
			tried++
			if acknowledged == 10 && tried == 11 {
				go func() { syscall.Kill(pid, syscall.SIGKILL); close(killed) }()
			}
			if status := insertOne(e, want+acknowledged); status == http.StatusOK {
				acknowledged++
			}
		}
		<-killed
		want += acknowledged
		until(t, "the child is replaced", func() bool { return e.Restarts() >= life && e.ChildPID() != 0 && e.ChildPID() != pid })
		if got := strings.TrimSpace(must(t, e, "SELECT uniqExact(id) FROM kept")); got != fmt.Sprint(want) {
			t.Fatalf("after kill %d: %s rows, %d were acknowledged", life, got, want)
		}
	}
	if e.Addr() != addr || e.Restarts() != 3 {
		t.Errorf("address %s was %s; %d restarts, want 3", e.Addr(), addr, e.Restarts())
	}
	mu.Lock()
	defer mu.Unlock()
	if !strings.Contains(log.String(), "signal: killed") || !strings.Contains(log.String(), "engine answers again") {
		t.Errorf("the log does not say why it was started again and that it answers:\n%s", log.String())
	}
	for _, role := range []string{RoleWriter, RoleReader} {
		if strings.Contains(log.String(), e.Password(role)) {
			t.Error("the log holds a password")
		}
	}
}

type locked struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l locked) Write(p []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.w.Write(p) }

// insertOne inserts one row, and says 0 when the connection broke.
func insertOne(e *Engine, id int) int {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+e.Addr()+"/", strings.NewReader(fmt.Sprintf("INSERT INTO kept VALUES (%d)", id)))
	if err != nil {
		return 0
	}
	req.SetBasicAuth(RoleWriter, e.Password(RoleWriter))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0
	}
	return resp.StatusCode
}

func TestDataAndPasswordsOutliveTheEngine(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "engine & <data>") // to be escaped in the library's configuration
	e := startEngine(t, Options{DataDir: folder})
	must(t, e, "CREATE TABLE kept (id UInt64) ENGINE = MergeTree ORDER BY id")
	must(t, e, "INSERT INTO kept SELECT number FROM numbers(1000)")
	for _, role := range []string{RoleWriter, RoleReader} {
		info, err := os.Stat(e.PasswordFile(role))
		if err != nil || info.Mode().Perm() != 0o600 || len(e.Password(role)) != 32 {
			t.Errorf("%s: mode %v, %d characters, %v", role, info.Mode(), len(e.Password(role)), err)
		}
	}
	pid := e.ChildPID()
	for _, file := range []string{"cmdline", "environ"} {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
		if err != nil || len(content) == 0 {
			t.Fatal(err)
		}
		if bytes.Contains(content, []byte(e.Password(RoleReader))) || bytes.Contains(content, []byte(e.Password(RoleWriter))) {
			t.Errorf("%s of the child holds a password", file)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
		t.Errorf("the child is still there: %v", err)
	}
	again := startEngine(t, Options{DataDir: folder})
	if again.Password(RoleReader) != e.Password(RoleReader) {
		t.Error("another password")
	}
	if got := must(t, again, "SELECT count(), sum(id) FROM kept"); got != "1000\t499500\n" {
		t.Errorf("rows after a restart: %q", got)
	}
}

func TestCloseLetsRunningQueriesFinish(t *testing.T) {
	e := startEngine(t, Options{})
	reply := make(chan answer, 1)
	go func() { reply <- ask(t, e, RoleReader, "", "SELECT sleep(2), 'finished'") }()
	until(t, "the query runs", func() bool {
		return must(t, e, "SELECT count() FROM system.processes WHERE query LIKE '%sleep(2)%' AND query NOT LIKE '%processes%'") == "1\n"
	})
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if a := <-reply; a.status != http.StatusOK || a.body != "0\tfinished\n" {
		t.Errorf("reply %d %q", a.status, a.body)
	}
}

func TestStartRefuses(t *testing.T) {
	library := testLibrary(t)
	loose := t.TempDir()
	if err := os.WriteFile(filepath.Join(loose, "reader.password"), []byte("0123456789abcdef0123\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	notElf := filepath.Join(t.TempDir(), "libchdb.so")
	if err := os.WriteFile(notElf, []byte("not a library"), 0o600); err != nil {
		t.Fatal(err)
	}
	running := startEngine(t, Options{})
	for _, c := range []struct {
		name string
		o    Options
		is   error
		says string
	}{
		{"every address", Options{Library: library, DataDir: t.TempDir(), Listen: "0.0.0.0:0"}, ErrNotLoopback, "127.0.0.1"},
		{"no host", Options{Library: library, DataDir: t.TempDir(), Listen: ":8123"}, ErrNotLoopback, "127.0.0.1"},
		{"a name", Options{Library: library, DataDir: t.TempDir(), Listen: "example.test:8123"}, ErrNotLoopback, "127.0.0.1"},
		{"loose password file", Options{Library: library, DataDir: loose}, ErrPasswordFile, "chmod 600"},
		{"no library", Options{Library: filepath.Join(loose, "nosuch.so"), DataDir: t.TempDir()}, ErrLibraryMissing, "make engine"},
		{"not a library", Options{Library: notElf, DataDir: t.TempDir()}, nil, "load library"},
		{"no folder", Options{Library: library}, nil, "no data folder"},
		{"little memory", Options{Library: library, DataDir: t.TempDir(), MemoryLimit: 1 << 20}, nil, "below the least"},
		{"a folder in use", Options{Library: library, DataDir: filepath.Dir(running.PasswordFile(RoleReader))}, nil, "another process may hold"},
		{"a child that is something else", Options{Library: library, DataDir: t.TempDir(), Child: []string{"/bin/false"}}, nil, "exit status 1"},
		{"an address in use", Options{Library: library, DataDir: t.TempDir(), Listen: running.Addr()}, nil, "address already in use"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			e, err := Start(ctx, c.o)
			if err == nil {
				e.Close()
				t.Fatal("it started")
			}
			if c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A full disk gives a clear error, the engine survives, and takes rows again once there is room.
func TestFullDisk(t *testing.T) {
	testLibrary(t)
	folder := t.TempDir()
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "size=64m,mode=700"); err != nil {
		t.Skipf("SKIPPED: a small file system cannot be mounted (%v), so the behaviour on a full disk is not tried; run as root", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(folder, 0); err != nil {
			t.Error(err)
		}
	})
	e := startEngine(t, Options{DataDir: folder})
	must(t, e, "CREATE TABLE full (a UInt64, s String CODEC(NONE)) ENGINE = MergeTree ORDER BY a")
	must(t, e, "INSERT INTO full SELECT number, 'first' FROM numbers(10)")
	ballast := filepath.Join(folder, "ballast")
	f, err := os.OpenFile(ballast, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 64<<10))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	f.Close()
	a := ask(t, e, RoleWriter, "", "INSERT INTO full SELECT number, randomPrintableASCII(1000) FROM numbers(20000)")
	if a.status == http.StatusOK || a.code != "243" && a.code != "75" || !strings.Contains(a.body, "No space left") && !strings.Contains(a.body, "NOT_ENOUGH_SPACE") && !strings.Contains(a.body, "enough space") {
		t.Errorf("insert on a full disk: %d, code %s: %s", a.status, a.code, a.body)
	}
	if got := must(t, e, "SELECT count() FROM full"); got != "10\n" || e.Restarts() != 0 {
		t.Errorf("full: %s rows, %d restarts", got, e.Restarts())
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	must(t, e, "INSERT INTO full SELECT number, 'second' FROM numbers(10)")
	if got := must(t, e, "SELECT count() FROM full"); got != "20\n" {
		t.Errorf("with room again: %s rows", got)
	}
}

// The child ends when its parent is killed, and the folder is free for the next start.
func TestChildEndsWithItsParent(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "engine")
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), parentMark+"="+folder, LibraryVariable+"="+testLibrary(t))
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	pid, perr := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || perr != nil || pid <= 1 {
		command.Process.Kill()
		command.Wait()
		t.Fatalf("the parent said %q: %v", line, err)
	}
	command.Process.Kill()
	command.Wait()
	until(t, "the child ends", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || bytes.Contains(stat, []byte(") Z ")) // an orphan may wait for init
	})
	startEngine(t, Options{DataDir: folder})
}
