package rulebook

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/rules"
)

// InForce returns what a processor with these files of its own would judge by if it started now; the newest set of the bucket that compiles
// here may be an older one than the newest of all.
func InForce(ctx context.Context, js jetstream.JetStream, paths ...string) (*rules.Pack, error) {
	files, err := rules.ReadSources(paths...)
	if err != nil {
		return nil, err
	}
	book, err := Open(ctx, js)
	if err != nil {
		return nil, err
	}
	history, err := book.History(ctx)
	if err != nil {
		return nil, err
	}
	c, err := choose(history, files)
	return c.pack, err
}

// choice is a set of a history with what it compiles to.
type choice struct {
	pack   *rules.Pack
	set    Set
	failed *Edition // the newest of all, where another was chosen
	why    error
}

// choose takes the newest set that compiles under some files, and where none does the files alone. An error says what is wrong with them.
func choose(history []Edition, files []rules.Source) (c choice, err error) {
	var wrong error // with the files, as far as that can be told
	for _, e := range history {
		if errors.Is(e.Err, errDeleted) {
			break // somebody took away what was before, too
		}
		why := e.Err
		if why == nil {
			if c.pack, why = rules.LoadLayers(e.Sources(), files); why == nil {
				c.set = e.Set
				return c, nil
			}
		}
		if c.why == nil {
			c.why, c.failed = why, &e
		}
		if wrong == nil && e.Err == nil {
			if _, alone := e.Pack(); alone == nil {
				wrong = why
			}
		}
	}
	c.pack, err = rules.LoadLayers(files)
	if err != nil && wrong != nil {
		return choice{}, wrong
	}
	return c, err
}
