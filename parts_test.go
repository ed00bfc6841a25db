package main

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
)

func TestPartsEndLastStartedFirst(t *testing.T) {
	var order []string
	p := newParts()
	for _, name := range []string{"broker", "store", "collector"} {
		p.run(name, func(ctx context.Context) error { <-ctx.Done(); order = append(order, name); return ctx.Err() })
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if want := []string{"collector", "store", "broker"}; !reflect.DeepEqual(order, want) {
		t.Errorf("ended in order %v, want %v", order, want)
	}
}

func TestPartThatFailsEndsTheWait(t *testing.T) {
	p := newParts()
	fault := errors.New("disk is full")
	p.run("broker", func(context.Context) error { return fault })
	if err := p.wait(t.Context()); !errors.Is(err, fault) || !strings.HasPrefix(err.Error(), "broker: ") {
		t.Errorf("wait returned %v", err)
	}
	if err := p.stop(); err != nil {
		t.Errorf("the failure was reported twice: %v", err)
	}
}

func TestPartThatHangsIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		p := newParts()
		p.run("store", func(context.Context) error { <-release; return nil })
		if err := p.stop(); err == nil || err.Error() != "store: did not stop within 20s" {
			t.Errorf("stop returned %v", err)
		}
		close(release)
	})
}
