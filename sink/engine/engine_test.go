package engine

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain lets the test binary be the child of the engines that the tests start.
func TestMain(m *testing.M) {
	ServeIfChild()
	os.Exit(m.Run())
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

func TestEngineAnswers(t *testing.T) {
	e := startEngine(t, Options{})
	if got := must(t, e, "SELECT 40 + 2"); got != "42\n" {
		t.Fatalf("got %q", got)
	}
}
