package sink

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// The tables of the store.
const (
	TableWorkers   = "worker_samples" // one row per worker, gpu and tick
	TableGpus      = "gpu_samples"
	TableHosts     = "host_samples"
	TableEvents    = "events"    // whatever happens rather than is sampled
	TableFindings  = "findings"  // every transition
	TableIncidents = "incidents" // the last transition of each incident; read with FINAL
)

// Rows are rows of one table, column by column. Columns that no row has a value for are left out: the table has the same default.
type Rows struct {
	Table   string
	Count   int
	Columns []Column
}

// Column holds the values of one column for all rows, in the slice that its kind has.
type Column struct {
	field
	bits   []uint64   // kindTime as nanoseconds since 1970, kindUint, kindInt, kindFloat, kindSmall
	flags  []byte     // kindBool
	text   []string   // kindText, kindName
	lists  [][]string // kindNames
	absent []byte     // 1 where nothing was read; nil for a column that is never null
}

// field says what a column is.
type field struct {
	name     string
	kind     kind
	optional bool
}

type kind uint8

const (
	kindTime kind = iota
	kindUint
	kindInt
	kindFloat
	kindBool
	kindText
	kindName  // text of few values: goes as a dictionary
	kindNames // a list of them
	kindSmall // 16 bits
)

// typeName is the column's type in ClickHouse's words.
func (f field) typeName() string {
	name := [...]string{kindTime: "DateTime64(9, 'UTC')", kindUint: "UInt64", kindInt: "Int64", kindFloat: "Float64", kindBool: "Bool",
		kindText: "String", kindName: "LowCardinality(String)", kindNames: "Array(LowCardinality(String))", kindSmall: "UInt16"}[f.kind]
	if f.optional {
		return "Nullable(" + name + ")"
	}
	return name
}

func newColumn(f field, rows int) Column {
	c := Column{field: f}
	switch f.kind {
	case kindText, kindName:
		c.text = make([]string, rows)
	case kindBool:
		c.flags = make([]byte, rows)
	case kindNames:
		c.lists = make([][]string, rows)
	default:
		c.bits = make([]uint64, rows)
	}
	if f.optional {
		c.absent = make([]byte, rows)
	}
	return c
}

// length is the number of values, or -1 when the slices of the column disagree.
func (c *Column) length() int {
	n := len(c.bits) + len(c.flags) + len(c.text) + len(c.lists)
	if c.optional != (c.absent != nil) || c.optional && len(c.absent) != n {
		return -1
	}
	return n
}

// empty says that every value is the table's default.
func (c *Column) empty() bool {
	if c.optional {
		return !slices.Contains(c.absent, 0)
	}
	return c.text != nil && !slices.ContainsFunc(c.text, func(s string) bool { return s != "" }) ||
		c.lists != nil && !slices.ContainsFunc(c.lists, func(l []string) bool { return len(l) > 0 })
}

// value returns one value as Go has it; nil where nothing was read.
func (c *Column) value(row int) any {
	if c.optional && c.absent[row] != 0 {
		return nil
	}
	switch c.kind {
	case kindTime:
		return time.Unix(0, int64(c.bits[row])).UTC()
	case kindUint:
		return c.bits[row]
	case kindInt:
		return int64(c.bits[row])
	case kindFloat:
		return math.Float64frombits(c.bits[row])
	case kindBool:
		return c.flags[row] != 0
	case kindNames:
		return c.lists[row]
	case kindSmall:
		return uint16(c.bits[row])
	}
	return c.text[row]
}

// set is for rows that are few; it panics when v is not of the column's kind, which is a defect of the caller.
func (c *Column) set(row int, v any) {
	if v == nil {
		c.absent[row] = 1 // panics where the column must not be null
		return
	}
	switch v := v.(type) {
	case time.Time:
		c.bits[row] = uint64(v.UnixNano())
	case uint64:
		c.bits[row] = v
	case int64:
		c.bits[row] = uint64(v)
	case float64:
		c.bits[row] = math.Float64bits(v)
	case bool:
		c.flags[row] = bit(v)
	case string:
		c.text[row] = v
	default:
		panic(fmt.Sprintf("column %s: %T", c.name, v))
	}
}

func bit(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// slice returns the rows from, and up to but without, the two places. It shares their memory.
func (r Rows) slice(from, to int) Rows {
	out := Rows{Table: r.Table, Count: to - from, Columns: slices.Clone(r.Columns)}
	for i := range out.Columns {
		c := &out.Columns[i]
		switch {
		case c.bits != nil:
			c.bits = c.bits[from:to]
		case c.flags != nil:
			c.flags = c.flags[from:to]
		case c.lists != nil:
			c.lists = c.lists[from:to]
		default:
			c.text = c.text[from:to]
		}
		if c.optional {
			c.absent = c.absent[from:to]
		}
	}
	return out
}

// check says whether every column has a value for every row: what is uneven may be lost on the way without an error.
func (r Rows) check() error {
	for i := range r.Columns {
		if n := r.Columns[i].length(); n != r.Count {
			return fmt.Errorf("rows of %s: column %s has %d values for %d rows", r.Table, r.Columns[i].name, n, r.Count)
		}
	}
	return nil
}

// Value returns a value by the name of its column; nil where nothing was read.
func (r Rows) Value(row int, column string) any {
	for i := range r.Columns {
		if r.Columns[i].name == column {
			return r.Columns[i].value(row)
		}
	}
	return nil
}

// names are the columns, quoted, as an INSERT wants them.
func (r Rows) names() string {
	var b strings.Builder
	for i := range r.Columns {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString("`" + r.Columns[i].name + "`")
	}
	return b.String()
}

// transposed makes columns of rows that are few. Their values stand in the order of the fields.
func transposed(table string, fields []field, rows [][]any) Rows {
	out := Rows{Table: table, Count: len(rows)}
	for i, f := range fields {
		c := newColumn(f, len(rows))
		for n, row := range rows {
			c.set(n, row[i])
		}
		if !c.empty() {
			out.Columns = append(out.Columns, c)
		}
	}
	return out
}
