package ruletest

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// notation reads the compact form of a series:
//
//	40GiB+12MiBx60     sixty ticks, 12 MiB more with each
//	40GiB+1GiB/hx6h    for six hours, 1 GiB more an hour
//	5x60               sixty times 5
//	_x10               ten ticks in which nothing is read
//	40GiB±4MiBx60      with noise, also written +-4MiB
//	5x*                to the end; a value alone stands for that
//	(40GiBx50 38GiBx10)x24
type notation struct {
	text     string
	at       int // bytes
	interval time.Duration
	units    map[string]float64
	groups   int
}

// mistake is what is wrong with a notation, at so many characters from its beginning.
type mistake struct {
	offset     int
	what, hint string
}

func (m *mistake) Error() string { return m.what }

func (n *notation) fail(hint, format string, args ...any) error {
	return &mistake{utf8.RuneCountInString(n.text[:min(n.at, len(n.text))]), fmt.Sprintf(format, args...), hint}
}

func (n *notation) rest() string { return n.text[n.at:] }

func (n *notation) take(prefix string) bool {
	if strings.HasPrefix(n.rest(), prefix) {
		n.at += len(prefix)
		return true
	}
	return false
}

func (n *notation) blanks() {
	for n.at < len(n.text) && strings.IndexByte(" \t\r\n,", n.text[n.at]) >= 0 {
		n.at++
	}
}

// list reads items until the end, or until the bracket that closes them.
func (n *notation) list(group bool) (out []piece, err error) {
	for {
		n.blanks()
		if n.rest() == "" || group && strings.HasPrefix(n.rest(), ")") {
			break
		}
		if len(out) > 0 && out[len(out)-1].forever {
			return nil, n.fail("x* stands last", "something follows what goes on to the end")
		}
		some, err := n.item()
		if err != nil {
			return nil, err
		}
		if len(out)+len(some) > maxPieces {
			return nil, n.fail("make the interval longer, or the scenario shorter", "a series of more than %d pieces", maxPieces)
		}
		out = append(out, some...)
		if r := n.rest(); r != "" && strings.IndexByte(" \t\r\n,)", r[0]) < 0 {
			return nil, n.fail("for example 40GiB+12MiBx60 _x10 5x30", "%q is not understood here", first(r))
		}
	}
	if len(out) == 0 {
		return nil, n.fail("for example 40GiB+12MiBx60", "a series without values")
	}
	return out, nil
}

// first is the word that a text begins with.
func first(text string) string {
	if i := strings.IndexAny(text, " \t\r\n,"); i > 0 {
		text = text[:i]
	}
	if len(text) > 24 {
		text = text[:24]
	}
	return strings.ToValidUTF8(text, "?")
}

func (n *notation) item() ([]piece, error) {
	if n.take("(") {
		return n.group()
	}
	one := piece{ticks: 1}
	if n.take("_") {
		one.gap = true
	} else if err := n.value(&one); err != nil {
		return nil, err
	}
	var err error
	if n.take("x") {
		one.ticks, one.forever, err = n.count()
	} else if one.step != 0 {
		err = n.fail("say for how many ticks, or how long: 40GiB+12MiBx60, 40GiB+12MiBx1h, or x* to the end", "%s has no end", "a value that grows")
	}
	return []piece{one}, err
}

func (n *notation) group() ([]piece, error) {
	if n.groups++; n.groups > maxGroups {
		return nil, n.fail("write it flat", "more than %d brackets in each other", maxGroups)
	}
	inner, err := n.list(true)
	if err != nil {
		return nil, err
	}
	n.groups--
	if !n.take(")") {
		return nil, n.fail("close it with ) and say how often: (5x50 0x10)x24", "a bracket is not closed")
	}
	if !n.take("x") {
		return nil, n.fail("say how often: (5x50 0x10)x24", "a bracket without a count")
	}
	if inner[len(inner)-1].forever {
		return nil, n.fail("say how long within brackets", "what goes on to the end cannot be repeated")
	}
	times, err := n.whole()
	if err != nil {
		return nil, err
	}
	if times*len(inner) > maxPieces {
		return nil, n.fail("make the interval longer, or the scenario shorter", "a series of more than %d pieces", maxPieces)
	}
	out := make([]piece, 0, times*len(inner))
	for range times {
		out = append(out, inner...)
	}
	return out, nil
}

// value reads a value, what is added with every tick, and its noise, which may stand in any order.
func (n *notation) value(one *piece) (err error) {
	if one.start, err = n.quantity(); err != nil {
		return err
	}
	for {
		sign := 1.0
		switch {
		case n.take("±"), n.take("+-"), n.take("~"):
			if one.noise, err = n.quantity(); err != nil {
				return err
			}
			one.noise = math.Abs(one.noise)
			continue
		case n.take("+"):
		case n.take("-"):
			sign = -1
		default:
			return nil
		}
		step, err := n.quantity()
		if err != nil {
			return err
		}
		if n.take("/") {
			per := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}[n.letter()]
			if per == 0 {
				return n.fail("write /s, /m, /h or /d: 40GiB+1GiB/hx6h", "a rate per what?")
			}
			n.at++
			step *= n.interval.Seconds() / per.Seconds()
		}
		one.step += sign * step
	}
}

func (n *notation) letter() string {
	if r := n.rest(); r != "" {
		return r[:1]
	}
	return ""
}

// quantity reads a number with its unit.
func (n *notation) quantity() (float64, error) {
	from := n.at
	for n.at < len(n.text) {
		c := n.text[n.at]
		exponent := (c == 'e' || c == 'E') && n.at > from && strings.TrimLeft(strings.TrimLeft(n.text[n.at+1:], "+-"), "0123456789") != strings.TrimLeft(n.text[n.at+1:], "+-")
		signed := (c == '-' || c == '+') && (n.at == from || n.text[n.at-1] == 'e' || n.text[n.at-1] == 'E')
		if !(c >= '0' && c <= '9' || c == '.' || exponent || signed) {
			break
		}
		n.at++
	}
	text := n.text[from:n.at]
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(v, 0) || math.Abs(v) > 1e18 {
		n.at = from
		return 0, n.fail("for example 40GiB+12MiBx60, 5x60, _x10", "%q is no number", first(n.rest()))
	}
	unit := n.unit()
	size, known := n.units[unit]
	if !known {
		n.at -= len(unit)
		return 0, n.fail(n.remedy(), "%q is no unit of this field", unit)
	}
	return v * size, nil
}

// allUnits are those that any field takes, the longest first where one begins another.
var allUnits = []string{"KiB", "MiB", "GiB", "TiB", "KB", "MB", "GB", "TB", "B", "%", "ms", "s", "m", "h"}

// unit reads the letters behind a number, up to the x of a count.
func (n *notation) unit() string {
	for _, unit := range allUnits {
		if n.take(unit) {
			return unit
		}
	}
	from := n.at
	for n.at < len(n.text) && (n.text[n.at] >= 'a' && n.text[n.at] <= 'z' && n.text[n.at] != 'x' || n.text[n.at] >= 'A' && n.text[n.at] <= 'Z') {
		n.at++
	}
	return n.text[from:n.at]
}

func (n *notation) remedy() string {
	var names []string
	for _, unit := range allUnits {
		if _, takes := n.units[unit]; takes {
			names = append(names, unit)
		}
	}
	if len(names) == 0 {
		return "it is a plain number"
	}
	return "write a plain number, or one with " + strings.Join(names, ", ")
}

// count reads a number of ticks, a duration, or * for all that is left.
func (n *notation) count() (ticks int, forever bool, err error) {
	if n.take("*") {
		return 1, true, nil
	}
	from := n.at
	for n.at < len(n.text) && strings.IndexByte("0123456789.smhd", n.text[n.at]) >= 0 {
		n.at++
	}
	text := n.text[from:n.at]
	if strings.ContainsAny(text, "smhd.") {
		d, err := duration(text)
		if err != nil || d <= 0 {
			n.at = from
			return 0, false, n.fail("write x60 for ticks, or x90s, x15m, x6h", "%q is no count and no duration", first(n.rest()))
		}
		if d/n.interval > maxTicks {
			return 0, false, n.fail("make the interval longer", "more than %d ticks", maxTicks)
		}
		return max(1, int((d+n.interval/2)/n.interval)), false, nil
	}
	n.at = from
	ticks, err = n.whole()
	return ticks, false, err
}

func (n *notation) whole() (int, error) {
	from := n.at
	for n.at < len(n.text) && n.text[n.at] >= '0' && n.text[n.at] <= '9' {
		n.at++
	}
	v, err := strconv.Atoi(n.text[from:n.at])
	if err != nil || v < 1 || v > maxTicks {
		n.at = from
		return 0, n.fail(fmt.Sprintf("write a count from 1 to %d behind the x: 5x60", maxTicks), "%q is no count", first(n.rest()))
	}
	return v, nil
}

// duration is time.ParseDuration with days.
func duration(text string) (time.Duration, error) {
	days, rest, has := strings.Cut(text, "d")
	if !has {
		return time.ParseDuration(text)
	}
	n, err := strconv.Atoi(days)
	if err != nil || n < 0 || n > 365 {
		return 0, fmt.Errorf("parse duration %q", text)
	}
	d := time.Duration(n) * 24 * time.Hour
	if rest == "" {
		return d, nil
	}
	more, err := time.ParseDuration(rest)
	return d + more, err
}
