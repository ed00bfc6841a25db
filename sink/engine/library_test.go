package engine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFindLibrary(t *testing.T) {
	root := t.TempDir()
	place := func(parts ...string) string {
		path := filepath.Join(append([]string{root}, parts...)...)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	executable := filepath.Join(root, "bin", "lowtide")
	working := filepath.Join(root, "work")
	_, err := findLibrary("", "", executable, working)
	if _, system := os.Stat("/usr/local/lib/libchdb.so"); system != nil {
		if !errors.Is(err, ErrLibraryMissing) || !strings.Contains(err.Error(), "make engine") || !strings.Contains(err.Error(), filepath.Join(root, "bin", "lib", "libchdb.so")) {
			t.Errorf("nothing there: %v", err)
		}
	}
	named := place("elsewhere", "libchdb.so")
	// From the last place to the first, each outranks those before.
	for _, c := range []struct{ explicit, variable, want string }{
		{"", "", filepath.Join("work", "sink", "engine", npmLibrary)},
		{"", "", filepath.Join("work", "lib", "libchdb.so")},
		{"", "", filepath.Join("bin", "sink", "engine", npmLibrary)},
		{"", "", filepath.Join("bin", "lib", "libchdb.so")},
		{"", named, named},
		{named, filepath.Join(root, "nosuch"), named},
	} {
		if !filepath.IsAbs(c.want) {
			c.want = place(c.want)
		}
		if got, err := findLibrary(c.explicit, c.variable, executable, working); err != nil || got != c.want {
			t.Errorf("got %s, %v; want %s", got, err, c.want)
		}
	}
	if _, err := findLibrary("", filepath.Join(root, "nosuch"), executable, working); !errors.Is(err, ErrLibraryMissing) || !strings.Contains(err.Error(), LibraryVariable) {
		t.Errorf("a variable that names nothing: %v", err)
	}
}

func TestReadPassword(t *testing.T) {
	folder := t.TempDir()
	for _, c := range []struct {
		name, content string
		mode          os.FileMode
		ok            bool
	}{
		{"good", "correct-horse-battery\n", 0o600, true}, {"read only", "correct-horse-battery", 0o400, true},
		{"group", "correct-horse-battery\n", 0o640, false}, {"world", "correct-horse-battery\n", 0o604, false},
		{"empty", "", 0o600, false}, {"short", "secret\n", 0o600, false}, {"two lines", "correct-horse-battery\nstaple\n", 0o600, false},
		{"long", strings.Repeat("x", 2000), 0o600, false},
	} {
		path := filepath.Join(folder, c.name)
		if err := os.WriteFile(path, []byte(c.content), c.mode); err != nil {
			t.Fatal(err)
		}
		got, err := ReadPassword(path)
		if c.ok && (err != nil || got != "correct-horse-battery") || !c.ok && !errors.Is(err, ErrPasswordFile) {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
		if err != nil && c.content != "" && strings.Contains(err.Error(), strings.TrimSpace(c.content)) {
			t.Errorf("%s: the error holds the content: %v", c.name, err)
		}
	}
	if err := os.Symlink(filepath.Join(folder, "good"), filepath.Join(folder, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadPassword(filepath.Join(folder, "link")); err == nil {
		t.Error("a symbolic link was followed")
	}
}
