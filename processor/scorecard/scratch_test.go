package scorecard

import (
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

func TestScratch(t *testing.T) {
	if os.Getenv("SC") == "" {
		t.Skip("scratch")
	}
	var c Command
	p, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Parse(strings.Fields(os.Getenv("SC"))); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(os.Getenv("OUT"))
	if err != nil {
		t.Fatal(err)
	}
	c.Stdout = out
	if err := c.Run(t.Context()); err != nil {
		t.Log(err)
	}
	out.Close()
}
