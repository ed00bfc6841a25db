package event

// A home is room for an event and its body in one piece, with as many slots as the body has optional fields of a kind.
type (
	gpuHome struct {
		event  Event
		body   Gpu
		uints  [7]uint64
		ints   [1]int64
		floats [3]float64
		bools  [2]bool
	}
	gpuProcessHome struct {
		event Event
		body  GpuProcess
		uints [1]uint64
	}
	allocatorHome struct {
		event Event
		body  Allocator
		uints [18]uint64
		bools [1]bool
	}
	engineHome struct {
		event  Event
		body   Engine
		uints  [14]uint64
		floats [12]float64
		bools  [1]bool
	}
	processHome struct {
		event  Event
		body   Process
		uints  [11]uint64
		floats [1]float64
	}
	machineHome struct {
		event Event
		body  Machine
		uints [4]uint64
	}
	sourceHome struct {
		event  Event
		body   SourceStatus
		floats [1]float64
	}
)

// homes are made some at a time where many events follow each other: one that is kept keeps its neighbours.
type homes struct {
	gpu        rooms[gpuHome]
	gpuProcess rooms[gpuProcessHome]
	allocator  rooms[allocatorHome]
	engine     rooms[engineHome]
	process    rooms[processHome]
	machine    rooms[machineHome]
	source     rooms[sourceHome]
}

// maxRooms bounds how many are made at a time.
const maxRooms = 16

// rooms are homes that nobody lives in yet.
type rooms[T any] struct {
	free []T
	made int // the last time
}

// home returns the next one. The more events were read, the more will follow.
func home[T any](d *decoder, r *rooms[T]) *T {
	if d.words == nil { // none
		return new(T)
	}
	if len(r.free) == 0 {
		r.made = min(max(1, 2*r.made), maxRooms)
		r.free = make([]T, r.made)
	}
	next := &r.free[0]
	r.free = r.free[1:]
	return next
}

func (d *decoder) gpu(at int) int {
	home := home(d, &d.homes.gpu)
	d.draft.event, home.event.Gpu = &home.event, &home.body
	d.slots = slots{uints: home.uints[:], ints: home.ints[:], floats: home.floats[:], bools: home.bools[:]}
	return object(d, at, &home.body, gpuMembers, &d.orders.gpu)
}

func (d *decoder) gpuProcess(at int) int {
	home := home(d, &d.homes.gpuProcess)
	d.draft.event, home.event.GpuProcess = &home.event, &home.body
	d.slots = slots{uints: home.uints[:]}
	return object(d, at, &home.body, gpuProcessMembers, &d.orders.gpuProcess)
}

func (d *decoder) allocator(at int) int {
	home := home(d, &d.homes.allocator)
	d.draft.event, home.event.Allocator = &home.event, &home.body
	d.slots = slots{uints: home.uints[:], bools: home.bools[:]}
	return object(d, at, &home.body, allocatorMembers, &d.orders.allocator)
}

func (d *decoder) engine(at int) int {
	home := home(d, &d.homes.engine)
	d.draft.event, home.event.Engine = &home.event, &home.body
	d.slots = slots{uints: home.uints[:], floats: home.floats[:], bools: home.bools[:]}
	return object(d, at, &home.body, engineMembers, &d.orders.engine)
}

func (d *decoder) process(at int) int {
	home := home(d, &d.homes.process)
	d.draft.event, home.event.Process = &home.event, &home.body
	d.slots = slots{uints: home.uints[:], floats: home.floats[:]}
	return object(d, at, &home.body, processMembers, &d.orders.process)
}

func (d *decoder) machine(at int) int {
	home := home(d, &d.homes.machine)
	d.draft.event, home.event.Machine = &home.event, &home.body
	d.slots = slots{uints: home.uints[:]}
	return object(d, at, &home.body, machineMembers, &d.orders.machine)
}

func (d *decoder) source(at int) int {
	home := home(d, &d.homes.source)
	d.draft.event, home.event.Source = &home.event, &home.body
	d.slots = slots{floats: home.floats[:]}
	return object(d, at, &home.body, sourceStatusMembers, &d.orders.source)
}
