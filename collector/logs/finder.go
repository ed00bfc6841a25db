package logs

import "bytes"

// finder looks for any of several words at once, after Wu and Manber (1994): the two bytes where the shortest word would end say
// how far the window may move. Words of seven bytes let it pass most text six bytes at a time.
type finder struct {
	shift  [1 << 16]uint8
	words  map[uint16][][]byte // by the two bytes at the end of the window
	window int                 // the length of the shortest word
}

func newFinder(words ...string) *finder {
	f := &finder{words: make(map[uint16][][]byte), window: 255}
	for _, w := range words {
		f.window = min(f.window, len(w))
	}
	for i := range f.shift {
		f.shift[i] = uint8(f.window - 1)
	}
	for _, w := range words {
		for end := 1; end < f.window; end++ {
			pair := uint16(w[end-1]) | uint16(w[end])<<8
			f.shift[pair] = min(f.shift[pair], uint8(f.window-1-end))
			if end == f.window-1 {
				f.words[pair] = append(f.words[pair], []byte(w))
			}
		}
	}
	return f
}

// next returns where the first word begins at or after from; -1 where there is none.
func (f *finder) next(b []byte, from int) int {
	for i := from + f.window - 1; i < len(b); {
		pair := uint16(b[i-1]) | uint16(b[i])<<8
		move := int(f.shift[pair])
		if move == 0 {
			begin := i - f.window + 1
			for _, w := range f.words[pair] {
				if bytes.HasPrefix(b[begin:], w) {
					return begin
				}
			}
			move = 1
		}
		i += move
	}
	return -1
}
