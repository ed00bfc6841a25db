package event

// Each of these makes room for an event and its body in one piece, with as many slots as the body has optional fields of a kind.

func (d *decoder) gpu(at int) int {
	home := new(struct {
		event  Event
		body   Gpu
		uints  [7]uint64
		ints   [1]int64
		floats [3]float64
		bools  [2]bool
	})
	d.draft.event, home.event.Gpu = &home.event, &home.body
	d.slots = slots{uints: home.uints[:], ints: home.ints[:], floats: home.floats[:], bools: home.bools[:]}
	return object(d, at, &home.body, gpuMembers, &d.orders.gpu)
}

func (d *decoder) gpuProcess(at int) int {
	home := new(struct {
		event Event
		body  GpuProcess
		uints [1]uint64
	})
	d.draft.event, home.event.GpuProcess = &home.event, &home.body
	d.slots = slots{uints: home.uints[:]}
	return object(d, at, &home.body, gpuProcessMembers, &d.orders.gpuProcess)
}

func (d *decoder) allocator(at int) int {
	home := new(struct {
		event Event
		body  Allocator
		uints [18]uint64
		bools [1]bool
	})
	d.draft.event, home.event.Allocator = &home.event, &home.body
	d.slots = slots{uints: home.uints[:], bools: home.bools[:]}
	return object(d, at, &home.body, allocatorMembers, &d.orders.allocator)
}

func (d *decoder) engine(at int) int {
	home := new(struct {
		event  Event
		body   Engine
		uints  [14]uint64
		floats [12]float64
		bools  [1]bool
	})
	d.draft.event, home.event.Engine = &home.event, &home.body
	d.slots = slots{uints: home.uints[:], floats: home.floats[:], bools: home.bools[:]}
	return object(d, at, &home.body, engineMembers, &d.orders.engine)
}

func (d *decoder) process(at int) int {
	home := new(struct {
		event  Event
		body   Process
		uints  [11]uint64
		floats [1]float64
	})
	d.draft.event, home.event.Process = &home.event, &home.body
	d.slots = slots{uints: home.uints[:], floats: home.floats[:]}
	return object(d, at, &home.body, processMembers, &d.orders.process)
}

func (d *decoder) machine(at int) int {
	home := new(struct {
		event Event
		body  Machine
		uints [4]uint64
	})
	d.draft.event, home.event.Machine = &home.event, &home.body
	d.slots = slots{uints: home.uints[:]}
	return object(d, at, &home.body, machineMembers, &d.orders.machine)
}

func (d *decoder) source(at int) int {
	home := new(struct {
		event  Event
		body   SourceStatus
		floats [1]float64
	})
	d.draft.event, home.event.Source = &home.event, &home.body
	d.slots = slots{floats: home.floats[:]}
	return object(d, at, &home.body, sourceStatusMembers, &d.orders.source)
}
