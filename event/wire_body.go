package event

import "math"

// wireRooms are the homes of the bodies of one message, which keeps them together: what is kept of it keeps its neighbours of a kind.
type wireRooms struct {
	gpus         []gpuHome
	gpuProcesses []gpuProcessHome
	allocators   []allocatorHome
	engines      []engineHome
	processes    []processHome
	machines     []machineHome
}

// room returns the next of the homes of a kind. They are made for all events of that kind in the message, of which so many are left, but not
// too many at a time: large pieces of memory are dear.
func room[T any](rooms *[]T, left *int) *T {
	if len(*rooms) == 0 {
		*rooms = make([]T, min(*left, maxRooms))
	}
	next := &(*rooms)[0]
	*rooms = (*rooms)[1:]
	*left--
	return next
}

// Each of these reads the body of its name, which stands at data[at:end]; it returns nil where it is not in the plain form, or empty. A
// field that comes twice counts as the last one says, as everywhere in protobuf; what this version does not know is left to protobuf. A
// number of an optional field has its slot in the body's home.

func (r *BatchReader) gpu(data []byte, at, end int) *Event {
	h := room(&r.gpus, &r.counts[0])
	b := &h.body
	for at < end {
		tag, value, next := scalar(data, at, end)
		ok := true
		switch tag {
		case 1<<3 | wireBytes:
			ok = r.known.text(&b.Uuid, ofGpu, data[next-int(value):next])
		case 2<<3 | wireVarint:
			h.ints[0], b.Index = int64(value), &h.ints[0]
		case 3<<3 | wireBytes:
			ok = r.known.text(&b.Name, ofGpu, data[next-int(value):next])
		case 4<<3 | wireVarint:
			h.uints[0], b.TotalBytes = value, &h.uints[0]
		case 5<<3 | wireVarint:
			h.uints[1], b.UsedBytes = value, &h.uints[1]
		case 6<<3 | wireVarint:
			h.uints[2], b.FreeBytes = value, &h.uints[2]
		case 7<<3 | wireVarint:
			h.uints[3], b.DriverReservedBytes = value, &h.uints[3]
		case 8<<3 | wireVarint:
			h.bools[0], b.ProcessesComplete = value != 0, &h.bools[0]
		case 9<<3 | wireFixed64:
			h.floats[0], b.PowerWatts = math.Float64frombits(value), &h.floats[0]
		case 10<<3 | wireFixed64:
			h.floats[1], b.TemperatureCelsius = math.Float64frombits(value), &h.floats[1]
		case 11<<3 | wireFixed64:
			h.floats[2], b.Utilization = math.Float64frombits(value), &h.floats[2]
		case 12<<3 | wireVarint:
			h.uints[4], b.EccCorrectedTotal = value, &h.uints[4]
		case 13<<3 | wireVarint:
			h.uints[5], b.EccUncorrectedTotal = value, &h.uints[5]
		case 14<<3 | wireVarint:
			h.uints[6], b.RemappedRows = value, &h.uints[6]
		case 15<<3 | wireVarint:
			h.bools[1], b.RemapPending = value != 0, &h.bools[1]
		case 16<<3 | wireBytes:
			ok = r.known.text(&b.Mig, ofGpu, data[next-int(value):next])
		default:
			ok = false
		}
		if !ok {
			return nil
		}
		at = next
	}
	if b.Uuid == "" {
		return nil
	}
	h.event.Gpu = b
	return &h.event
}

func (r *BatchReader) gpuProcess(data []byte, at, end int, card string) *Event {
	h := room(&r.gpuProcesses, &r.counts[eventGpuProcess-eventGpu])
	b := &h.body
	for at < end {
		tag, value, next := scalar(data, at, end)
		ok := true
		switch tag {
		case 1<<3 | wireBytes:
			if raw := data[next-int(value) : next]; card == string(raw) {
				b.GpuUuid = card
			} else {
				ok = r.known.text(&b.GpuUuid, ofGpuProcess, raw)
			}
		case 2<<3 | wireVarint:
			h.uints[0], b.UsedBytes = value, &h.uints[0]
		default:
			ok = false
		}
		if !ok {
			return nil
		}
		at = next
	}
	if b.GpuUuid == "" && b.UsedBytes == nil {
		return nil
	}
	h.event.GpuProcess = b
	return &h.event
}

func (r *BatchReader) allocator(data []byte, at, end int, card string) *Event {
	h := room(&r.allocators, &r.counts[eventAllocator-eventGpu])
	b := &h.body
	empty := true
	for at < end {
		tag, value, next := scalar(data, at, end)
		ok := true
		switch tag {
		case 1<<3 | wireBytes:
			if raw := data[next-int(value) : next]; card == string(raw) {
				b.GpuUuid = card
			} else {
				ok = r.known.text(&b.GpuUuid, ofAllocator, raw)
			}
		case 2<<3 | wireBytes:
			ok = r.known.text(&b.Backend, ofAllocator, data[next-int(value):next])
		case 3<<3 | wireVarint:
			h.bools[0], b.ExpandableSegments = value != 0, &h.bools[0]
		case 4<<3 | wireVarint:
			h.uints[0], b.AllocatedBytes = value, &h.uints[0]
		case 5<<3 | wireVarint:
			h.uints[1], b.ReservedBytes = value, &h.uints[1]
		case 6<<3 | wireVarint:
			h.uints[2], b.ActiveBytes = value, &h.uints[2]
		case 7<<3 | wireVarint:
			h.uints[3], b.RequestedBytes = value, &h.uints[3]
		case 8<<3 | wireVarint:
			h.uints[4], b.AllocatedPeakBytes = value, &h.uints[4]
		case 9<<3 | wireVarint:
			h.uints[5], b.ReservedPeakBytes = value, &h.uints[5]
		case 10<<3 | wireVarint:
			h.uints[6], b.LimitBytes = value, &h.uints[6]
		case 11<<3 | wireVarint:
			h.uints[7], b.InactiveSplitBytes = value, &h.uints[7]
		case 12<<3 | wireVarint:
			h.uints[8], b.PrivatePoolBytes = value, &h.uints[8]
		case 13<<3 | wireVarint:
			h.uints[9], b.GraphPools = value, &h.uints[9]
		case 14<<3 | wireVarint:
			h.uints[10], b.AllocRetriesTotal = value, &h.uints[10]
		case 15<<3 | wireVarint:
			h.uints[11], b.OomsTotal = value, &h.uints[11]
		case 16<<3 | wireVarint:
			h.uints[12], b.DeviceAllocsTotal = value, &h.uints[12]
		case 17<<3 | wireVarint:
			h.uints[13], b.DeviceFreesTotal = value, &h.uints[13]
		case 18<<3 | wireVarint:
			h.uints[14], b.Segments = value, &h.uints[14]
		case 19<<3 | wireVarint:
			h.uints[15], b.PinnedAllocatedBytes = value, &h.uints[15]
		case 20<<3 | wireVarint:
			h.uints[16], b.PinnedActiveBytes = value, &h.uints[16]
		case 21<<3 | wireVarint:
			h.uints[17], b.CompilesTotal = value, &h.uints[17]
		default:
			ok = false
		}
		if !ok {
			return nil
		}
		empty = empty && tag&7 == wireBytes
		at = next
	}
	if empty && b.GpuUuid == "" && b.Backend == "" {
		return nil
	}
	h.event.Allocator = b
	return &h.event
}

func (r *BatchReader) engine(data []byte, at, end int) *Event {
	h := room(&r.engines, &r.counts[eventEngine-eventGpu])
	b := &h.body
	if at == end {
		return nil
	}
	for at < end {
		tag, value, next := scalar(data, at, end)
		switch tag {
		case 1<<3 | wireFixed64:
			h.floats[0], b.KvUsage = math.Float64frombits(value), &h.floats[0]
		case 2<<3 | wireFixed64:
			h.floats[1], b.KvEvictable = math.Float64frombits(value), &h.floats[1]
		case 3<<3 | wireVarint:
			h.uints[0], b.KvBlocksTotal = value, &h.uints[0]
		case 4<<3 | wireVarint:
			h.uints[1], b.KvTokensTotal = value, &h.uints[1]
		case 5<<3 | wireVarint:
			h.uints[2], b.Running = value, &h.uints[2]
		case 6<<3 | wireVarint:
			h.uints[3], b.Waiting = value, &h.uints[3]
		case 7<<3 | wireVarint:
			h.uints[4], b.PreemptionsTotal = value, &h.uints[4]
		case 8<<3 | wireVarint:
			h.uints[5], b.EvictedTokensTotal = value, &h.uints[5]
		case 9<<3 | wireVarint:
			h.uints[6], b.FinishedTotal = value, &h.uints[6]
		case 10<<3 | wireVarint:
			h.uints[7], b.AbortedTotal = value, &h.uints[7]
		case 11<<3 | wireVarint:
			h.uints[8], b.ErrorsTotal = value, &h.uints[8]
		case 12<<3 | wireVarint:
			h.uints[9], b.PromptTokensTotal = value, &h.uints[9]
		case 13<<3 | wireVarint:
			h.uints[10], b.GenerationTokensTotal = value, &h.uints[10]
		case 14<<3 | wireFixed64:
			h.floats[2], b.TtftP50Seconds = math.Float64frombits(value), &h.floats[2]
		case 15<<3 | wireFixed64:
			h.floats[3], b.TtftP95Seconds = math.Float64frombits(value), &h.floats[3]
		case 16<<3 | wireFixed64:
			h.floats[4], b.TtftP99Seconds = math.Float64frombits(value), &h.floats[4]
		case 17<<3 | wireFixed64:
			h.floats[5], b.ItlP50Seconds = math.Float64frombits(value), &h.floats[5]
		case 18<<3 | wireFixed64:
			h.floats[6], b.ItlP95Seconds = math.Float64frombits(value), &h.floats[6]
		case 19<<3 | wireFixed64:
			h.floats[7], b.ItlP99Seconds = math.Float64frombits(value), &h.floats[7]
		case 20<<3 | wireFixed64:
			h.floats[8], b.E2EP95Seconds = math.Float64frombits(value), &h.floats[8]
		case 21<<3 | wireVarint:
			h.uints[11], b.SloOkTotal = value, &h.uints[11]
		case 22<<3 | wireVarint:
			h.uints[12], b.SloTotal = value, &h.uints[12]
		case 23<<3 | wireFixed64:
			h.floats[9], b.PromptTokensP95 = math.Float64frombits(value), &h.floats[9]
		case 24<<3 | wireFixed64:
			h.floats[10], b.OutputTokensP95 = math.Float64frombits(value), &h.floats[10]
		case 25<<3 | wireVarint:
			h.bools[0], b.Sleeping = value != 0, &h.bools[0]
		case 26<<3 | wireVarint:
			h.uints[13], b.LoadedAdapters = value, &h.uints[13]
		case 27<<3 | wireFixed64:
			h.floats[11], b.PrefixCacheHitRatio = math.Float64frombits(value), &h.floats[11]
		default:
			return nil
		}
		at = next
	}
	h.event.Engine = b
	return &h.event
}

func (r *BatchReader) process(data []byte, at, end int) *Event {
	h := room(&r.processes, &r.counts[eventProcess-eventGpu])
	b := &h.body
	if at == end {
		return nil
	}
	for at < end {
		tag, value, next := scalar(data, at, end)
		switch tag {
		case 1<<3 | wireVarint:
			h.uints[0], b.RssBytes = value, &h.uints[0]
		case 2<<3 | wireVarint:
			h.uints[1], b.AnonBytes = value, &h.uints[1]
		case 3<<3 | wireVarint:
			h.uints[2], b.SwapBytes = value, &h.uints[2]
		case 4<<3 | wireVarint:
			h.uints[3], b.ShmemBytes = value, &h.uints[3]
		case 5<<3 | wireVarint:
			h.uints[4], b.PinnedKernelBytes = value, &h.uints[4]
		case 6<<3 | wireVarint:
			h.uints[5], b.Fds = value, &h.uints[5]
		case 7<<3 | wireVarint:
			h.uints[6], b.FdsLimit = value, &h.uints[6]
		case 8<<3 | wireVarint:
			h.uints[7], b.SocketsCloseWait = value, &h.uints[7]
		case 9<<3 | wireVarint:
			h.uints[8], b.Threads = value, &h.uints[8]
		case 10<<3 | wireFixed64:
			h.floats[0], b.CpuSecondsTotal = math.Float64frombits(value), &h.floats[0]
		case 11<<3 | wireVarint:
			h.uints[9], b.CgroupBytes = value, &h.uints[9]
		case 12<<3 | wireVarint:
			h.uints[10], b.CgroupLimitBytes = value, &h.uints[10]
		default:
			return nil
		}
		at = next
	}
	h.event.Process = b
	return &h.event
}

func (r *BatchReader) machine(data []byte, at, end int) *Event {
	h := room(&r.machines, &r.counts[eventMachine-eventGpu])
	b := &h.body
	empty := true
	for at < end {
		tag, value, next := scalar(data, at, end)
		ok := true
		switch tag {
		case 1<<3 | wireVarint:
			h.uints[0], b.MemoryTotalBytes = value, &h.uints[0]
		case 2<<3 | wireVarint:
			h.uints[1], b.MemoryAvailableBytes = value, &h.uints[1]
		case 3<<3 | wireVarint:
			h.uints[2], b.Fds = value, &h.uints[2]
		case 4<<3 | wireVarint:
			h.uints[3], b.FdsLimit = value, &h.uints[3]
		case 5<<3 | wireBytes:
			ok = r.known.text(&b.DriverVersion, ofMachine, data[next-int(value):next])
		case 6<<3 | wireBytes:
			ok = r.known.text(&b.KernelVersion, ofMachine, data[next-int(value):next])
		default:
			ok = false
		}
		if !ok {
			return nil
		}
		empty = empty && tag&7 == wireBytes
		at = next
	}
	if empty && b.DriverVersion == "" && b.KernelVersion == "" {
		return nil
	}
	h.event.Machine = b
	return &h.event
}
