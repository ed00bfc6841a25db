package exporter

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

func TestReadyzNamesWhatIsNotReady(t *testing.T) {
	var away atomic.Bool
	checks := Checks{
		{Name: "judge", Well: func() error { return nil }},
		{Name: "store", Well: func() error {
			if away.Load() {
				return errors.New("ClickHouse is away since 14:02")
			}
			return nil
		}},
	}
	s, err := Listen(t.Context(), "127.0.0.1:0", checks)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	read := func(path string) (int, string) {
		t.Helper()
		answer, err := http.Get("http://" + s.Addr() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(text)
	}
	if code, text := read("/readyz"); code != 200 || text != "ok\n" {
		t.Errorf("all well: %d %q", code, text)
	}
	if _, text := read("/metrics"); !strings.Contains(text, `lowtide_ready{part="store"} 1`) {
		t.Error("/metrics does not say that the store is ready")
	}
	away.Store(true)
	if code, text := read("/readyz"); code != 503 || text != "not ready: store: ClickHouse is away since 14:02\n" {
		t.Errorf("the store is away: %d %q", code, text)
	}
	if code, _ := read("/healthz"); code != 200 {
		t.Errorf("a process whose store is away is alive, /healthz says %d", code)
	}
	if _, text := read("/metrics"); !strings.Contains(text, `lowtide_ready{part="store"} 0`) || !strings.Contains(text, `lowtide_ready{part="judge"} 1`) {
		t.Error("/metrics does not tell the store that is away from the judge that is well")
	}
}
