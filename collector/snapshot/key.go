package snapshot

// The strings that mean something in a snapshot have fixed identifiers, the keys of dicts the first ones, so that a set of keys is a
// bit mask.
const (
	_ = iota
	keyAction
	keyAddr
	keyDeviceFree
	keySize
	keyStream
	keyTimeUs
	keyFrames
	keyCompileContext
	keyUserMetadata
	keyPoolID
	keyAddress
	keyRequestedSize
	keyState
	keyHistory
	keyDevice
	keyTotalSize
	keyAllocatedSize
	keyActiveSize
	keySegmentType
	keySegmentPoolID
	keyIsExpandable
	keyBlocks
	keyName
	keyFilename
	keyLine
	keyRealSize
	keySegments
	keyDeviceTraces
	keyAllocatorSettings
	keyExternalAnnotations
	keyHostSegments
	keyHostTraces
	keyAllocConf
	keyMaxSplitSize
	keyGarbageCollection
	keyExpandableSegments
	keys // one more than the last
)

const (
	wordLarge = keys + iota
	wordAlloc
	wordFreeRequested
	wordFreeCompleted
	wordSegmentAlloc
	wordSegmentFree
	wordSegmentMap
	wordSegmentUnmap
	wordOOM
	wordSnapshot
	wordUserDefined
	wordAnnotate
	wordActive
	wordPending
	wordAwaiting
	wordInactive
	words // one more than the last
)

// vocabulary has the strings at their identifiers.
func vocabulary() [words]string {
	return [words]string{
		keyAction: "action", keyAddr: "addr", keyDeviceFree: "device_free", keySize: "size", keyStream: "stream", keyTimeUs: "time_us",
		keyFrames: "frames", keyCompileContext: "compile_context", keyUserMetadata: "user_metadata", keyPoolID: "pool_id",
		keyAddress: "address", keyRequestedSize: "requested_size", keyState: "state", keyHistory: "history",
		keyDevice: "device", keyTotalSize: "total_size", keyAllocatedSize: "allocated_size", keyActiveSize: "active_size",
		keySegmentType: "segment_type", keySegmentPoolID: "segment_pool_id", keyIsExpandable: "is_expandable", keyBlocks: "blocks",
		keyName: "name", keyFilename: "filename", keyLine: "line", keyRealSize: "real_size",
		keySegments: "segments", keyDeviceTraces: "device_traces", keyAllocatorSettings: "allocator_settings",
		keyExternalAnnotations: "external_annotations", keyHostSegments: "host_segments", keyHostTraces: "host_traces",
		keyAllocConf: "PYTORCH_CUDA_ALLOC_CONF", keyMaxSplitSize: "max_split_size", keyGarbageCollection: "garbage_collection_threshold",
		keyExpandableSegments: "expandable_segments",
		wordLarge:             "large",
		wordAlloc:             "alloc", wordFreeRequested: "free_requested", wordFreeCompleted: "free_completed", wordSegmentAlloc: "segment_alloc",
		wordSegmentFree: "segment_free", wordSegmentMap: "segment_map", wordSegmentUnmap: "segment_unmap", wordOOM: "oom", wordSnapshot: "snapshot",
		wordUserDefined: "user_defined", wordAnnotate: "annotate",
		wordActive: "active_allocated", wordPending: "active_pending_free", wordAwaiting: "active_awaiting_free", wordInactive: "inactive",
	}
}

// actionOf is the action that a string names.
func actionOf(id uint64) Action {
	switch {
	case id == wordAnnotate:
		return UserDefined
	case id >= wordAlloc && id <= wordUserDefined:
		return Alloc + Action(id-wordAlloc)
	}
	return UnknownAction
}

// stateOf is the state that a string names.
func stateOf(id uint64) State {
	switch id {
	case wordActive:
		return Live
	case wordPending, wordAwaiting:
		return Pending
	case wordInactive:
		return Free
	}
	return UnknownState
}
