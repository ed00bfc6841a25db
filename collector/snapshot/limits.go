package snapshot

// Limits bound what Read takes in. A field that is zero has its default.
type Limits struct {
	Bytes  int64 // of the pickle, uncompressed
	Depth  int   // of dicts, lists and tuples that are being read at the same time, one in the other
	Memo   int   // objects that the pickle may refer back to
	String int   // bytes of one string
	Items  int64 // of all dicts and lists together
}

// DefaultLimits hold for snapshots of up to 2 GiB, far more than PyTorch's ring of a million entries with full stacks makes.
func DefaultLimits() Limits {
	return Limits{Bytes: 2 << 30, Depth: 64, Memo: refMask, String: 1 << 20, Items: 1 << 30}
}

const (
	maxName        = 4096 // bytes kept of one string: names of C++ templates are longer than anybody reads
	maxUnknown     = 64   // names in Snapshot.Unknown
	maxUnknownName = 64   // bytes of one of them
	maxDevices     = 1024 // traces, that is
	maxTuples      = 1 << 16
	maxStacks      = 1 << 31 // bytes, four for each frame of each different stack
	firstStack     = 4096    // values that may wait on the stack of a pickle of any size
	segmentBytes   = 64      // of a pickle for each segment above firstStack; a real one takes more than a hundred
	stackFactor    = 8       // and one more for so many bytes: the least that an entry of a list takes is four times that
)

func (l Limits) orDefault() Limits {
	d := DefaultLimits()
	if l.Bytes <= 0 {
		l.Bytes = d.Bytes
	}
	if l.Depth <= 0 {
		l.Depth = d.Depth
	}
	if l.Memo <= 0 || l.Memo > refMask {
		l.Memo = d.Memo
	}
	if l.String <= 0 {
		l.String = d.String
	}
	if l.Items <= 0 || l.Items > 1<<31 { // positions in a table have 32 bits
		l.Items = d.Items
	}
	return l
}
