package sink

import (
	"bytes"
	"flag"
	"os"
	"regexp"
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
	}
	if err := parse(&grammar, args); err != nil {
		return "", err
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
