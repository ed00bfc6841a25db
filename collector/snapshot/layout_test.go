package snapshot

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func pyFrame(name string, line int) pyDict {
	return pyDict{"name", name, "filename", "/x/model.py", "line", line}
}

// The layout of PyTorch 1.13 and 2.0 (torch/csrc/cuda/Module.cpp of that time): blocks without address, requested_size and frames, what
// they were given for in history, newest first; no settings; entries that begin with their frames and have no time.
func TestReadHistory(t *testing.T) {
	var shared any
	s := mustRead(t, pickled(4, pyDict{
		"segments", pyList{
			pyDict{"device", 1, "address", 0x7f00_0000_0000, "total_size", 2097152, "allocated_size", 1536, "active_size", 2560, "stream", 0, "segment_type", "small", "blocks", pyList{
				pyDict{"size", 1536, "state", "active_allocated", "history", pyList{
					pyDict{"addr", 0x7f00_0000_0000, "real_size", 1100, "frames", pyKeep{&shared, pyList{pyFrame("forward", 42), pyFrame("serve", 7)}}, "cpp_frames", "void f()"},
					pyDict{"addr", 0x7f00_0000_0000, "real_size", 9, "frames", pyList{pyFrame("older", 1)}},
				}},
				pyDict{"size", 1024, "state", "active_pending_free", "history", pyList{pyDict{"addr", 0x7f00_0000_0600, "real_size", 1000}}},
				pyDict{"size", 2094592, "state", "inactive"},
			}},
		},
		"device_traces", pyList{pyList{}, pyList{
			pyDict{"frames", pyAgain{&shared}, "action", "alloc", "addr", 0x7f00_0000_0000, "size", 1100, "stream", 0},
			pyDict{"action", "oom", "device_free", 7340032, "size", 67108864, "stream", 0},
		}},
	}))
	want := &Snapshot{
		Segments: []Segment{{Device: 1, Address: 0x7f00_0000_0000, Total: 2097152, Allocated: 1536, Active: 2560, Requested: 1100, Blocks: []Block{
			{Address: 0x7f00_0000_0000, Size: 1536, Requested: 1100, State: Live, Stack: 1},
			{Address: 0x7f00_0000_0600, Size: 1024, Requested: 1000, State: Pending},
			{Address: 0x7f00_0000_0a00, Size: 2094592, Requested: 2094592, State: Free},
		}}},
		Traces: [][]Entry{nil, {
			{Action: Alloc, Stack: 1, Address: 0x7f00_0000_0000, Size: 1100},
			{Action: OOM, Address: 7340032, Size: 67108864},
		}},
		Frames: []Frame{{}, {"forward", "/x/model.py", 42}, {"serve", "/x/model.py", 7}, {"older", "/x/model.py", 1}},
		Stacks: []Stack{nil, {1, 2}, {3}}, Protocol: 4, Bytes: s.Bytes, Legacy: true,
	}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("got  %+v\nwant %+v", s, want)
	}
	if free, ok := s.Traces[1][1].DeviceFree(); !ok || free != 7340032 {
		t.Errorf("device free %d, %v", free, ok)
	}
	if _, ok := s.Traces[1][0].DeviceFree(); ok {
		t.Error("an alloc says what is free on the device")
	}
}

// What newer versions have more, and what nobody has yet.
func TestReadWhatIsNew(t *testing.T) {
	var frames, none any
	segment := func(stream, pool any) pyDict {
		return pyDict{"device", 0, "address", 0x7f00_0000_0000, "total_size", 3072, "allocated_size", 1024, "active_size", 2048, "requested_size", 1000,
			"stream", stream, "segment_type", "large", "segment_pool_id", pool, "is_expandable", true, "registration_counter", 1,
			"frames", pyKeep{&frames, pyList{pyFrame("graph", 9)}}, "blocks", pyList{
				pyDict{"address", 0x7f00_0000_0000, "size", 1024, "requested_size", 1000, "state", "active_allocated", "frames", pyAgain{&frames}},
				pyDict{"address", 0x7f00_0000_0400, "size", 1024, "requested_size", 1000, "state", "active_awaiting_free", "frames", pyKeep{&none, pyList{}}},
				pyDict{"address", 0x7f00_0000_0800, "size", 1024, "requested_size", 0, "state", "lent", "frames", pyAgain{&none}, "note", nil},
			}}
	}
	for protocol := 2; protocol <= 5; protocol++ {
		s := mustRead(t, pickled(protocol, pyDict{
			"segments", pyList{segment(uint64(1<<63+5), pyTuple{3, 1 << 40})},
			"device_traces", pyList{pyList{
				pyDict{"action", "annotate", "addr", 0, "size", 0, "stream", 0, "time_us", 1764470000000000, "user_metadata", pyDict{"phase", "decode"}, "pool_id", pyTuple{0, 0}},
				pyDict{"action", "segment_reserve", "addr", -1, "size", true, "stream", -2, "time_us", -3, "compile_context", "0/1", "forward_frames", pyList{"a", "b"},
					"frames", pyList{pyDict{"name", "graph", "filename", "/x/model.py", "line", 9, "fx_node_op", "call_function", "fx_original_trace", strings.Repeat("trace ", 999)}}},
			}},
			"allocator_settings", pyDict{"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "max_split_size", 536870912, "garbage_collection_threshold", 0.75,
				"expandable_segments", true, "roundup_power2_divisions", pyDict{"1", 0, "2", 0}, "graph_capture_record_stream_reuse", false},
			"external_annotations", pyList{
				pyDict{"device", 0, "time_us", 1, "stage", "START", "state", "warm", "size", "big", "name", 5, "filename", "f", "line", 1.5},
				pyDict{"action", pyList{}, "size", pyTuple{"a", nil}},
			},
			"host_segments", pyList{segment(0, pyTuple{0, 0})},
			"host_traces", pyList{pyDict{"action", "alloc", "addr", 1, "size", 1}},
			"kernels", pyDict{},
		}))
		want := &Snapshot{
			Segments: []Segment{{
				Stream: -1<<63 + 5, Pool: [2]uint64{3, 1 << 40}, Large: true, Expandable: true, Address: 0x7f00_0000_0000, Total: 3072, Allocated: 1024, Active: 2048,
				Requested: 1000, Stack: 1, Blocks: []Block{
					{Address: 0x7f00_0000_0000, Size: 1024, Requested: 1000, State: Live, Stack: 1},
					{Address: 0x7f00_0000_0400, Size: 1024, Requested: 1000, State: Pending},
					{Address: 0x7f00_0000_0800, Size: 1024, State: UnknownState},
				},
			}},
			Traces: [][]Entry{{
				{Action: UserDefined, Micros: 1764470000000000},
				{Action: UnknownAction, Address: 1<<64 - 1, Size: 1, Stream: -2, Micros: -3, Stack: 1},
			}},
			Frames: []Frame{{}, {"graph", "/x/model.py", 9}}, Stacks: []Stack{nil, {1}},
			Settings:    Settings{AllocConf: "expandable_segments:True", MaxSplitSize: 536870912, Expandable: true, GarbageCollection: 0.75, Known: true},
			Annotations: 2, Protocol: protocol, Bytes: s.Bytes, Unknown: []string{"kernels", "lent", "segment_reserve"},
		}
		if !reflect.DeepEqual(s, want) {
			t.Errorf("protocol %d\ngot  %+v\nwant %+v", protocol, s, want)
		}
	}
}

// torch.cuda.memory_snapshot() is the list alone.
func TestReadSegmentsOnly(t *testing.T) {
	s := mustRead(t, pickled(4, pyList{
		pyDict{"address", 512, "total_size", 1024, "blocks", pyList{}},
		pyDict{"address", 4096, "total_size", 2048, "blocks", pyList{pyDict{"size", 2048, "state", "inactive"}}},
	}))
	want := []Segment{{Address: 512, Total: 1024}, {Address: 4096, Total: 2048, Blocks: []Block{{Address: 4096, Size: 2048, Requested: 2048, State: Free}}}}
	if !reflect.DeepEqual(s.Segments, want) || s.Traces != nil || s.Settings.Known {
		t.Errorf("got %+v", s)
	}
}

// Annotations are counted, whatever they look like.
func TestReadCountsAnnotations(t *testing.T) {
	for name, object := range map[string]pyList{
		"frames": {pyFrame("a", 1), pyFrame("b", 2), pyFrame("c", 3)}, "entries": {pyDict{"action", "x", "size", 1}, pyDict{"action", "y", "size", 2}, pyDict{"action", "x", "size", 3}},
		"frames and others": {pyFrame("a", 1), pyFrame("b", 2), pyDict{"stage", "END"}}, "others": {pyDict{"stage", "END"}, "text", 5},
	} {
		if s := mustRead(t, pickled(4, pyDict{"segments", pyList{}, "external_annotations", object})); s.Annotations != 3 {
			t.Errorf("%s: %d annotations, want 3", name, s.Annotations)
		}
	}
}

func TestReadRefusesOtherLayouts(t *testing.T) {
	block := pyDict{"address", 0, "size", 2048, "state", "inactive"}
	var kept any
	for name, test := range map[string]struct {
		object any
		want   string
	}{
		"another object":        {pyDict{"model", pyList{1, 2}}, "is of something else"},
		"a number":              {5, "is of something else"},
		"two in each other":     {pyDict{"segments", pyList{}, "x", pyDict{"segments", pyList{}}}, "is of something else"},
		"segments of numbers":   {pyDict{"segments", pyList{1}}, "segments is not a list of segments"},
		"a segment is none":     {pyDict{"segments", pyList{pyDict{"address", 1, "total_size", -5, "blocks", pyList{}}}}, "the total_size of the segment that ends at byte"},
		"a block is none":       {pyDict{"segments", pyList{pyDict{"address", 1, "total_size", 5, "blocks", pyList{pyDict{"size", "2 GiB", "state", "inactive"}}}}}, "the size of the block that ends at byte"},
		"a block twice":         {pyDict{"segments", pyList{pyDict{"address", 1, "total_size", 5, "blocks", pyList{pyKeep{&kept, block}, pyAgain{&kept}}}}}, "the blocks of the segment that ends at byte"},
		"entries not by device": {pyDict{"segments", pyList{}, "device_traces", pyList{pyDict{"action", "alloc", "size", 1}}}, "device_traces is not a list of lists of entries"},
		"an entry is none":      {pyDict{"segments", pyList{}, "device_traces", pyList{pyList{pyDict{"action", "alloc", "size", 1.5}}}}, "the size of the entry that ends at byte"},
		"frames of strings":     {pyDict{"segments", pyList{}, "device_traces", pyList{pyList{pyDict{"action", "alloc", "size", 1, "frames", pyList{"main.py:1"}}}}}, "the frames of the entry"},
		"a line out of range":   {pyDict{"segments", pyList{}, "device_traces", pyList{pyList{pyDict{"action", "alloc", "size", 1, "frames", pyList{pyFrame("f", 1<<31)}}}}}, "the line of the frame"},
	} {
		_, err := Read(bytes.NewReader(pickled(4, test.object)), Limits{})
		if !errors.Is(err, ErrLayout) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}
