package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// disk is a small file system of its own, so that it can be filled without filling the machine's.
type disk struct{ folder string }

func mountDisk(folder string, bytes int64) (*disk, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("make a disk: %w", err)
	}
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", bytes)); err != nil {
		return nil, fmt.Errorf("mount a small disk at %s: %w", folder, err)
	}
	return &disk{folder}, nil
}

// canMount says whether this user may mount, by doing it.
func canMount(folder string) bool {
	d, err := mountDisk(filepath.Join(folder, "trial"), 1<<20)
	return err == nil && d.close() == nil
}

func (d *disk) filler() string { return filepath.Join(d.folder, "filler") }

// fill writes until nothing is free.
func (d *disk) fill() error {
	file, err := os.OpenFile(d.filler(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("fill a disk: %w", err)
	}
	defer file.Close()
	for block := make([]byte, 1<<20); len(block) > 0; {
		if _, err := file.Write(block); errors.Is(err, syscall.ENOSPC) {
			block = block[:len(block)/2]
		} else if err != nil {
			return fmt.Errorf("fill a disk: %w", err)
		}
	}
	return nil
}

func (d *disk) free() error { return os.Remove(d.filler()) }

func (d *disk) close() error {
	if err := syscall.Unmount(d.folder, syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", d.folder, err)
	}
	return nil
}
