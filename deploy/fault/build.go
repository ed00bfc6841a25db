package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"lowtide/sink/engine"
)

// binaries are what a run starts.
type binaries struct{ lowtide, nats, library, config string }

// build compiles what a run starts, unless it was named.
func build(ctx context.Context, folder, lowtide string) (binaries, error) {
	b := binaries{lowtide: lowtide, nats: filepath.Join(folder, "nats-server")}
	var err error
	if b.config, err = filepath.Abs("deploy/nats.conf"); err != nil {
		return b, err
	}
	if _, err := os.Stat(b.config); err != nil {
		return b, fmt.Errorf("%w\nhint: run it from the root of the repository: go run ./deploy/fault", err)
	}
	if b.library, err = engine.FindLibrary(""); err != nil {
		return b, err
	}
	if err := compile(ctx, b.nats, "github.com/nats-io/nats-server/v2"); err != nil {
		return b, err
	}
	if lowtide == "" {
		b.lowtide = filepath.Join(folder, "lowtide")
		return b, compile(ctx, b.lowtide, ".")
	}
	b.lowtide, err = filepath.Abs(lowtide)
	return b, err
}

func compile(ctx context.Context, to, what string) error {
	command := exec.CommandContext(ctx, "go", "build", "-o", to, what)
	if text, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", what, err, text)
	}
	return nil
}
