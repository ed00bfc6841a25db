package event

import (
	"bytes"
	"strconv"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// odd is the position behind something that is not in the plain form. Every reader below takes the position of what it reads, with
// space before it or not, and returns the one behind it or odd; once odd, a line is the strict reader's.
const odd = -1

// skip returns the position of what follows the space.
func skip(text []byte, at int) int {
	for at < len(text) && (text[at] == ' ' || text[at] == '\t' || text[at] == '\r' || text[at] == '\n') {
		at++
	}
	return at
}

// take steps over one byte that must be there.
func take(text []byte, at int, c byte) int {
	if at < 0 {
		return odd
	}
	if at < len(text) && text[at] == c {
		return at + 1
	}
	if at = skip(text, at); at < len(text) && text[at] == c {
		return at + 1
	}
	return odd
}

// starts says whether a text goes on with a member of this name and its value, without space before that, as most do.
func starts(text []byte, at int, name string) bool {
	end := at + len(name) + 1
	return end+2 < len(text) && text[end] == '"' && text[end+1] == ':' && text[end+2] > ' ' && text[at] == '"' && string(text[at+1:end]) == name
}

// named steps over a member's name and the colon to its value, if it is this name.
func named(text []byte, at int, name string) int {
	if at < len(text) && text[at] != '"' {
		at = skip(text, at)
	}
	end := at + 1 + len(name)
	if end+1 >= len(text) || text[at] != '"' || text[end] != '"' || string(text[at+1:end]) != name {
		return odd
	}
	if end++; text[end] != ':' {
		if end = skip(text, end); end >= len(text) || text[end] != ':' {
			return odd
		}
	}
	return skip(text, end+1)
}

// quoted returns what stands between quotes, as it stands there.
func quoted(text []byte, at int) ([]byte, int) {
	if at = take(text, at, '"'); at < 0 {
		return nil, odd
	}
	length := bytes.IndexByte(text[at:], '"')
	if length < 0 {
		return nil, odd
	}
	return text[at : at+length], at + length + 1
}

// string reads a text that is not empty: an empty one could not be told from a field that was not there, were it to come twice.
func (d *decoder) string(at int, into *string) int {
	raw, at := quoted(d.text, at)
	if *into != "" || at < 0 {
		return odd
	}
	word, ok := d.word(raw)
	if !ok {
		return odd
	}
	*into = word
	return at
}

func (d *decoder) strings(at int, into *[]string) int {
	if *into != nil {
		return odd
	}
	for at = take(d.text, at, '['); at >= 0; {
		var raw []byte
		if raw, at = quoted(d.text, at); at < 0 {
			return odd
		}
		word, ok := d.word(raw)
		if !ok {
			return odd
		}
		*into = append(*into, word)
		if at = skip(d.text, at); at >= len(d.text) || d.text[at] != ',' {
			return take(d.text, at, ']')
		}
		at++
	}
	return odd
}

// word makes a string of what stands between quotes, if it stands for itself and is not empty.
func (d *decoder) word(raw []byte) (string, bool) {
	if known, ok := d.words[string(raw)]; ok {
		return known, true
	}
	ascii := true
	for _, c := range raw {
		if c < ' ' || c == '\\' {
			return "", false
		}
		ascii = ascii && c < utf8.RuneSelf
	}
	if len(raw) == 0 || !ascii && !utf8.Valid(raw) {
		return "", false
	}
	word := string(raw)
	if d.words != nil && len(word) <= maxWord {
		if len(d.words) >= maxKnown {
			clear(d.words)
		}
		d.words[word] = word
	}
	return word, true
}

// digits appends the digits ahead to a value, which is right up to 19 of them.
func digits(text []byte, at int, value uint64) (uint64, int) {
	for at < len(text) {
		digit := text[at] - '0'
		if digit > 9 {
			break
		}
		value = 10*value + uint64(digit)
		at++
	}
	return value, at
}

// whole reads a number of digits alone. A sign, a fraction or an exponent is the strict reader's to judge.
func whole(text []byte, at int, most int) (uint64, int) {
	value, end := digits(text, at, 0)
	if n := end - at; n == 0 || n > most || n > 1 && text[at] == '0' {
		return 0, odd
	}
	return value, end
}

func (d *decoder) uint(at int, into **uint64) int {
	if *into != nil || d.uintN == len(d.uints) {
		return odd
	}
	slot := &d.uints[d.uintN]
	d.uintN++
	*slot, at = whole(d.text, at, 19)
	*into = slot
	return at
}

func (d *decoder) int(at int, into **int64) int {
	if *into != nil || d.intN == len(d.ints) {
		return odd
	}
	value, at := whole(d.text, at, 18)
	d.ints[d.intN] = int64(value)
	*into = &d.ints[d.intN]
	d.intN++
	return at
}

// pid reads a number that is never 0.
func (d *decoder) pid(at int, into *int64) int {
	if *into != 0 {
		return odd
	}
	value, at := whole(d.text, at, 18)
	*into = int64(value)
	return at
}

func (d *decoder) bool(at int, into **bool) int {
	if *into != nil || d.boolN == len(d.bools) || at >= len(d.text) {
		return odd
	}
	word := "false"
	if d.text[at] == 't' {
		word = "true"
	}
	if !bytes.HasPrefix(d.text[at:], []byte(word)) {
		return odd
	}
	d.bools[d.boolN] = word == "true"
	*into = &d.bools[d.boolN]
	d.boolN++
	return at + len(word)
}

func (d *decoder) float(at int, into **float64) int {
	if *into != nil || d.floatN == len(d.floats) {
		return odd
	}
	slot := &d.floats[d.floatN]
	d.floatN++
	*slot, at = real(d.text, at)
	*into = slot
	return at
}

// tens are the powers of ten that the shorter fractions need; a double holds them exactly.
var tens = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15}

// real reads any number. With up to 15 digits both the digits and the power of ten are exact doubles, so that their quotient is the
// nearest one (Clinger, "How to Read Floating Point Numbers Accurately", 1990).
func real(text []byte, at int) (float64, int) {
	from := at
	if at < len(text) && text[at] == '-' {
		at++
	}
	first := at
	mantissa, at := digits(text, at, 0)
	if n := at - first; n == 0 || n > 1 && text[first] == '0' {
		return 0, odd
	}
	length, fraction := at-first, 0
	if at < len(text) && text[at] == '.' {
		point := at
		if mantissa, at = digits(text, at+1, mantissa); at == point+1 {
			return 0, odd
		}
		fraction = at - point - 1
	}
	if at < len(text) && text[at]|0x20 == 'e' {
		if at = exponent(text, at); at < 0 {
			return 0, odd
		}
	} else if length+fraction < len(tens) {
		value := float64(mantissa) / tens[fraction]
		if first > from {
			value = -value
		}
		return value, at
	}
	value, err := strconv.ParseFloat(string(text[from:at]), 64)
	if err != nil {
		return 0, odd
	}
	return value, at
}

func exponent(text []byte, at int) int {
	at++
	if at < len(text) && (text[at] == '+' || text[at] == '-') {
		at++
	}
	_, end := digits(text, at, 0)
	if end == at {
		return odd
	}
	return end
}

// time reads RFC 3339 in UTC, with Z and at most nine digits of a second, after 1970.
func (d *decoder) time(at int, into **timestamppb.Timestamp) int {
	raw, at := quoted(d.text, at)
	if *into != nil || at < 0 {
		return odd
	}
	if d.stamp.time == nil || !bytes.Equal(raw, d.stamp.text) {
		seconds, nanos, ok := d.today.parse(raw)
		if !ok {
			return odd
		}
		d.stamp.text = append(d.stamp.text[:0], raw...)
		d.stamp.time = &timestamppb.Timestamp{Seconds: seconds, Nanos: nanos}
	}
	*into = d.stamp.time
	return at
}

// day is the last that was read: most times that follow each other are of one.
type day struct {
	text  [len("dddd-dd-dd")]byte
	start int64 // seconds since 1970
}

// parse reads 2006-01-02T15:04:05Z, with or without a fraction.
func (d *day) parse(raw []byte) (seconds int64, nanos int32, ok bool) {
	const shape = "dddd-dd-ddTdd:dd:ddZ"
	if len(raw) < len(shape) || raw[len(raw)-1] != 'Z' || !shaped(raw[len(d.text):], shape[len(d.text):len(shape)-1]) {
		return 0, 0, false
	}
	if string(raw[:len(d.text)]) != string(d.text[:]) && !d.turn(raw, shape[:len(d.text)]) {
		return 0, 0, false
	}
	hour, minute, second := pair(raw, 11), pair(raw, 14), pair(raw, 17)
	if hour > 23 || minute > 59 || second > 59 {
		return 0, 0, false
	}
	if fraction := raw[len(shape)-1 : len(raw)-1]; len(fraction) > 0 {
		if fraction[0] != '.' || len(fraction) < 2 || len(fraction) > 10 {
			return 0, 0, false
		}
		for i := 1; i <= 9; i++ {
			digit := byte(0)
			if i < len(fraction) {
				if digit = fraction[i] - '0'; digit > 9 {
					return 0, 0, false
				}
			}
			nanos = nanos*10 + int32(digit)
		}
	}
	return d.start + int64(hour*3600+minute*60+second), nanos, true
}

// turn makes it the day of a time.
func (d *day) turn(raw []byte, shape string) bool {
	if !shaped(raw, shape) {
		return false
	}
	year, month, date := pair(raw, 0)*100+pair(raw, 2), pair(raw, 5), pair(raw, 8)
	if year <= 1970 || month < 1 || month > 12 || date < 1 {
		return false
	}
	at := time.Date(year, time.Month(month), date, 0, 0, 0, 0, time.UTC)
	if at.Day() != date { // the 31st of April would be the 1st of May
		return false
	}
	copy(d.text[:], raw)
	d.start = at.Unix()
	return true
}

// shaped says whether a text begins with digits where the shape has d, and as the shape elsewhere.
func shaped(raw []byte, shape string) bool {
	for i, want := range []byte(shape) {
		if want == 'd' && raw[i]-'0' > 9 || want != 'd' && raw[i] != want {
			return false
		}
	}
	return true
}

// pair is the number of two digits.
func pair(raw []byte, at int) int { return int(raw[at]-'0')*10 + int(raw[at+1]-'0') }
