// Package snapshot reads what torch.cuda.memory._dump_snapshot writes, a pickle of the CUDA caching allocator's segments, blocks
// and allocation history, and says what is in it.
//
// It decodes plain values only: a pickle that names a class, calls something or uses an opcode that snapshots do not need is
// refused, as is one that goes over a limit. Nothing is ever allocated by a length that the input claims.
package snapshot

// Snapshot is one snapshot of the allocators of one process, all its devices.
type Snapshot struct {
	Segments    []Segment // in the order of the snapshot
	Traces      [][]Entry // by device, oldest first; empty where history was off
	Frames      []Frame   // interned; index 0 is unused
	Stacks      []Stack   // interned; Stacks[0] is the empty stack
	Settings    Settings
	Annotations int      // how many external annotations there were
	Protocol    int      // of the pickle
	Bytes       int64    // of the pickle, uncompressed
	Unknown     []string // sorted names of top-level keys, actions and states that this version does not know, at most maxUnknown
	Legacy      bool     // blocks carried `history` instead of frames
}

// Frame is one line of a program.
type Frame struct {
	Name, File string
	Line       int32
}

// Stack is a list of indexes into Snapshot.Frames, innermost first as PyTorch writes them.
type Stack []uint32

// Segment is one piece of memory that the allocator got from the driver. Sizes are bytes, as the allocator stated them.
type Segment struct {
	Device     int32
	Stream     int64
	Pool       [2]uint64 // (0, 0) is the default pool, any other private to CUDA graphs or a MemPool
	Large      bool      // of the pool of requests of 1 MiB and more
	Expandable bool
	Address    uint64
	Total      uint64
	Allocated  uint64
	Active     uint64
	Requested  uint64
	Stack      uint32  // index into Snapshot.Stacks
	Blocks     []Block // in address order; the blocks of several segments may share one array
}

// Block is a piece of a segment. An inactive block's Requested may be that of its last use.
type Block struct {
	Address   uint64
	Size      uint64 // bytes
	Requested uint64 // bytes; means something only where State is Live
	State     State
	Stack     uint32 // index into Snapshot.Stacks
}

// State says who holds a block.
type State uint8

// The states of a block.
const (
	UnknownState State = iota // its name is in Snapshot.Unknown
	Live                      // active_allocated: the program holds it
	Pending                   // active_pending_free, active_awaiting_free: freed, and still awaited by another stream
	Free                      // inactive
)

var stateNames = [...]string{"unknown", "active_allocated", "active_pending_free", "inactive"}

// String is the newest name that PyTorch gives the state.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return stateNames[UnknownState]
}

// Entry is one step of the allocation history.
type Entry struct {
	Action  Action
	Stack   uint32 // index into Snapshot.Stacks
	Stream  int64
	Address uint64 // of an OOM the device's free bytes, see DeviceFree
	Size    uint64 // bytes; of an Alloc what was asked for, of an OOM the rounded request
	Micros  int64  // microseconds since 1970
}

// DeviceFree is what CUDA said was free on the device when an OOM was recorded, bytes; false for any other action.
func (e Entry) DeviceFree() (uint64, bool) {
	if e.Action != OOM {
		return 0, false
	}
	return e.Address, true
}

// Action is what happened in an Entry.
type Action uint8

// The actions that PyTorch records.
const (
	UnknownAction Action = iota // its name is in Snapshot.Unknown
	Alloc
	FreeRequested
	FreeCompleted
	SegmentAlloc
	SegmentFree
	SegmentMap
	SegmentUnmap
	OOM
	SnapshotTaken // the action's name is "snapshot"
	UserDefined   // user_defined, or annotate as newer versions call it
)

var actionNames = [...]string{
	"unknown", "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom", "snapshot",
	"user_defined",
}

// String is PyTorch's name of the action.
func (a Action) String() string {
	if int(a) < len(actionNames) {
		return actionNames[a]
	}
	return actionNames[UnknownAction]
}

// Settings are the allocator's, as far as they say something about memory.
type Settings struct {
	AllocConf         string // PYTORCH_CUDA_ALLOC_CONF
	MaxSplitSize      int64  // bytes; -1 is unlimited
	Expandable        bool
	GarbageCollection float64 // threshold, 0..1
	Known             bool    // the snapshot had settings
}
