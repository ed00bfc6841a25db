package sink

import (
	"cmp"
	"slices"
	"strings"
	"unsafe"

	"lowtide/event"
)

// workerRows, gpuRows and hostRows put the rows in the order of the tables' keys, which spares ClickHouse the sorting, and make
// the columns.
func (j *joiner) workerRows() Rows {
	rank := ranked(len(j.names), func(a, b int) int {
		one, two := &j.names[a], &j.names[b]
		return cmp.Or(byHost(one.host, two.host), strings.Compare(one.key, two.key), cmp.Compare(a, b))
	})
	j.rows = grouped(j.rows, len(rank), func(r *workerRow) int { return rank[r.of] }, func(a, b workerRow) int {
		return cmp.Or(strings.Compare(a.card, b.card), cmp.Compare(a.time, b.time))
	})
	n := len(j.rows)
	out := Rows{Table: TableWorkers, Count: n, Columns: make([]Column, 0, len(hostFields)+len(workerFields)+64)}
	out.addHosts(n, func(row int) (int64, *event.Host) { return j.rows[row].time, j.rows[row].host })
	from := len(out.Columns)
	for _, f := range append(slices.Clone(workerFields), field{name: "gpu_uuid", kind: kindName}) {
		out.Columns = append(out.Columns, newColumn(f, n))
	}
	columns := out.Columns[from:]
	for row := range j.rows {
		r := &j.rows[row]
		fillWorkerColumns(columns, row, r, j.names[r.of].key)
	}
	bodies := make([]unsafe.Pointer, n)
	add := func(fields []bodyField, of func(*workerRow) unsafe.Pointer) {
		for row := range j.rows {
			bodies[row] = of(&j.rows[row])
		}
		out.addBodies(fields, bodies)
	}
	add(gpuProcessFields, func(r *workerRow) unsafe.Pointer { return unsafe.Pointer(r.device) })
	add(allocatorFields, func(r *workerRow) unsafe.Pointer { return unsafe.Pointer(r.allocator) })
	add(engineFields, func(r *workerRow) unsafe.Pointer { return unsafe.Pointer(r.engine) })
	add(processFields, func(r *workerRow) unsafe.Pointer { return unsafe.Pointer(r.process) })
	from = len(out.Columns)
	for _, f := range originFields {
		out.Columns = append(out.Columns, newColumn(f, n))
	}
	origin := out.Columns[from:]
	for row := range j.rows {
		r := &j.rows[row]
		origin[1].lists[row], origin[2].bits[row] = r.worker.GetGpuUuids(), uint64(r.bodies)
		if ticks := r.worker.StartTicks; ticks != nil {
			origin[0].bits[row] = *ticks
		} else {
			origin[0].absent[row] = 1
		}
	}
	out.addNumber(j.number)
	out.Columns = append(out.Columns, j.loads())
	return out.withoutEmpty()
}

// loads is what the instance of each row has to do at its tick: the most requests, running and waiting, that any of its ranks tells of.
func (j *joiner) loads() Column {
	type tick struct {
		instance int
		time     int64
	}
	load := func(r *workerRow) (uint64, bool) {
		if r.engine == nil || r.engine.Running == nil {
			return 0, false
		}
		return *r.engine.Running + r.engine.GetWaiting(), true
	}
	shared := map[tick]uint64{} // of instances of several ranks; few are
	for i := range j.rows {
		r := &j.rows[i]
		if v, told := load(r); told && j.ranks[j.names[r.of].instance] > 1 {
			at := tick{j.names[r.of].instance, r.time}
			if most, seen := shared[at]; !seen || v > most {
				shared[at] = v
			}
		}
	}
	c := newColumn(loadField, len(j.rows))
	for i := range j.rows {
		r := &j.rows[i]
		v, told := load(r)
		if instance := j.names[r.of].instance; j.ranks[instance] > 1 {
			v, told = shared[tick{instance, r.time}]
		}
		c.bits[i], c.absent[i] = v, bit(!told)
	}
	return c
}

func fillWorkerColumns(c []Column, row int, r *workerRow, key string) {
	w := r.worker
	c[0].text[row], c[1].text[row], c[2].bits[row], c[4].text[row] = key, r.slot, uint64(w.GetPid()), w.GetRole()
	c[3].absent[row], c[5].absent[row], c[7].absent[row] = 1, 1, 1
	if start := w.GetStartTime(); start != nil && storable(start.AsTime()) {
		c[3].bits[row], c[3].absent[row] = uint64(start.AsTime().UnixNano()), 0
	}
	if w.Rank != nil {
		c[5].bits[row], c[5].absent[row] = uint64(*w.Rank), 0
	}
	if w.EngineIndex != nil {
		c[7].bits[row], c[7].absent[row] = uint64(*w.EngineIndex), 0
	}
	c[6].text[row], c[8].text[row], c[9].text[row], c[10].text[row] = w.GetEngine(), w.GetUnit(), w.GetModel(), w.GetRelease()
	c[11].text[row], c[12].text[row], c[13].text[row] = w.GetPod(), w.GetContainerId(), r.card
}

func (j *joiner) gpuRows() Rows {
	same := func(a, b int) int { // boots of a host share its cards
		return cmp.Or(byHost(j.devices[a].host, j.devices[b].host), strings.Compare(j.devices[a].uuid, j.devices[b].uuid))
	}
	order := ordered(len(j.devices), same)
	rank := make([]int, len(order))
	for i := 1; i < len(order); i++ {
		if rank[order[i]] = rank[order[i-1]]; same(order[i-1], order[i]) != 0 {
			rank[order[i]]++
		}
	}
	j.cards = grouped(j.cards, len(rank), func(r *gpuRow) int { return rank[r.device] }, func(a, b gpuRow) int {
		return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.of, b.of))
	})
	n := len(j.cards)
	out := Rows{Table: TableGpus, Count: n}
	out.addHosts(n, func(row int) (int64, *event.Host) { return j.cards[row].time, j.cards[row].host })
	card := newColumn(field{name: "uuid", kind: kindName}, n)
	bodies := make([]unsafe.Pointer, n)
	for row := range j.cards {
		card.text[row], bodies[row] = j.cards[row].card, unsafe.Pointer(j.cards[row].gpu)
	}
	out.Columns = append(out.Columns, card)
	out.addBodies(gpuFields, bodies)
	out.addNumber(j.number)
	return out.withoutEmpty()
}

func (j *joiner) hostRows() Rows {
	slices.SortFunc(j.boxes, func(a, b hostRow) int {
		return cmp.Or(byHost(a.host, b.host), cmp.Compare(a.time, b.time), cmp.Compare(a.of, b.of))
	})
	n := len(j.boxes)
	out := Rows{Table: TableHosts, Count: n}
	out.addHosts(n, func(row int) (int64, *event.Host) { return j.boxes[row].time, j.boxes[row].host })
	bodies := make([]unsafe.Pointer, n)
	for row := range j.boxes {
		bodies[row] = unsafe.Pointer(j.boxes[row].machine)
	}
	out.addBodies(machineFields, bodies)
	return out.withoutEmpty()
}

func byHost(a, b *event.Host) int {
	if a == b {
		return 0
	}
	return cmp.Or(strings.Compare(a.GetCluster(), b.GetCluster()), strings.Compare(a.GetName(), b.GetName()))
}

// ranked gives each of n things its place in the order.
func ranked(n int, compare func(a, b int) int) []int {
	rank := make([]int, n)
	for place, i := range ordered(n, compare) {
		rank[i] = place
	}
	return rank
}

func ordered(n int, compare func(a, b int) int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, compare)
	return order
}

// grouped returns rows in the order of their groups, which are numbers below groups, and within these in an order in which they nearly always came.
func grouped[R any](rows []R, groups int, group func(*R) int, compare func(a, b R) int) []R {
	ends := make([]int, groups+1)
	for i := range rows {
		ends[group(&rows[i])+1]++
	}
	for g := range groups {
		ends[g+1] += ends[g]
	}
	out := make([]R, len(rows))
	next := slices.Clone(ends)
	for i := range rows {
		g := group(&rows[i])
		out[next[g]] = rows[i]
		next[g]++
	}
	for g := range groups {
		if part := out[ends[g]:ends[g+1]]; !slices.IsSortedFunc(part, compare) {
			slices.SortFunc(part, compare)
		}
	}
	return out
}

func (r *Rows) addHosts(n int, of func(row int) (int64, *event.Host)) {
	from := len(r.Columns)
	for _, f := range hostFields {
		r.Columns = append(r.Columns, newColumn(f, n))
	}
	c := r.Columns[from:]
	for row := range n {
		at, h := of(row)
		c[0].bits[row], c[1].text[row], c[2].text[row], c[3].text[row] = uint64(at), h.GetCluster(), h.GetName(), h.GetBootId()
	}
}

// addNumber writes the block's number on every row.
func (r *Rows) addNumber(number uint64) {
	c := newColumn(blockField, r.Count)
	for row := range c.bits {
		c.bits[row] = number
	}
	r.Columns = append(r.Columns, c)
}

func (r Rows) withoutEmpty() Rows {
	r.Columns = slices.DeleteFunc(r.Columns, func(c Column) bool { return c.empty() })
	return r
}
