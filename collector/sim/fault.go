package sim

import (
	"fmt"
	"math"

	"lowtide/event"
)

// quantity writes bytes as PyTorch does.
func quantity(bytes float64) string {
	switch {
	case bytes >= gib:
		return fmt.Sprintf("%.2f GiB", bytes/gib)
	case bytes >= mib:
		return fmt.Sprintf("%.2f MiB", bytes/mib)
	}
	return fmt.Sprintf("%.2f KiB", bytes/kib)
}

// tellOOM publishes a failed allocation, in the fields and the wording of PyTorch 2.
func (r *rank) tellOOM(part float64, f *failure) {
	others := r.card.others(r) - r.card.orphan // the list has living processes
	o := &event.Oom{
		Kind: "cuda", RequestedBytes: event.Ptr(uint64(f.requested)), FreeBytes: event.Ptr(uint64(f.free)), AllocatedBytes: event.Ptr(uint64(f.allocated)),
		ReservedUnallocatedBytes: event.Ptr(uint64(f.unallocated)), PrivatePoolFreeBytes: event.Ptr(uint64(f.privateFree)), OtherProcessesBytes: event.Ptr(uint64(others)), GpuUuid: r.card.uuid,
	}
	text := fmt.Sprintf("CUDA out of memory. Tried to allocate %s. GPU 0 has a total capacity of %s of which %s is free. ", quantity(f.requested), quantity(r.card.total), quantity(f.free))
	for _, t := range r.card.tenants {
		text += fmt.Sprintf("Process %d has %s memory in use. ", t.who.Pid, quantity(t.used))
	}
	for _, other := range r.card.ranks {
		if other != r && other.alive {
			text += fmt.Sprintf("Process %d has %s memory in use. ", other.who.Pid, quantity(other.used()))
		}
	}
	text += fmt.Sprintf("Including non-PyTorch memory, this process has %s memory in use. ", quantity(r.allocator.reserved+r.outside()))
	if r.allocator.limit < r.card.total {
		o.LimitBytes = event.Ptr(uint64(r.allocator.limit))
		text += quantity(r.allocator.limit) + " allowed; "
	}
	text += fmt.Sprintf("Of the allocated memory %s is allocated by PyTorch, with %s allocated in private pools (e.g., CUDA Graphs), and %s is reserved by PyTorch but unallocated.",
		quantity(f.allocated+f.privateFree), quantity(f.privateFree), quantity(f.unallocated))
	o.Text = text
	if r.allocator.async {
		o.ReservedUnallocatedBytes, o.PrivatePoolFreeBytes, o.OtherProcessesBytes = nil, nil, nil
		o.LimitBytes = event.Ptr(uint64(r.card.total))
		o.Text = fmt.Sprintf("Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : %s\nRequested               : %s\nDevice limit            : %s\nFree (according to CUDA): %s",
			quantity(f.allocated), quantity(f.requested), quantity(r.card.total), quantity(f.free))
	}
	r.card.host.tell(part, &event.Event{Worker: r.who, Oom: o})
}

// rejectRequest is how most engines take a failed allocation: the request ends in an error.
func (i *instance) rejectRequest(r *rank, f *failure) {
	r.tellOOM(i.host.between(0.2, 0.9), f)
	i.engine.errors++
}

// die is how the others take it: the engine ends, and its supervisor starts it again.
func (i *instance) die(r *rank, f *failure) {
	r.tellOOM(0.5, f)
	i.exit(0.55, &event.Lifecycle{ExitCode: event.Ptr(int64(1)), By: "self"})
}

// xid publishes an error of the card as the kernel log has it; rank nil is one that names no process.
func (c *card) xid(part float64, code uint64, r *rank, text string) {
	x := &event.Xid{GpuUuid: c.uuid, Pci: c.pci, Code: event.Ptr(code), Source: "kmsg"}
	e := &event.Event{Xid: x}
	if r == nil {
		x.Text = fmt.Sprintf("NVRM: Xid (PCI:%s): %d, %s", c.pci, code, text)
	} else {
		x.Pid, x.ProcessName = event.Ptr(r.who.Pid), "VLLM::Worker"
		x.Text = fmt.Sprintf("NVRM: Xid (PCI:%s): %d, pid=%d, name=VLLM::Worker, %s", c.pci, code, r.who.Pid, text)
		e.Worker = r.who
	}
	c.host.tell(part, e)
}

// killed publishes what the kernel says when its OOM killer, or the cgroup's, ends the first process of an instance; the others end
// with it.
func (i *instance) killed(part float64, kind string) {
	r := i.ranks[0]
	o := &event.Oom{Kind: kind, VictimPid: event.Ptr(r.who.Pid)}
	o.Text = fmt.Sprintf("Memory cgroup out of memory: Killed process %d (python3) total-vm:%dkB, anon-rss:%dkB", r.who.Pid, int64(3*r.heap.anon/kib), int64(r.heap.anon/kib))
	if kind == "kernel" {
		o.Text = fmt.Sprintf("Out of memory: Killed process %d (python3) total-vm:%dkB, anon-rss:%dkB", r.who.Pid, int64(3*r.heap.anon/kib), int64(r.heap.anon/kib))
	} else {
		o.LimitBytes = event.Ptr(uint64(r.heap.limit))
	}
	i.host.tell(part, &event.Event{Worker: r.who, Oom: o})
	i.exit(math.Min(0.95, part+0.02), &event.Lifecycle{Signal: event.Ptr(int64(9)), By: kind})
}

// overLimit says whether the cgroup has reached its limit.
func (r *rank) overLimit() bool {
	h := &r.heap
	return h.limit > 0 && h.anon+r.allocator.pinned+r.left[inPinned]+h.shmem+h.others >= h.limit
}
