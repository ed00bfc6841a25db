package sink

import (
	"bytes"
	"flag"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the answers of docs/investigations.md anew")

var commandLine = regexp.MustCompile(`"[^"]*"|\S+`)

// documents runs each `lowtide investigate` in a block of docs/investigations.md and compares what follows it in the block.
func (f fleet) documents(t *testing.T) {
	path := "../docs/investigations.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	blocks := strings.Split(string(text), "```\n")
	for i := 1; i < len(blocks); i += 2 {
		first, answer, _ := strings.Cut(blocks[i], "\n")
		line, ok := strings.CutPrefix(first, "$ lowtide ")
		if !ok {
			continue
		}
		got, err := f.documented(t, line)
		if err != nil {
			t.Errorf("%s: %v", first, err)
			continue
		}
		got = abridged(line, got)
		shown[commandLine.FindAllString(line, 3)[1]] = true
		if *update {
			blocks[i] = first + "\n" + got
		} else if got != answer {
			t.Errorf("%s\nanswers\n%s\nthe document says\n%s\nhint: go test ./sink -run TestInvestigations -update writes it anew", first, got, answer)
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(strings.Join(blocks, "```\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, i := range investigations {
		if !shown[i.name] {
			t.Errorf("docs/investigations.md shows no answer of %s", i.name)
		}
		if !strings.Contains(string(text), i.question) {
			t.Errorf("docs/investigations.md does not say what %s answers: %s", i.name, i.question)
		}
		if !strings.Contains(string(text), "`"+i.view+"`") {
			t.Errorf("docs/investigations.md does not name the view %s", i.view)
		}
	}
}

// documented runs the line as the program would, on the fleet of the test.
func (f fleet) documented(t *testing.T, line string) (string, error) {
	t.Helper()
	args := commandLine.FindAllString(line, -1)
	for i := range args {
		args[i] = strings.Trim(args[i], `"`)
	}
	var out bytes.Buffer
	var grammar struct {
		Investigate InvestigateCommand `cmd:""`
		SQL         SQLCommand         `cmd:"" name:"sql"`
		Schema      SchemaCommand      `cmd:""`
		Export      ExportCommand      `cmd:""`
	}
	if err := parse(&grammar, args); err != nil {
		return "", err
	}
	switch strings.Join(args[:2], " ") {
	case "schema up":
		c := grammar.Schema.Up
		c.Owner, c.Stdout, c.Stderr = f.owner(), &out, io.Discard
		err := c.Run(t.Context())
		return out.String(), err
	case "schema status":
		c := grammar.Schema.Status
		c.Owner, c.Stdout, c.Stderr = f.owner(), &out, &out
		err := c.Run(t.Context())
		return out.String(), err
	}
	if args[0] == "export" {
		c, folder := grammar.Export, t.TempDir()+"/"
		c.Access, c.Out, c.Stderr = f.access, folder+c.Out, &out
		err := c.Run(t.Context())
		return strings.ReplaceAll(out.String(), folder, ""), err
	}
	if args[0] == "sql" {
		c := grammar.SQL
		c.Access, c.Stdout = f.access, &out
		err := c.Run(t.Context())
		return out.String(), err
	}
	c := grammar.Investigate
	c.Access, c.Stdout, c.Stderr = f.access, &out, &out
	err := c.Run(t.Context())
	return out.String(), err
}

var momentText = regexp.MustCompile(`20\d\d-\d\d-\d\d \d\d:\d\d:\d\d`)

// abridged leaves the middle of the list of the schema out, and when its files were applied, which is when the test ran.
func abridged(line, answer string) string {
	lines := strings.SplitAfter(answer, "\n")
	if line != "schema status" || len(lines) < 8 {
		return answer
	}
	short := slices.Concat(lines[:4], []string{"…\n"}, lines[len(lines)-2:])
	return momentText.ReplaceAllString(strings.Join(short, ""), "2026-11-30 08:00:00")
}
