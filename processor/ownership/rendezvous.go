package ownership

import (
	"hash/fnv"
	"strconv"
)

// owner returns who of the names should have a seat: the one with the highest score (Thaler and Ravishankar, rendezvous hashing).
// A name that comes takes only what it then has, and one that goes leaves only what it had. It returns "" for no names.
func owner(names []string, role string, seat int) string {
	key := hash(role + "." + strconv.Itoa(seat))
	best, most := "", uint64(0)
	for _, name := range names {
		if s := mix(hash(name) ^ mix(key)); best == "" || s > most || s == most && name < best {
			best, most = name, s
		}
	}
	return best
}

func hash(text string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(text))
	return h.Sum64()
}

// mix is the output function of SplitMix64: FNV alone changes too little in its upper bits for names that differ in their last letter.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
