package engine

import (
	"context"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestCommandTellsHowToAsk(t *testing.T) {
	library := testLibrary(t)
	folder := filepath.Join(t.TempDir(), "it's data")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	read, write := io.Pipe()
	done := make(chan error, 1)
	c := &Command{Listen: "127.0.0.1:0", Data: folder, Library: library, Memory: 1 << 30}
	go func() { done <- c.run(ctx, write, io.Discard); write.Close() }()
	text := make([]byte, 0, 1024)
	buffer := make([]byte, 1024)
	for !strings.Contains(string(text), "SELECT version()'\n") {
		n, err := read.Read(buffer)
		if err != nil {
			t.Fatalf("%v; %v", err, <-done)
		}
		text = append(text, buffer[:n]...)
	}
	secret, err := ReadPassword(passwordFile(folder, RoleReader))
	if err != nil || strings.Contains(string(text), secret) {
		t.Errorf("the password is printed, or cannot be read: %v", err)
	}
	if sh, err := exec.LookPath("curl"); err != nil {
		t.Logf("curl is not installed: the printed line is not tried (%s, %v)", sh, err)
	} else {
		line := string(text[strings.Index(string(text), "curl"):])
		out, err := exec.Command("/bin/sh", "-c", line).Output()
		if err != nil || !strings.HasPrefix(string(out), "26.") {
			t.Errorf("%s→ %q, %v", line, out, err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestChildCommandAlone(t *testing.T) {
	t.Setenv(childMark, "")
	if err := (&ChildCommand{}).Run(context.Background()); err == nil || !strings.Contains(err.Error(), "lowtide engine") {
		t.Errorf("got %v", err)
	}
	t.Setenv(childMark, "1")
	if _, err := Start(context.Background(), Options{DataDir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "ServeIfChild") {
		t.Errorf("a child that starts an engine: %v", err)
	}
}
