package worker

import (
	"math"
	"slices"

	"lowtide/processor/layout"
)

// matrix is rows of values of one width, in one piece of memory: a slice for each row would cost half as much again. NaN is what was
// not read.
type matrix[T float32 | half] struct {
	Width  int
	Values []T
}

// half is the upper half of a float32, right to 0.4 %: for what need not be known better.
type half uint16

func halfOf(v float32) half { return half((math.Float32bits(v) + 1<<15) >> 16) }

func (h half) value() float64 { return float64(math.Float32frombits(uint32(h) << 16)) }

// growRows is how many rows a matrix, and a list of points, grows by: doubling would leave half of it empty for most of a life.
const growRows = 8

func (m *matrix[T]) rows() int {
	if m.Width == 0 {
		return 0
	}
	return len(m.Values) / m.Width
}

func (m *matrix[T]) row(i int) []T { return m.Values[i*m.Width:][:m.Width:m.Width] }

// widen makes room for more columns, which nobody has read so far.
func (m *matrix[T]) widen(width int) {
	if width <= m.Width {
		return
	}
	rows := m.rows()
	wide := matrix[T]{Width: width, Values: make([]T, rows*width)}
	for i := range rows {
		row := wide.row(i)
		forget(row[copy(row, m.row(i)):])
	}
	*m = wide
}

// add appends a row in which nothing was read, and returns it.
func (m *matrix[T]) add() []T {
	n := len(m.Values)
	if n+m.Width > cap(m.Values) {
		grown := make([]T, n, n+growRows*m.Width)
		copy(grown, m.Values)
		m.Values = grown
	}
	m.Values = m.Values[:n+m.Width]
	row := m.row(n / max(1, m.Width))
	forget(row)
	return row
}

// push appends a value, and makes room for a few more when there is none.
func push[T any](values []T, v T) []T {
	if n := len(values); n == cap(values) {
		grown := make([]T, n, n+growRows)
		copy(grown, values)
		values = grown
	}
	return append(values, v)
}

// remove takes one row out.
func (m *matrix[T]) remove(i int) {
	m.Values = slices.Delete(m.Values, i*m.Width, (i+1)*m.Width)
}

// cut keeps the first rows.
func (m *matrix[T]) cut(rows int) { m.Values = m.Values[:rows*m.Width] }

// lower takes values into a row of lowest values, column by column; a value that was not read changes nothing.
func lower(row, values []float32) {
	for i, v := range values {
		if v == v && !(row[i] <= v) {
			row[i] = v
		}
	}
}

func forget[T float32 | half](row []T) {
	var none T
	switch none := any(&none).(type) {
	case *float32:
		*none = float32(nan)
	case *half:
		*none = halfOf(float32(nan))
	}
	for i := range row {
		row[i] = none
	}
}

const maxValues = 1 << 22 // of a matrix that is read

// Flow writes each value as the difference to the row above: most of what is measured moves little.
func (m *matrix[T]) Flow(c *layout.Codec) {
	width, n := c.Length(m.Width, maxValues), c.Length(len(m.Values), maxValues)
	if c.Reading() {
		if width == 0 && n > 0 || width > 0 && n%width > 0 {
			c.Fail("rows of different lengths")
			return
		}
		if m.Width, m.Values = width, layout.Make[T](c, n); m.Values == nil {
			return
		}
	}
	switch values := any(m.Values).(type) {
	case []float32:
		for i := range values {
			above := uint32(0)
			if i >= width {
				above = math.Float32bits(values[i-width])
			}
			if bits := c.Difference(math.Float32bits(values[i]), above); c.Reading() {
				values[i] = math.Float32frombits(bits)
			}
		}
	case []half:
		for i := range values {
			above := half(0)
			if i >= width {
				above = values[i-width]
			}
			if bits := c.Difference(uint32(values[i]), uint32(above)); c.Reading() {
				values[i] = half(bits)
			}
		}
	}
}
