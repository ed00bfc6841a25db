package layout

import (
	"reflect"
	"unsafe"
)

// Node is a kind of what refers to each other: a pointer to one is written as its number, and what it points to once, after all that
// was named before it.
type Node struct {
	Of   any // a pointer to a struct of the kind
	Most int // of them in one state
}

// kindOfNode is the nodes of one kind that one state has named, numbered from one.
type kindOfNode struct {
	numbers map[unsafe.Pointer]uint64 // where they are written
	all     []unsafe.Pointer
	*nodes
}

// nodes are what a layout knows about one kind.
type nodes struct {
	of   reflect.Type
	most int
	plan *plan
}

type waiting struct {
	kind int
	at   unsafe.Pointer
}

// refer writes who is meant, or reads it; one that is named for the first time waits for its turn.
func (c *Codec) refer(kind int, p *unsafe.Pointer) {
	k := &c.graph[kind]
	if !c.reading {
		if *p == nil {
			c.Uvarint(0)
			return
		}
		number, known := k.numbers[*p]
		if !known {
			number = uint64(len(k.all)) + 1
			k.numbers[*p] = number
			k.all = append(k.all, *p)
			c.waiting = append(c.waiting, waiting{kind, *p})
			if len(k.all) > k.most {
				c.Fail("more than %d of %s", k.most, k.of)
			}
		}
		c.Uvarint(number)
		return
	}
	switch number := c.Uvarint(0); {
	case number == 0:
	case number <= uint64(len(k.all)):
		*p = k.all[number-1]
	case number > uint64(len(k.all))+1 || len(k.all) >= k.most:
		c.Fail("a reference to nobody")
	case c.take(k.of.Size()):
		*p = reflect.New(k.of).UnsafePointer()
		k.all = append(k.all, *p)
		c.waiting = append(c.waiting, waiting{kind, *p})
	}
}

// rest walks all that was named and has not had its turn.
func (c *Codec) rest() {
	for i := 0; i < len(c.waiting) && c.err == nil; i++ {
		(*c.graph[c.waiting[i].kind].plan)(c, c.waiting[i].at)
	}
}

// Graph is what a state that was read names.
type Graph struct{ kinds []kindOfNode }

// All returns the nodes of a kind, in the order in which they were named.
func All[T any](g *Graph) (all []*T) {
	for i := range g.kinds {
		if g.kinds[i].of == reflect.TypeFor[T]() {
			for _, p := range g.kinds[i].all {
				all = append(all, (*T)(p))
			}
		}
	}
	return all
}
