package snapshot

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
)

// shape says what a generated snapshot is like.
type shape struct {
	protocol int
	torch    bool // as PyTorch's own pickler writes: protocol 2, everything memoized when it is complete, no batches
	devices  int
	segments int  // of a device
	blocks   int  // of a segment
	entries  int  // of a device
	depth    int  // frames of a stack, 0: no frames at all
	sites    int  // different stacks
	unshared bool // a dict for each frame of each stack, as PyTorch 2.0 wrote; else frames are shared by the memo
	metadata bool // each entry has a user_metadata of its own
}

// serving is what a server under load leaves after a minute of history.
func serving(entries int) shape {
	return shape{protocol: 4, devices: 1, segments: 200, blocks: 20, entries: entries, depth: 12, sites: 300}
}

// generator writes snapshots as CPython's pickler does, opcode by opcode: a memo slot for each string, dict, list and tuple, batches
// of 1000, frames of 64 KiB.
type generator struct {
	shape
	out     bytes.Buffer
	frame   bytes.Buffer
	memo    uint32
	strings map[string]uint32
	frames  map[[2]int]uint32 // by site and depth
	lists   []uint32          // memo slots of lists of frames that are complete
	empty   uint32            // memo slot + 1 of the list without frames
	rand    *rand.Rand
}

// generate makes a snapshot; the same shape gives the same bytes.
func generate(s shape) []byte {
	g := &generator{shape: s, strings: map[string]uint32{}, frames: map[[2]int]uint32{}, rand: rand.New(rand.NewPCG(1, 2))}
	g.out.Write([]byte{opProto, byte(s.protocol)})
	g.dict(4, func() {
		g.string("segments")
		g.list(s.devices*s.segments, func(i int) { g.segment(i/s.segments, i) })
		g.string("device_traces")
		g.list(s.devices, func(device int) { g.list(s.entries, func(i int) { g.entry(device, i) }) })
		g.string("allocator_settings")
		g.settings()
		g.string("external_annotations")
		g.list(3, func(i int) {
			g.dict(4, func() {
				g.string("device")
				g.int(0)
				g.string("time_us")
				g.int(int64(1764470000000000 + i))
				g.string("name")
				g.string(fmt.Sprintf("step %d", i))
				g.string("stage")
				g.string("START")
			})
		})
	})
	g.op(opStop)
	g.flush()
	return g.out.Bytes()
}

func (g *generator) segment(device, i int) {
	address := int64(0x7f00_0000_0000) + int64(i)*(1<<30)
	size := int64(2 << 20)
	g.dict(12, func() {
		g.string("device")
		g.int(int64(device))
		g.string("address")
		g.int(address)
		g.string("total_size")
		g.int(size * int64(g.blocks))
		for _, key := range []string{"allocated_size", "active_size", "requested_size"} {
			g.string(key)
			g.int(size * int64(g.blocks/2))
		}
		g.string("stream")
		g.int(int64(i%7/6) * 94_000_000_000_000)
		g.string("segment_type")
		g.string("large")
		g.string("segment_pool_id")
		g.int(int64(i % 5 / 4))
		g.int(0)
		g.op(opTuple2)
		g.memoize()
		g.string("is_expandable")
		g.op(opNewFalse)
		g.string("frames")
		g.stack(i)
		g.string("blocks")
		g.list(g.blocks, func(j int) {
			g.dict(5, func() {
				g.string("address")
				g.int(address + int64(j)*size)
				g.string("size")
				g.int(size)
				g.string("requested_size")
				g.int(size - int64(j)*100)
				g.string("state")
				g.string([]string{"active_allocated", "inactive", "active_pending_free"}[j%5%3])
				g.string("frames")
				g.stack(i + j)
			})
		})
	})
}

func (g *generator) entry(device, i int) {
	pairs := 7
	if g.depth > 0 {
		pairs = 8
	}
	g.dict(pairs, func() {
		g.string("action")
		action := []string{"alloc", "free_requested", "free_completed"}[i%3]
		if i == g.entries-1 {
			action = "oom"
		}
		g.string(action)
		if action == "oom" {
			g.string("device_free")
		} else {
			g.string("addr")
		}
		g.int(int64(0x7f00_0000_0000) + int64(g.rand.IntN(1<<20))*512)
		g.string("size")
		g.int(int64(g.rand.IntN(1 << 27)))
		g.string("stream")
		g.int(0)
		g.string("time_us")
		g.int(int64(1764470000000000 + i*17))
		g.string("compile_context")
		g.fresh("N/A") // pybind makes a new string each time
		g.string("user_metadata")
		if g.metadata {
			g.fresh(fmt.Sprintf("request %d of device %d", i, device))
		} else {
			g.string("")
		}
		if g.depth > 0 {
			g.string("frames")
			if i%3 == 2 {
				g.get(g.lists[len(g.lists)-1]) // completed with the context of the request
			} else {
				g.stack(g.rand.IntN(g.sites))
			}
		}
	})
}

// stack writes a list of frames, each of which is one object.
func (g *generator) stack(site int) {
	if g.depth == 0 {
		if g.empty == 0 {
			g.op(opEmptyList)
			g.memoize()
			g.empty = g.memo
		} else {
			g.get(g.empty - 1)
		}
		return
	}
	site %= g.sites
	slot := g.list(g.depth, func(level int) {
		// The outer half of all stacks is the same: the serving loop.
		key := [2]int{site, level}
		if level >= g.depth/2 {
			key[0] = 0
		}
		if at, ok := g.frames[key]; ok && !g.unshared {
			g.get(at)
			return
		}
		g.frames[key] = g.dict(3, func() {
			g.string("name")
			g.string(fmt.Sprintf("function_%d", key[1]))
			g.string("filename")
			g.string(fmt.Sprintf("/srv/worker/model/layer_%d.py", key[0]%40))
			g.string("line")
			g.int(int64(1 + key[0]*7%900 + key[1]))
		})
	})
	g.lists = append(g.lists, slot)
}

func (g *generator) settings() {
	g.dict(4, func() {
		g.string("PYTORCH_CUDA_ALLOC_CONF")
		g.string("max_split_size_mb:512")
		g.string("max_split_size")
		g.int(512 << 20)
		g.string("garbage_collection_threshold")
		g.op(opBinFloat)
		g.put(binary.BigEndian.AppendUint64(nil, math.Float64bits(0.8)))
		g.string("expandable_segments")
		g.op(opNewFalse)
	})
}

func (g *generator) put(b []byte) { g.frame.Write(b) }

func (g *generator) op(b byte) { g.frame.WriteByte(b) }

// flush ends a frame, or just writes what there is where the protocol has none.
func (g *generator) flush() {
	if g.protocol >= 4 {
		g.out.WriteByte(opFrame)
		g.out.Write(binary.LittleEndian.AppendUint64(nil, uint64(g.frame.Len())))
	}
	g.out.Write(g.frame.Bytes())
	g.frame.Reset()
}

func (g *generator) memoize() uint32 {
	switch {
	case g.protocol >= 4:
		g.op(opMemoize)
	case g.memo < 256:
		g.put([]byte{opBinPut, byte(g.memo)})
	default:
		g.put(binary.LittleEndian.AppendUint32([]byte{opLongBinPut}, g.memo))
	}
	g.memo++
	return g.memo - 1
}

func (g *generator) get(slot uint32) {
	if slot < 256 {
		g.put([]byte{opBinGet, byte(slot)})
	} else {
		g.put(binary.LittleEndian.AppendUint32([]byte{opLongBinGet}, slot))
	}
}

// string writes a string that is one object all over the snapshot.
func (g *generator) string(s string) {
	if slot, ok := g.strings[s]; ok {
		g.get(slot)
		return
	}
	g.strings[s] = g.fresh(s)
}

// fresh writes a string that is a new object.
func (g *generator) fresh(s string) uint32 {
	if g.torch {
		if slot, ok := g.strings[s]; ok {
			g.get(slot)
			return slot
		}
	}
	if g.protocol >= 4 && len(s) < 256 {
		g.put([]byte{opShortBinUnicode, byte(len(s))})
	} else {
		g.put(binary.LittleEndian.AppendUint32([]byte{opBinUnicode}, uint32(len(s))))
	}
	g.put([]byte(s))
	slot := g.memoize()
	if g.torch {
		g.strings[s] = slot
	}
	return slot
}

func (g *generator) int(n int64) {
	switch {
	case n >= 0 && n < 1<<8:
		g.put([]byte{opBinInt1, byte(n)})
	case n >= 0 && n < 1<<16:
		g.put(binary.LittleEndian.AppendUint16([]byte{opBinInt2}, uint16(n)))
	case n >= math.MinInt32 && n <= math.MaxInt32:
		g.put(binary.LittleEndian.AppendUint32([]byte{opBinInt}, uint32(n)))
	default:
		b := binary.LittleEndian.AppendUint64(nil, uint64(n))
		size := 8
		if !g.torch {
			for size > 1 && (b[size-1] == 0 && b[size-2] < 0x80 || b[size-1] == 0xff && b[size-2] >= 0x80) {
				size--
			}
		}
		g.put([]byte{opLong1, byte(size)})
		g.put(b[:size])
	}
}

// dict writes a dict of so many pairs and returns its memo slot.
func (g *generator) dict(pairs int, write func()) uint32 {
	g.op(opEmptyDict)
	var slot uint32
	if !g.torch {
		slot = g.memoize()
	}
	single := pairs == 1 && !g.torch
	if !single {
		g.op(opMark)
	}
	write()
	if single {
		g.op(opSetItem)
	} else {
		g.op(opSetItems)
	}
	if g.torch {
		slot = g.memoize()
	}
	if g.frame.Len() >= 64<<10 {
		g.flush()
	}
	return slot
}

// list writes a list of n items and returns its memo slot.
func (g *generator) list(n int, write func(i int)) uint32 {
	g.op(opEmptyList)
	if g.torch {
		g.op(opMark)
		for i := range n {
			write(i)
		}
		g.op(opAppends)
		return g.memoize()
	}
	slot := g.memoize()
	if n == 1 {
		write(0)
		g.op(opAppend)
		return slot
	}
	for from := 0; from < n; from += 1000 {
		g.op(opMark)
		for i := from; i < min(from+1000, n); i++ {
			write(i)
		}
		g.op(opAppends)
	}
	return slot
}
