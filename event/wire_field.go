package event

// wired is a body whose fields the wire reader finds by their numbers in event.proto. Each method returns where the field of its kind
// stands, or nil where that number is of another kind or of no field: what this version does not know is left to protobuf.
type wired interface {
	wireText(field uint64) *string
	wireUint(field uint64) **uint64
	wireInt(field uint64) **int64
	wireFloat(field uint64) **float64
	wireBool(field uint64) **bool
}

func (g *Gpu) wireText(field uint64) *string {
	switch field {
	case 1:
		return &g.Uuid
	case 3:
		return &g.Name
	case 16:
		return &g.Mig
	}
	return nil
}

func (g *Gpu) wireUint(field uint64) **uint64 {
	switch field {
	case 4:
		return &g.TotalBytes
	case 5:
		return &g.UsedBytes
	case 6:
		return &g.FreeBytes
	case 7:
		return &g.DriverReservedBytes
	case 12:
		return &g.EccCorrectedTotal
	case 13:
		return &g.EccUncorrectedTotal
	case 14:
		return &g.RemappedRows
	}
	return nil
}

func (g *Gpu) wireInt(field uint64) **int64 {
	if field == 2 {
		return &g.Index
	}
	return nil
}

func (g *Gpu) wireFloat(field uint64) **float64 {
	switch field {
	case 9:
		return &g.PowerWatts
	case 10:
		return &g.TemperatureCelsius
	case 11:
		return &g.Utilization
	}
	return nil
}

func (g *Gpu) wireBool(field uint64) **bool {
	switch field {
	case 8:
		return &g.ProcessesComplete
	case 15:
		return &g.RemapPending
	}
	return nil
}

func (g *GpuProcess) wireText(field uint64) *string {
	if field == 1 {
		return &g.GpuUuid
	}
	return nil
}

func (g *GpuProcess) wireUint(field uint64) **uint64 {
	if field == 2 {
		return &g.UsedBytes
	}
	return nil
}

func (g *GpuProcess) wireInt(uint64) **int64 { return nil }

func (g *GpuProcess) wireFloat(uint64) **float64 { return nil }

func (g *GpuProcess) wireBool(uint64) **bool { return nil }

func (a *Allocator) wireText(field uint64) *string {
	switch field {
	case 1:
		return &a.GpuUuid
	case 2:
		return &a.Backend
	}
	return nil
}

func (a *Allocator) wireUint(field uint64) **uint64 {
	switch field {
	case 4:
		return &a.AllocatedBytes
	case 5:
		return &a.ReservedBytes
	case 6:
		return &a.ActiveBytes
	case 7:
		return &a.RequestedBytes
	case 8:
		return &a.AllocatedPeakBytes
	case 9:
		return &a.ReservedPeakBytes
	case 10:
		return &a.LimitBytes
	case 11:
		return &a.InactiveSplitBytes
	case 12:
		return &a.PrivatePoolBytes
	case 13:
		return &a.GraphPools
	case 14:
		return &a.AllocRetriesTotal
	case 15:
		return &a.OomsTotal
	case 16:
		return &a.DeviceAllocsTotal
	case 17:
		return &a.DeviceFreesTotal
	case 18:
		return &a.Segments
	case 19:
		return &a.PinnedAllocatedBytes
	case 20:
		return &a.PinnedActiveBytes
	case 21:
		return &a.CompilesTotal
	}
	return nil
}

func (a *Allocator) wireInt(uint64) **int64 { return nil }

func (a *Allocator) wireFloat(uint64) **float64 { return nil }

func (a *Allocator) wireBool(field uint64) **bool {
	if field == 3 {
		return &a.ExpandableSegments
	}
	return nil
}

func (e *Engine) wireText(uint64) *string { return nil }

func (e *Engine) wireUint(field uint64) **uint64 {
	switch field {
	case 3:
		return &e.KvBlocksTotal
	case 4:
		return &e.KvTokensTotal
	case 5:
		return &e.Running
	case 6:
		return &e.Waiting
	case 7:
		return &e.PreemptionsTotal
	case 8:
		return &e.EvictedTokensTotal
	case 9:
		return &e.FinishedTotal
	case 10:
		return &e.AbortedTotal
	case 11:
		return &e.ErrorsTotal
	case 12:
		return &e.PromptTokensTotal
	case 13:
		return &e.GenerationTokensTotal
	case 21:
		return &e.SloOkTotal
	case 22:
		return &e.SloTotal
	case 26:
		return &e.LoadedAdapters
	}
	return nil
}

func (e *Engine) wireInt(uint64) **int64 { return nil }

func (e *Engine) wireFloat(field uint64) **float64 {
	switch field {
	case 1:
		return &e.KvUsage
	case 2:
		return &e.KvEvictable
	case 14:
		return &e.TtftP50Seconds
	case 15:
		return &e.TtftP95Seconds
	case 16:
		return &e.TtftP99Seconds
	case 17:
		return &e.ItlP50Seconds
	case 18:
		return &e.ItlP95Seconds
	case 19:
		return &e.ItlP99Seconds
	case 20:
		return &e.E2EP95Seconds
	case 23:
		return &e.PromptTokensP95
	case 24:
		return &e.OutputTokensP95
	case 27:
		return &e.PrefixCacheHitRatio
	}
	return nil
}

func (e *Engine) wireBool(field uint64) **bool {
	if field == 25 {
		return &e.Sleeping
	}
	return nil
}

func (p *Process) wireText(uint64) *string { return nil }

func (p *Process) wireUint(field uint64) **uint64 {
	switch field {
	case 1:
		return &p.RssBytes
	case 2:
		return &p.AnonBytes
	case 3:
		return &p.SwapBytes
	case 4:
		return &p.ShmemBytes
	case 5:
		return &p.PinnedKernelBytes
	case 6:
		return &p.Fds
	case 7:
		return &p.FdsLimit
	case 8:
		return &p.SocketsCloseWait
	case 9:
		return &p.Threads
	case 11:
		return &p.CgroupBytes
	case 12:
		return &p.CgroupLimitBytes
	}
	return nil
}

func (p *Process) wireInt(uint64) **int64 { return nil }

func (p *Process) wireFloat(field uint64) **float64 {
	if field == 10 {
		return &p.CpuSecondsTotal
	}
	return nil
}

func (p *Process) wireBool(uint64) **bool { return nil }
