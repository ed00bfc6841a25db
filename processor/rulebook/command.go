package rulebook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/processor/broker"
	"lowtide/rules"
)

// Broker names the broker of a command.
type Broker struct {
	NATS string `name:"nats" env:"LOWTIDE_NATS" placeholder:"URL" help:"The broker; default: that of the running 'up'."`
	Data string `env:"LOWTIDE_DATA" type:"path" default:"~/.local/share/lowtide" placeholder:"DIR" help:"Folder of the running 'up'."`

	Stdout io.Writer `kong:"-"` // nil: the process's own
	Stderr io.Writer `kong:"-"`

	hearing time.Duration // zero: hearing
}

// open returns the bucket; the caller closes it.
func (c *Broker) open(ctx context.Context) (*Book, jetstream.JetStream, func(), error) {
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	conn, js, err := broker.Reach(c.NATS, c.Data, "rules")
	if err != nil {
		return nil, nil, nil, err
	}
	book, err := Open(ctx, js)
	if err != nil {
		conn.Close()
		return nil, nil, nil, err
	}
	return book, js, conn.Close, nil
}

// say writes lines to stdout.
func (c *Broker) say(lines ...string) error {
	_, err := io.WriteString(c.Stdout, strings.Join(lines, "\n")+"\n")
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// refused prints what is wrong with rules as `rules check` does, and returns the error that ends the command.
func (c *Broker) refused(err error) error {
	var problems rules.Problems
	if !errors.As(err, &problems) {
		return err
	}
	for _, p := range problems {
		fmt.Fprintln(c.Stderr, p.Error())
	}
	return &wrong{what: fmt.Sprintf("nothing was pushed: %s in the rules", counted(len(problems), "problem")), remedy: "`lowtide rules check` says the same, and runs the tests beside the files"}
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// localAuthor is who runs this, at which machine.
func localAuthor() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	} else if from := os.Getenv("USER"); from != "" {
		name = from
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}

// stampName is the file of a pulled folder that says which generation it was.
const stampName = ".lowtide-rules"

type stamp struct {
	Generation uint64 `json:"generation"`
}

// stamped returns the generation that a folder was pulled from, or pushed as; known is false where nobody wrote it down.
func stamped(paths []string) (generation uint64, known bool) {
	if len(paths) != 1 {
		return 0, false
	}
	text, err := os.ReadFile(filepath.Join(paths[0], stampName))
	var s stamp
	if err != nil || json.Unmarshal(text, &s) != nil {
		return 0, false
	}
	return s.Generation, true
}

// writeStamp notes the generation in a folder.
func writeStamp(folder string, generation uint64) error {
	text, err := json.Marshal(stamp{generation})
	if err == nil {
		err = replace(filepath.Join(folder, stampName), append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("note the generation: %w", err)
	}
	return nil
}

// replace writes a file, whole or not at all.
func replace(path string, content []byte) error {
	if err := os.WriteFile(path+".new", content, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// local reads rule files as a set that could be pushed, once it compiles over the built-in rules.
func local(paths []string) (files []File, pack *rules.Pack, err error) {
	sources, err := rules.ReadSources(paths...)
	if err != nil {
		return nil, nil, err
	}
	if pack, err = rules.LoadLayers(sources); err != nil {
		return nil, nil, err
	}
	files, err = gather(sources)
	return files, pack, err
}

// told is when something was pushed and by whom, for people.
func told(s *Set) string {
	return fmt.Sprintf("generation %d of %s by %s: %s", s.Generation, s.Time.UTC().Format(time.RFC3339), plain(s.Author), plain(s.Message))
}
