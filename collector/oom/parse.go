// Package oom owns the reading of the texts in which an allocation is said to have failed: PyTorch on CUDA, HIP and XPU in its
// old and new wordings, the CUDA libraries, the engines' own pools, and the kernel's OOM killer. It refuses to guess: every
// field is looked for on its own, and what a text does not say, or says as "not available", stays absent.
package oom

import (
	"math"
	"math/bits"
	"regexp"
	"strconv"
	"strings"

	"lowtide/event"
)

// MaxText bounds the text that an event keeps, in bytes.
const MaxText = 4 << 10

// maxInput bounds what is looked at, in bytes: the longest text seen, with a hundred co-tenants, has 6 KiB.
const maxInput = 32 << 10

// Parse reads the text of a failed allocation, in one line or wrapped into several. False means that the text speaks of none.
// The event keeps the text with white space collapsed, valid UTF-8 and at most MaxText bytes; fields that the text does not
// give are absent. limit_bytes is what the process was allowed to have (memory fraction, or cudaMallocAsync's limits), never
// the card's capacity. allocated_bytes is what torch.cuda.memory_allocated() would have said: the text's "allocated by
// PyTorch" counts the free blocks of private pools too, so they are taken out of it and given as private_pool_free_bytes.
func Parse(text string) (*event.Oom, bool) {
	if !Mentions(text) {
		return nil, false
	}
	text = collapse(text)
	f, start := find(text)
	if f == nil {
		return nil, false
	}
	o := &event.Oom{Kind: f.kind, Text: bound(text, start)}
	if f.read != nil {
		f.read(text[start:], o)
	}
	return o, true
}

// Mentions is the cheap question to ask first: false says that Parse would take no such text. It is true for whatever has one
// of a few parts of words, such as "memory".
func Mentions(text string) bool {
	for _, s := range stems {
		if strings.Contains(text, s) {
			return true
		}
	}
	return false
}

// collapse makes every run of white space one space, since logs wrap these texts anywhere.
func collapse(text string) string {
	if len(text) > maxInput {
		text = text[:maxInput]
	}
	return strings.Join(strings.Fields(strings.ToValidUTF8(text, "\uFFFD")), " ")
}

// bound keeps the beginning of a text, or, where that would lose what matters, the part that starts with the match.
func bound(text string, start int) string {
	if len(text) <= MaxText {
		return text
	}
	return event.Shorten(text[start:], MaxText)
}

// quantity is PyTorch's format_size: "12 bytes", or two decimals and a binary unit.
const quantity = `([0-9]{1,20}(?:\.[0-9]{1,6})? (?:bytes|KiB|MiB|GiB))`

// pattern writes a regular expression with Q for a quantity.
func pattern(s string) *regexp.Regexp {
	return regexp.MustCompile(strings.ReplaceAll(s, "Q", quantity))
}

// matcher is a pattern, or one whose beginning is a quantity.
type matcher interface {
	FindStringSubmatch(text string) []string
}

// trailing is a pattern that begins with a quantity. It is looked for around its words, since a search that may begin at any digit
// takes milliseconds for a text of nothing but digits, and there are several such patterns.
type trailing struct {
	re    *regexp.Regexp
	words string
}

const widest = 48 // bytes, of a quantity and the word behind it

// after is a quantity, then the words, then a pattern.
func after(words, ends string) trailing {
	return trailing{pattern("Q" + regexp.QuoteMeta(words) + ends), words}
}

func (t trailing) FindStringSubmatch(text string) []string {
	for from := 0; ; {
		i := strings.Index(text[from:], t.words)
		if i < 0 {
			return nil
		}
		i += from
		from = i + len(t.words)
		if m := t.re.FindStringSubmatch(text[max(0, i-widest):min(len(text), from+widest)]); m != nil {
			return m
		}
	}
}

// The sentences of PyTorch's text, each optional, as c10/cuda/CUDACachingAllocator.cpp and CUDAMallocAsyncAllocator.cpp write
// them; "capacty" is 2.1's spelling.
var (
	requested   = pattern(`Tried to allocate Q`)
	capacity    = pattern(`has a total capaci?ty of Q(?: of which Q is free)?`)
	ownProcess  = pattern(`Including non-PyTorch memory, this process has Q memory in use`)
	someProcess = pattern(`Process [0-9]{1,10} has Q memory in use`)
	allowed     = after(" allowed;", "")
	allocated   = pattern(`Of the allocated memory Q is allocated by PyTorch`)
	private     = pattern(`with Q allocated in private pools`)
	unallocated = after(" is reserved by PyTorch but unallocated", "")

	oldAllocated = after(" already allocated", "")
	oldFree      = after(" already allocated; ", "Q free")
	oldReserved  = after(" reserved in total by PyTorch", "")

	asyncAllocated = pattern(`Currently allocated : Q`)
	asyncRequested = pattern(`Requested : Q`)
	asyncDevice    = pattern(`Device limit : Q`)
	asyncFree      = pattern(`Free \(according to CUDA\): Q`)
	asyncFraction  = pattern(`PyTorch limit \(set by user-supplied memory fraction\) : Q`)
)

func readTorch(text string, o *event.Oom) {
	const again = " out of memory. Tried to allocate"
	if i := strings.Index(text, again); i >= 0 {
		if j := strings.Index(text[i+len(again):], again); j >= 0 {
			text = text[:i+len(again)+j] // a traceback may repeat it with other numbers; the first one counts
		}
	}
	o.RequestedBytes = first(requested, text)
	if m := capacity.FindStringSubmatch(text); m != nil {
		o.FreeBytes = size(m[2])
	} else if m := oldFree.FindStringSubmatch(text); m != nil {
		o.FreeBytes = size(m[2])
	}
	o.LimitBytes = first(allowed, text)
	all := first(allocated, text)
	o.PrivatePoolFreeBytes = first(private, text)
	o.ReservedUnallocatedBytes = first(unallocated, text)
	o.OtherProcessesBytes = others(text, sum(all, o.ReservedUnallocatedBytes))
	switch {
	case private.MatchString(text):
		o.AllocatedBytes = less(all, o.PrivatePoolFreeBytes)
	case all != nil:
		o.AllocatedBytes = all
	default: // up to 2.0, where "already allocated" is memory_allocated() itself
		o.AllocatedBytes = first(oldAllocated, text)
		o.ReservedUnallocatedBytes = less(first(oldReserved, text), o.AllocatedBytes)
	}
}

// others adds up the processes of the list that are not the one that failed. PyTorch knows itself by getpid(), so inside a
// container it stands in the list under its host pid and the sentence "this process" is missing: then the one process that is
// large enough to hold what PyTorch reserved is itself, and where several are, nobody can tell. A list that may have been cut
// off, or with a size that NVML could not give, has no sum.
func others(text string, reserved *uint64) *uint64 {
	list := someProcess.FindAllStringSubmatch(text, -1)
	own := ownProcess.MatchString(text)
	if !own && len(list) == 0 || !strings.Contains(text, "Of the allocated memory ") {
		return nil
	}
	var total, self uint64
	candidates := 0
	for _, m := range list {
		n := size(m[1])
		if n == nil {
			return nil
		}
		if !own && reserved != nil && *n >= *reserved {
			self = *n
			candidates++
		}
		var carry uint64
		if total, carry = bits.Add64(total, *n, 0); carry != 0 {
			return nil
		}
	}
	if !own && (reserved == nil || candidates > 1) {
		return nil
	}
	return event.Ptr(total - self)
}

func readAsync(text string, o *event.Oom) {
	o.AllocatedBytes = first(asyncAllocated, text)
	o.RequestedBytes = first(asyncRequested, text)
	o.FreeBytes = first(asyncFree, text)
	o.LimitBytes = first(asyncDevice, text)
	if f := first(asyncFraction, text); f != nil && (o.LimitBytes == nil || *f < *o.LimitBytes) {
		o.LimitBytes = f
	}
}

// first reads the first group of the first match; nil where there is none, or its size is not available.
func first(re matcher, text string) *uint64 {
	m := re.FindStringSubmatch(text)
	if m == nil {
		return nil
	}
	return size(m[1])
}

// size reads a quantity in bytes, rounded to the nearest. Sizes from 2^63 on are PyTorch's way to print a counter that was not
// available or went below zero (17179869184.00 GiB is 2^64 bytes): unknown.
func size(q string) *uint64 {
	number, unit, ok := strings.Cut(q, " ")
	if !ok {
		return nil
	}
	shift := 0
	switch unit {
	case "KiB":
		shift = 10
	case "MiB":
		shift = 20
	case "GiB":
		shift = 30
	}
	whole, fraction, _ := strings.Cut(number, ".")
	n, err := strconv.ParseUint(whole, 10, 63)
	if err != nil || n>>(63-shift) != 0 {
		return nil
	}
	n <<= shift
	if fraction != "" {
		part, err := strconv.ParseUint(fraction, 10, 32)
		if err != nil {
			return nil
		}
		// At most six decimals: the product is exact, and so is the rounding.
		n += uint64(math.Round(float64(part<<shift) / math.Pow10(len(fraction))))
	}
	if n >= 1<<63 {
		return nil
	}
	return &n
}

func sum(a, b *uint64) *uint64 {
	if a == nil {
		return nil
	}
	if b == nil {
		return a
	}
	return event.Ptr(*a + *b) // both are below 2^63
}

// less is absent where the difference would be negative: then the two figures do not belong together.
func less(a, b *uint64) *uint64 {
	if a == nil || b == nil || *b > *a {
		return nil
	}
	return event.Ptr(*a - *b)
}
