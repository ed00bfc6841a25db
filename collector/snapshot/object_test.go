package snapshot

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
)

// Objects of Python, to write snapshots by hand: dict in order, list, tuple, and Go's own for the rest.
type (
	pyDict  []any // key, value, key, value …
	pyList  []any
	pyTuple [2]any
	pyAgain struct{ of *any } // the same object as the one that was written for it before
	pyKeep  struct {
		as *any
		v  any
	}
)

// pickled is the object as CPython's pickler writes it.
func pickled(protocol int, v any) []byte {
	g := &generator{
		shape: shape{protocol: protocol}, strings: map[string]uint32{}, frames: map[[2]int]uint32{}, rand: rand.New(rand.NewPCG(1, 2)),
	}
	g.out.Write([]byte{opProto, byte(protocol)})
	g.object(v)
	g.op(opStop)
	g.flush()
	return g.out.Bytes()
}

func (g *generator) object(v any) {
	switch v := v.(type) {
	case pyDict:
		g.dict(len(v)/2, func() {
			for _, x := range v {
				g.object(x)
			}
		})
	case pyList:
		if len(v) == 0 {
			g.op(opEmptyList)
			g.memoize()
			return
		}
		g.list(len(v), func(i int) { g.object(v[i]) })
	case pyTuple:
		g.object(v[0])
		g.object(v[1])
		g.op(opTuple2)
		g.memoize()
	case pyKeep:
		*v.as = g.memo
		g.object(v.v)
	case pyAgain:
		g.get((*v.of).(uint32))
	case string:
		g.string(v)
	case int:
		g.int(int64(v))
	case uint64:
		g.put(append(binary.LittleEndian.AppendUint64([]byte{opLong1, 9}, v), 0))
	case bool:
		g.op(opNewFalse - byte(bit(v)))
	case float64:
		g.op(opBinFloat)
		g.put(binary.BigEndian.AppendUint64(nil, math.Float64bits(v)))
	case nil:
		g.op(opNone)
	default:
		panic(fmt.Sprintf("no way to pickle %T", v))
	}
}
