package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// shell returns a child that runs a script.
func shell(t *testing.T, script string) (*child, func() string) {
	t.Helper()
	folder := t.TempDir()
	c, err := newChild(folder, "c", "/bin/sh", nil, func() []string { return []string{"-c", script} })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c, func() string {
		text, err := os.ReadFile(filepath.Join(folder, "c.log"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := until(ctx, 10*time.Millisecond, func() (bool, error) { return condition(), nil }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func TestChildThatEndsByItselfIsStartedAgain(t *testing.T) {
	c, _ := shell(t, "echo error: no luck; exit 3")
	if err := c.start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a second life", func() bool {
		lives, accidents := c.counts()
		return lives >= 2 && len(accidents) >= 1 && accidents[0] == "error: no luck"
	})
}

func TestChildThatIsKilledStaysDead(t *testing.T) {
	c, log := shell(t, "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
	if err := c.start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it runs", func() bool { return strings.Contains(log(), "\nready\n") })
	c.kill()
	if lives, accidents := c.counts(); lives != 1 || len(accidents) != 0 || strings.Contains(log(), "\nbye\n") {
		t.Errorf("%d lives, %v accidents, log %s", lives, accidents, log())
	}
	if err := c.start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it runs again", func() bool { return strings.Count(log(), "\nready\n") == 2 })
	c.signal(syscall.SIGSTOP)
	if err := c.stop(5 * time.Second); err != nil || !strings.Contains(log(), "\nbye\n") {
		t.Errorf("a stopped process that is asked to end: %v, log %s", err, log())
	}
}

func TestChildThatDoesNotEndIsReported(t *testing.T) {
	c, log := shell(t, "trap '' TERM; echo ready; while :; do sleep 0.05; done")
	if err := c.start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it runs", func() bool { return strings.Contains(log(), "\nready\n") })
	if err := c.stop(100 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "did not end") {
		t.Errorf("it ignores SIGTERM: %v", err)
	}
}

func TestDiskFillsAndEmpties(t *testing.T) {
	d, err := mountDisk(t.TempDir(), 2<<20)
	if err != nil {
		t.Skipf("SKIPPED: a full disk is a small tmpfs, and this user may not mount one: %v", err)
	}
	t.Cleanup(func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	})
	if err := d.fill(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.folder, "more"), make([]byte, 4096), 0o600); err == nil {
		t.Error("a page was written to a full disk")
	}
	if err := d.free(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.folder, "more"), make([]byte, 4096), 0o600); err != nil {
		t.Errorf("there is room again: %v", err)
	}
}
