package snapshot

import (
	"hash/maphash"
	"strings"
)

// index finds an identifier, 1 and up, by the hash of what it stands for. Identifiers are given out in order, so that four bytes
// each are enough for the hashes, and nothing is hashed twice.
type index struct {
	slots  []uint32
	hashes []uint32 // by identifier - 1
}

func newIndex() index { return index{slots: make([]uint32, 1024)} }

// add gives the next identifier to the hash.
func (x *index) add(hash uint32) uint32 {
	x.hashes = append(x.hashes, hash)
	if len(x.hashes)*3 > len(x.slots)*2 {
		x.slots = make([]uint32, 2*len(x.slots))
		for i, h := range x.hashes {
			x.place(h, uint32(i+1))
		}
	} else {
		x.place(hash, uint32(len(x.hashes)))
	}
	return uint32(len(x.hashes))
}

func (x *index) place(hash, id uint32) {
	mask := uint32(len(x.slots) - 1)
	i := hash & mask
	for x.slots[i] != 0 {
		i = (i + 1) & mask
	}
	x.slots[i] = id
}

// texts are byte strings, each kept once: the strings of a snapshot, and its stacks as the identifiers of their frames.
type texts struct {
	index
	seed maphash.Seed
	text []byte
	ends []uint32 // of each in text, by identifier; ends[0] is 0
	last uint32
}

func newTexts(seed maphash.Seed) texts {
	return texts{index: newIndex(), seed: seed, ends: []uint32{0}}
}

func (t *texts) bytes(id uint32) []byte { return t.text[t.ends[id-1]:t.ends[id]] }

// intern returns the identifier of a text; false where they are more than 4 GiB.
func (t *texts) intern(b []byte) (uint32, bool) {
	if t.last != 0 && string(t.bytes(t.last)) == string(b) { // PyTorch writes "N/A" anew into every entry
		return t.last, true
	}
	hash := uint32(maphash.Bytes(t.seed, b))
	mask := uint32(len(t.slots) - 1)
	for i := hash & mask; t.slots[i] != 0; i = (i + 1) & mask {
		if id := t.slots[i]; t.hashes[id-1] == hash && string(t.bytes(id)) == string(b) {
			t.last = id
			return id, true
		}
	}
	if uint64(len(t.text))+uint64(len(b)) > 1<<32-1 || len(t.ends) >= refMask {
		return 0, false
	}
	t.text = append(t.text, b...)
	t.ends = append(t.ends, uint32(len(t.text)))
	t.last = t.add(hash)
	return t.last, true
}

func (t *texts) string(id uint32) string { return strings.ToValidUTF8(string(t.bytes(id)), "\uFFFD") }

type frameKey struct {
	name, file uint32
	line       int32
}

// frames are the frames of a snapshot, each kept once.
type frames struct {
	index
	keys   []frameKey // by identifier - 1
	recent [1024]uint32
}

func (f *frames) intern(k frameKey) uint32 {
	mixed := (uint64(k.name)*0x9e3779b97f4a7c15 ^ uint64(k.file)) * 0xbf58476d1ce4e5b9
	mixed = (mixed ^ mixed>>29 ^ uint64(uint32(k.line))) * 0x94d049bb133111eb
	hash := uint32(mixed >> 32)
	recent := &f.recent[hash%uint32(len(f.recent))]
	if id := *recent; id != 0 && f.keys[id-1] == k {
		return id
	}
	mask := uint32(len(f.slots) - 1)
	for i := hash & mask; f.slots[i] != 0; i = (i + 1) & mask {
		if id := f.slots[i]; f.hashes[id-1] == hash && f.keys[id-1] == k {
			*recent = id
			return id
		}
	}
	f.keys = append(f.keys, k)
	*recent = f.add(hash)
	return *recent
}
