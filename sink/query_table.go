package sink

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"lowtide/event"
)

// Bounds of a table for people.
const (
	maxCell   = 72      // runes of one cell; --json has all of it
	maxAnswer = 8 << 20 // bytes
)

// errAnswer says that the store's answer is not in the format that was asked for.
var errAnswer = errors.New("answer is not readable")

// answer is a small result: names, types and rows, values as JSON has them.
type answer struct {
	names, types []string
	rows         [][]any
}

// readAnswer decodes JSONCompactEachRowWithNamesAndTypes.
func readAnswer(text []byte) (answer, error) {
	var a answer
	if len(text) > maxAnswer {
		return a, fmt.Errorf("%w: more than %d bytes", errAnswer, maxAnswer)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := errors.Join(decoder.Decode(&a.names), decoder.Decode(&a.types)); err != nil {
		return a, fmt.Errorf("%w: %w", errAnswer, err)
	}
	if len(a.names) != len(a.types) {
		return a, fmt.Errorf("%w: %d names and %d types", errAnswer, len(a.names), len(a.types))
	}
	for {
		var row []any
		err := decoder.Decode(&row)
		if errors.Is(err, io.EOF) {
			return a, nil
		}
		if err != nil {
			return a, fmt.Errorf("%w: %w", errAnswer, err)
		}
		if len(row) != len(a.names) {
			return a, fmt.Errorf("%w: a row of %d values for %d names", errAnswer, len(row), len(a.names))
		}
		a.rows = append(a.rows, row)
	}
}

// write prints the rows under their names; quantities read as their names' units say, and what is not known is a question mark.
func (a answer) write(out io.Writer) error {
	cells := make([][]string, 0, len(a.rows)+1)
	cells = append(cells, a.names)
	for _, row := range a.rows {
		line := make([]string, len(row))
		unit := ""
		for i, name := range a.names {
			if name == "unit" {
				unit, _ = row[i].(string) // of the values in this row, where they differ from row to row
			}
		}
		for i, value := range row {
			own := unitOf(a.names[i])
			if own == "" && unit != "" {
				own = unit
			}
			line[i] = cell(value, a.types[i], own)
		}
		cells = append(cells, line)
	}
	width := make([]int, len(a.names))
	for _, line := range cells {
		for i, text := range line {
			width[i] = max(width[i], utf8.RuneCountInString(text))
		}
	}
	var b strings.Builder
	for _, line := range cells {
		row := ""
		for i, text := range line {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(text))
			if isNumber(a.types[i]) {
				row += pad + text + "  "
			} else {
				row += text + pad + "  "
			}
		}
		b.WriteString(strings.TrimRight(row, " ") + "\n")
	}
	if _, err := io.WriteString(out, b.String()); err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	return nil
}

func isNumber(kind string) bool {
	kind = strings.TrimSuffix(strings.TrimPrefix(kind, "Nullable("), ")")
	return strings.HasPrefix(kind, "Int") || strings.HasPrefix(kind, "UInt") || strings.HasPrefix(kind, "Float")
}

// unitOf is the unit that a column's name ends with, "" for a plain count.
func unitOf(name string) string {
	if before, per, ok := strings.Cut(name, "_per_"); ok {
		per, _, _ = strings.Cut(per, "_")
		if per == "hour" {
			per = "h"
		}
		if base := unitOf(before); base != "" {
			return base + "/" + per
		}
		return "1/" + per
	}
	for suffix, unit := range map[string]string{"_bytes": "bytes", "_seconds": "seconds", "_ratio": "ratio", "kv_usage": "ratio", "hours": "hours"} {
		if strings.HasSuffix(name, suffix) || name == strings.TrimPrefix(suffix, "_") {
			return unit
		}
	}
	return ""
}

func cell(value any, kind, unit string) string {
	text := ""
	switch v := value.(type) {
	case nil:
		return "?"
	case bool:
		if v {
			return "yes"
		}
		return "no"
	case json.Number:
		text = v.String()
	case string:
		text = v
	case []any:
		parts := make([]string, len(v))
		for i, one := range v {
			parts[i] = cell(one, "", "")
		}
		text = strings.Join(parts, " < ")
	default:
		encoded, err := json.Marshal(v)
		if err != nil {
			return "?"
		}
		text = string(encoded)
	}
	switch {
	case isNumber(kind):
		if number, err := strconv.ParseFloat(text, 64); err == nil {
			return event.FormatQuantity(number, unit)
		}
	case strings.Contains(kind, "DateTime"):
		text, _, _ = strings.Cut(text, ".") // 2026-11-01 00:00:00 of UTC
	}
	text = printable(text)
	if utf8.RuneCountInString(text) > maxCell {
		text = string([]rune(text)[:maxCell-1]) + "…"
	}
	return text
}
