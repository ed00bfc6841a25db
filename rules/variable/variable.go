// Package variable owns the one table of names that a rule may read, and the sample that holds their values at one moment.
// It computes no value and knows no rule: whoever fills a sample and whoever reads it meet only here.
package variable

import (
	"fmt"
	"sync"
)

// ID is the position of a variable in All; it is stable within one build only and never stored.
type ID int

// Kind is the type of a variable's values.
type Kind uint8

// The kinds of a variable.
const (
	Number Kind = iota // a double in base units
	Bool
	String
	Labels // a map of strings
)

// String returns the name that a user reads.
func (k Kind) String() string {
	switch k {
	case Number:
		return "number"
	case Bool:
		return "bool"
	case String:
		return "string"
	case Labels:
		return "labels"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Variable describes one name that rules may read.
type Variable struct {
	Name    string // flat, with dots; never the parent of another
	Kind    Kind
	Unit    string // of a number: bytes, bytes/h, 1, ratio, seconds, hours, …; empty otherwise
	Sensor  string // the event body whose absence makes it unknown
	Doc     string
	Example string

	AtMostOne bool // of a ratio: a part of a whole, never more than 1
}

var table = sync.OnceValue(build)

type tables struct {
	all   []Variable
	kinds []Kind // of all
	byID  map[string]ID
}

func build() tables {
	t := tables{all: declare()}
	t.byID = make(map[string]ID, len(t.all))
	for i, v := range t.all {
		t.byID[v.Name] = ID(i)
		t.kinds = append(t.kinds, v.Kind)
	}
	return t
}

// All returns every variable; the index is the ID. The slice is shared and must not be changed.
func All() []Variable { return table().all }

// Lookup finds a variable by its name.
func Lookup(name string) (ID, bool) {
	id, ok := table().byID[name]
	return id, ok
}

// Must is Lookup for names written in code; it panics when the table does not hold the name.
func Must(name string) ID {
	id, ok := Lookup(name)
	if !ok {
		panic("unknown rule variable " + name)
	}
	return id
}
