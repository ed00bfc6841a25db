package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/sink/engine"
)

// TestEndToEndRules does what docs/rules.md says to a reader, in its order, against a running `up --demo`: it writes the files, runs the
// commands, and looks for every line of the answers that are shown.
func TestEndToEndRules(t *testing.T) {
	library, err := engine.FindLibrary("")
	if errors.Is(err, engine.ErrLibraryMissing) {
		t.Skipf("SKIPPED: the page for rule authors needs the ClickHouse engine; run make engine: %v", err)
	}
	text, err := os.ReadFile("docs/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	steps := lesson(string(text))
	kinds := map[string]int{}
	for _, s := range steps {
		kinds[s.kind()]++
	}
	if kinds["file"] < 5 || kinds["up"] != 1 || kinds["lowtide"] < 20 {
		t.Fatalf("docs/rules.md has %v; it has more", kinds)
	}
	r := newReader(t, library)
	for _, s := range steps {
		r.follow(s)
	}
}

// step is a file that the page gives, or a command with the answer that it shows.
type step struct {
	file, content string
	command       string
	answer        []string
}

func (s *step) kind() string {
	if s.file != "" {
		return "file"
	}
	words := strings.Fields(s.command)
	if words[0] == "lowtide" && words[1] == "up" {
		return "up"
	}
	return words[0]
}

var fileName = regexp.MustCompile("`([a-z_/]+\\.(?:yaml|md))`")

// lesson reads the page. The file of a block is the last name of one in the text before it.
func lesson(text string) (steps []step) {
	before := ""
	for i, part := range strings.Split(text, "```") {
		if i%2 == 0 {
			before = part
			continue
		}
		language, body, _ := strings.Cut(part, "\n")
		if language != "" {
			names := fileName.FindAllStringSubmatch(before, -1)
			if len(names) > 0 {
				steps = append(steps, step{file: names[len(names)-1][1], content: body})
			}
			continue
		}
		for line := range strings.Lines(body) {
			line = strings.TrimSuffix(line, "\n")
			if command, is := strings.CutPrefix(line, "$ "); is {
				steps = append(steps, step{command: command})
			} else if line != "" && len(steps) > 0 {
				last := &steps[len(steps)-1]
				last.answer = append(last.answer, line)
			}
		}
	}
	return steps
}

// reader is somebody who follows the page in a folder of their own.
type reader struct {
	t      *testing.T
	ctx    context.Context
	folder string
	env    []string
	ids    map[string]string // incidents of the page → those of this run
}

func newReader(t *testing.T, library string) *reader {
	folder, programs := t.TempDir(), t.TempDir()
	program := fmt.Sprintf("#!/bin/sh\n%s=1 exec '%s' \"$@\"\n", asCommand, os.Args[0])
	if err := os.WriteFile(filepath.Join(programs, "lowtide"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LOWTIDE_") }) // settings of whoever runs the test
	return &reader{t: t, ctx: ctx, folder: folder, ids: map[string]string{}, env: append(env, "PATH="+programs+":"+os.Getenv("PATH"), engine.LibraryVariable+"="+library)}
}

var (
	changes    = regexp.MustCompile(`^(sed|lowtide rules (push|rollback)|lowtide incidents resolve) `)
	offline    = regexp.MustCompile(`^lowtide rules (check|test|explain|schema|diff)\b`)
	incidentID = regexp.MustCompile(`\b[0-9a-f]{16}\b`)
)

func (r *reader) follow(s step) {
	r.t.Helper()
	switch name, value, is := strings.Cut(strings.TrimPrefix(s.command, "export "), "="); {
	case s.file != "":
		path := filepath.Join(r.folder, s.file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(s.content), 0o644)); err != nil {
			r.t.Fatal(err)
		}
		return
	case is && strings.HasPrefix(s.command, "export "):
		r.env = append(r.env, name+"="+strings.ReplaceAll(value, "$PWD", r.folder))
		return
	case s.kind() == "up":
		r.start(s.command)
		return
	}
	s.command = incidentID.ReplaceAllStringFunc(s.command, func(id string) string {
		if r.ids[id] == "" {
			r.t.Fatalf("$ %s\nno answer before it showed incident %s", s.command, id)
		}
		return r.ids[id]
	})
	fails := false
	for _, line := range s.answer {
		fails = fails || strings.HasPrefix(line, "error: ")
	}
	for patience := time.Now().Add(90 * time.Second); ; {
		said, err := r.run(s.command)
		missing := r.missing(s, said)
		if missing == "" && (err != nil) == fails {
			r.t.Logf("$ %s\n%s", s.command, said)
			return
		}
		// What has just been pushed or stored may take some seconds to be seen; what changes something is not done twice.
		var exit *exec.ExitError
		wrong := errors.As(err, &exit) && exit.ExitCode() == 2 // no such command
		if wrong || changes.MatchString(s.command) || offline.MatchString(s.command) || time.Now().After(patience) || r.ctx.Err() != nil {
			r.t.Fatalf("$ %s\nanswers (%v)\n%s\nand not, as docs/rules.md shows,\n%s", s.command, err, said, missing)
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-r.ctx.Done():
		}
	}
}

// run is one command line in the folder; the answer is what both its outputs say.
func (r *reader) run(command string) (string, error) {
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "sh", "-c", command)
	c.Dir, c.Env = r.folder, r.env
	out, err := c.CombinedOutput()
	return strings.ReplaceAll(string(out), r.folder+"/", ""), err
}

// start runs `up` until the test ends.
func (r *reader) start(command string) {
	var said bytes.Buffer
	c := exec.Command("sh", "-c", "exec "+command)
	c.Dir, c.Env, c.Stdout, c.Stderr = r.folder, r.env, &said, &said
	if err := c.Start(); err != nil {
		r.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	r.t.Cleanup(func() {
		_ = c.Process.Signal(os.Interrupt) // it may have ended already
		select {
		case err := <-ended:
			if err != nil {
				r.t.Errorf("up ended with %v", err)
			}
		case <-time.After(30 * time.Second):
			_ = c.Process.Kill()
			r.t.Errorf("up did not end: %v", <-ended)
		}
		if card := said.String(); !strings.Contains(card, "requests run at once") {
			r.t.Errorf("up printed no card of the rule:\n%s", card)
		} else if r.t.Failed() {
			r.t.Logf("up said:\n%s", card)
		}
	})
	for {
		if _, err := os.Stat(filepath.Join(r.folder, "trial", "engine.json")); err == nil {
			return
		}
		select {
		case err := <-ended:
			ended <- err
			r.t.Fatalf("up ended: %v", err)
		case <-r.ctx.Done():
			r.t.Fatal("up has no store")
		case <-time.After(200 * time.Millisecond):
		}
	}
}

var (
	tokens = regexp.MustCompile(`\b[0-9a-f]{16}\b|─+|\d+(\.\d+)?|\s+|[^\s\d─]`)
	counts = regexp.MustCompile(`^\d+ rules, \d+ tests`)
	number = regexp.MustCompile(`^\d`)
)

// missing returns the lines of the page that the answer lacks, in their order. Lines of `…` stand for any number of others. Of what depends on when
// it was asked, numbers and the widths of columns are not compared; incidents have ids of their own.
func (r *reader) missing(s step, said string) string {
	got := strings.Split(said, "\n")
	var lacks []string
	at := 0
	for _, line := range s.answer {
		if line == "…" {
			continue
		}
		exact := offline.MatchString(s.command) && !counts.MatchString(line)
		pattern := "^" + tokens.ReplaceAllStringFunc(strings.TrimRight(line, " "), func(token string) string {
			switch {
			case incidentID.MatchString(token):
				return `([0-9a-f]{16})`
			case strings.HasPrefix(token, "─"):
				return `─+`
			case strings.TrimSpace(token) == "":
				return `\s+`
			case number.MatchString(token) && !exact:
				return `\d+(?:\.\d+)?`
			}
			return regexp.QuoteMeta(token)
		}) + `\s*$`
		found := false
		for i := at; i < len(got) && !found; i++ {
			if m := regexp.MustCompile(pattern).FindStringSubmatch(got[i]); m != nil {
				if found, at = true, i+1; len(m) > 1 {
					r.ids[incidentID.FindString(line)] = m[1]
				}
			}
		}
		if !found {
			lacks = append(lacks, line)
		}
	}
	return strings.Join(lacks, "\n")
}
