package event

import "unicode/utf8"

// Each of these appends the fields that a body has, by number, or returns nil where one of its texts is not UTF-8.

func appendGpu(out []byte, g *Gpu) []byte {
	if !utf8.ValidString(g.Uuid) || !utf8.ValidString(g.Name) || !utf8.ValidString(g.Mig) {
		return nil
	}
	out = appendText(out, 1<<3|wireBytes, g.Uuid)
	out = appendInt(out, 2<<3|wireVarint, g.Index)
	out = appendText(out, 3<<3|wireBytes, g.Name)
	out = appendUint(out, 4<<3|wireVarint, g.TotalBytes)
	out = appendUint(out, 5<<3|wireVarint, g.UsedBytes)
	out = appendUint(out, 6<<3|wireVarint, g.FreeBytes)
	out = appendUint(out, 7<<3|wireVarint, g.DriverReservedBytes)
	out = appendBool(out, 8<<3|wireVarint, g.ProcessesComplete)
	out = appendFloat(out, 9<<3|wireFixed64, g.PowerWatts)
	out = appendFloat(out, 10<<3|wireFixed64, g.TemperatureCelsius)
	out = appendFloat(out, 11<<3|wireFixed64, g.Utilization)
	out = appendUint(out, 12<<3|wireVarint, g.EccCorrectedTotal)
	out = appendUint(out, 13<<3|wireVarint, g.EccUncorrectedTotal)
	out = appendUint(out, 14<<3|wireVarint, g.RemappedRows)
	out = appendBool(out, 15<<3|wireVarint, g.RemapPending)
	return appendText(out, 16<<3|wireBytes, g.Mig)
}

func appendGpuProcess(out []byte, p *GpuProcess) []byte {
	if !utf8.ValidString(p.GpuUuid) {
		return nil
	}
	out = appendText(out, 1<<3|wireBytes, p.GpuUuid)
	return appendUint(out, 2<<3|wireVarint, p.UsedBytes)
}

func appendAllocator(out []byte, a *Allocator) []byte {
	if !utf8.ValidString(a.GpuUuid) || !utf8.ValidString(a.Backend) {
		return nil
	}
	out = appendText(out, 1<<3|wireBytes, a.GpuUuid)
	out = appendText(out, 2<<3|wireBytes, a.Backend)
	out = appendBool(out, 3<<3|wireVarint, a.ExpandableSegments)
	out = appendUint(out, 4<<3|wireVarint, a.AllocatedBytes)
	out = appendUint(out, 5<<3|wireVarint, a.ReservedBytes)
	out = appendUint(out, 6<<3|wireVarint, a.ActiveBytes)
	out = appendUint(out, 7<<3|wireVarint, a.RequestedBytes)
	out = appendUint(out, 8<<3|wireVarint, a.AllocatedPeakBytes)
	out = appendUint(out, 9<<3|wireVarint, a.ReservedPeakBytes)
	out = appendUint(out, 10<<3|wireVarint, a.LimitBytes)
	out = appendUint(out, 11<<3|wireVarint, a.InactiveSplitBytes)
	out = appendUint(out, 12<<3|wireVarint, a.PrivatePoolBytes)
	out = appendUint(out, 13<<3|wireVarint, a.GraphPools)
	out = appendUint(out, 14<<3|wireVarint, a.AllocRetriesTotal)
	out = appendUint(out, 15<<3|wireVarint, a.OomsTotal)
	out = appendUint(out, 16<<3|wireVarint, a.DeviceAllocsTotal)
	out = appendUint(out, 17<<3|wireVarint, a.DeviceFreesTotal)
	out = appendUint(out, 18<<3|wireVarint, a.Segments)
	out = appendUint(out, 19<<3|wireVarint, a.PinnedAllocatedBytes)
	out = appendUint(out, 20<<3|wireVarint, a.PinnedActiveBytes)
	return appendUint(out, 21<<3|wireVarint, a.CompilesTotal)
}

func appendEngine(out []byte, e *Engine) []byte {
	out = appendFloat(out, 1<<3|wireFixed64, e.KvUsage)
	out = appendFloat(out, 2<<3|wireFixed64, e.KvEvictable)
	out = appendUint(out, 3<<3|wireVarint, e.KvBlocksTotal)
	out = appendUint(out, 4<<3|wireVarint, e.KvTokensTotal)
	out = appendUint(out, 5<<3|wireVarint, e.Running)
	out = appendUint(out, 6<<3|wireVarint, e.Waiting)
	out = appendUint(out, 7<<3|wireVarint, e.PreemptionsTotal)
	out = appendUint(out, 8<<3|wireVarint, e.EvictedTokensTotal)
	out = appendUint(out, 9<<3|wireVarint, e.FinishedTotal)
	out = appendUint(out, 10<<3|wireVarint, e.AbortedTotal)
	out = appendUint(out, 11<<3|wireVarint, e.ErrorsTotal)
	out = appendUint(out, 12<<3|wireVarint, e.PromptTokensTotal)
	out = appendUint(out, 13<<3|wireVarint, e.GenerationTokensTotal)
	out = appendFloat(out, 14<<3|wireFixed64, e.TtftP50Seconds)
	out = appendFloat(out, 15<<3|wireFixed64, e.TtftP95Seconds)
	out = appendFloat(out, 16<<3|wireFixed64, e.TtftP99Seconds)
	out = appendFloat(out, 17<<3|wireFixed64, e.ItlP50Seconds)
	out = appendFloat(out, 18<<3|wireFixed64, e.ItlP95Seconds)
	out = appendFloat(out, 19<<3|wireFixed64, e.ItlP99Seconds)
	out = appendFloat(out, 20<<3|wireFixed64, e.E2EP95Seconds)
	out = appendUint(out, 21<<3|wireVarint, e.SloOkTotal)
	out = appendUint(out, 22<<3|wireVarint, e.SloTotal)
	out = appendFloat(out, 23<<3|wireFixed64, e.PromptTokensP95)
	out = appendFloat(out, 24<<3|wireFixed64, e.OutputTokensP95)
	out = appendBool(out, 25<<3|wireVarint, e.Sleeping)
	out = appendUint(out, 26<<3|wireVarint, e.LoadedAdapters)
	return appendFloat(out, 27<<3|wireFixed64, e.PrefixCacheHitRatio)
}

func appendProcess(out []byte, p *Process) []byte {
	out = appendUint(out, 1<<3|wireVarint, p.RssBytes)
	out = appendUint(out, 2<<3|wireVarint, p.AnonBytes)
	out = appendUint(out, 3<<3|wireVarint, p.SwapBytes)
	out = appendUint(out, 4<<3|wireVarint, p.ShmemBytes)
	out = appendUint(out, 5<<3|wireVarint, p.PinnedKernelBytes)
	out = appendUint(out, 6<<3|wireVarint, p.Fds)
	out = appendUint(out, 7<<3|wireVarint, p.FdsLimit)
	out = appendUint(out, 8<<3|wireVarint, p.SocketsCloseWait)
	out = appendUint(out, 9<<3|wireVarint, p.Threads)
	out = appendFloat(out, 10<<3|wireFixed64, p.CpuSecondsTotal)
	out = appendUint(out, 11<<3|wireVarint, p.CgroupBytes)
	return appendUint(out, 12<<3|wireVarint, p.CgroupLimitBytes)
}

func appendMachine(out []byte, m *Machine) []byte {
	if !utf8.ValidString(m.DriverVersion) || !utf8.ValidString(m.KernelVersion) {
		return nil
	}
	out = appendUint(out, 1<<3|wireVarint, m.MemoryTotalBytes)
	out = appendUint(out, 2<<3|wireVarint, m.MemoryAvailableBytes)
	out = appendUint(out, 3<<3|wireVarint, m.Fds)
	out = appendUint(out, 4<<3|wireVarint, m.FdsLimit)
	out = appendText(out, 5<<3|wireBytes, m.DriverVersion)
	return appendText(out, 6<<3|wireBytes, m.KernelVersion)
}
