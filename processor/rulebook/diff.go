package rulebook

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

const (
	around   = 3    // lines around a change
	maxEdits = 1000 // two texts that differ in more lines are shown as one that replaces the other
)

// unified writes how one text became another, in the form that patch and people read; nothing where they are the same.
func unified(out io.Writer, from, to, before, after string) error {
	if before == after {
		return nil
	}
	if _, err := fmt.Fprintf(out, "--- %s\n+++ %s\n", from, to); err != nil {
		return err
	}
	a, b := cut(before), cut(after)
	edits := compare(a, b)
	for first := 0; first < len(edits); {
		last := first + 1
		for last < len(edits) && edits[last].a-edits[last-1].enda <= 2*around {
			last++
		}
		if err := hunk(out, a, b, edits[first:last]); err != nil {
			return err
		}
		first = last
	}
	return nil
}

// cut returns the lines; one without an end keeps that apart from one with it.
func cut(text string) []string {
	all := slices.Collect(strings.SplitAfterSeq(text, "\n"))
	if n := len(all); all[n-1] == "" {
		all = all[:n-1]
	}
	return all
}

// edit says that lines a to enda of the one text are lines b to endb of the other; both from 0.
type edit struct{ a, enda, b, endb int }

func hunk(out io.Writer, a, b []string, edits []edit) error {
	first, last := edits[0], edits[len(edits)-1]
	before := min(around, first.a)
	after := min(around, len(a)-last.enda)
	var text strings.Builder
	fmt.Fprintf(&text, "@@ -%s +%s @@\n", span(first.a-before, last.enda+after), span(first.b-before, last.endb+after))
	line := func(mark, text string, into *strings.Builder) {
		into.WriteString(mark)
		into.WriteString(printable(strings.TrimSuffix(text, "\n")) + "\n")
		if !strings.HasSuffix(text, "\n") {
			into.WriteString("\\ No newline at end of file\n")
		}
	}
	at := first.a - before
	for _, e := range edits {
		for ; at < e.a; at++ {
			line(" ", a[at], &text)
		}
		for ; at < e.enda; at++ {
			line("-", a[at], &text)
		}
		for i := e.b; i < e.endb; i++ {
			line("+", b[i], &text)
		}
	}
	for ; at < last.enda+after; at++ {
		line(" ", a[at], &text)
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// printable keeps a line of somebody else's file from steering a terminal.
func printable(line string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '\ufffd'
		}
		return r
	}, line)
}

// span is a range of lines as a hunk begins: from 1, and of none the line before.
func span(from, to int) string {
	switch to - from {
	case 0:
		return fmt.Sprintf("%d,0", from)
	case 1:
		return fmt.Sprint(from + 1)
	}
	return fmt.Sprintf("%d,%d", from+1, to-from)
}

// compare finds a shortest script of edits by the greedy algorithm of Myers, "An O(ND) Difference Algorithm and Its Variations", 1986.
func compare(a, b []string) []edit {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	x, y := a[head:len(a)-tail], b[head:len(b)-tail]
	if len(x) == 0 && len(y) == 0 {
		return nil
	}
	whole := []edit{{head, len(a) - tail, head, len(b) - tail}}
	if len(x) == 0 || len(y) == 0 {
		return whole
	}
	most := min(len(x)+len(y), maxEdits)
	reach := make([]int, 2*most+2) // of diagonal k, at k+most: how far in x
	var trace [][]int
	for d := 0; d <= most; d++ {
		trace = append(trace, slices.Clone(reach[most-d:most+d+1]))
		for k := -d; k <= d; k += 2 {
			i := 0
			switch {
			case d == 0:
			case k == -d || k != d && reach[most+k-1] < reach[most+k+1]:
				i = reach[most+k+1]
			default:
				i = reach[most+k-1] + 1
			}
			for i < len(x) && i-k < len(y) && x[i] == y[i-k] {
				i++
			}
			if reach[most+k] = i; i >= len(x) && i-k >= len(y) {
				return script(trace, len(x), len(y), head)
			}
		}
	}
	return whole
}

// script reads the way back, and joins what touches.
func script(trace [][]int, n, m, head int) (edits []edit) {
	i, j := n, m
	for d := len(trace) - 1; d > 0; d-- {
		reach := trace[d] // of diagonal k, at k+d, as it was before step d
		k := i - j
		from := k - 1
		if k == -d || k != d && reach[k-1+d] < reach[k+1+d] {
			from = k + 1
		}
		pi := reach[from+d]
		pj := pi - from
		one := edit{pi, pi, pj, pj + 1} // a line of b came in
		if from == k-1 {
			one = edit{pi, pi + 1, pj, pj} // one of a went
		}
		if n := len(edits); n > 0 && edits[n-1].a == one.enda && edits[n-1].b == one.endb {
			edits[n-1].a, edits[n-1].b = one.a, one.b
		} else {
			edits = append(edits, one)
		}
		i, j = pi, pj
	}
	slices.Reverse(edits)
	for e := range edits {
		edits[e].a, edits[e].enda, edits[e].b, edits[e].endb = edits[e].a+head, edits[e].enda+head, edits[e].b+head, edits[e].endb+head
	}
	return edits
}
