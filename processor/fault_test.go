package processor

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/rules"
)

// One worker touches an illegal address; the device of another falls off the bus. NVML names no process.
func TestDeviceErrorsFindTheirWorkers(t *testing.T) {
	pack, err := rules.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	host := &event.Host{Cluster: "c", Name: "h", BootId: "b"}
	origin := time.Unix(1_790_000_000, 0).UTC()
	worker := func(pid int64, gpu string) *event.Worker {
		return &event.Worker{Pid: pid, StartTicks: event.Ptr(uint64(pid)), Unit: "u" + gpu, Role: "worker", GpuUuids: []string{gpu}}
	}
	xid := func(code uint64, gpu string) *event.Event {
		return &event.Event{Xid: &event.Xid{Code: event.Ptr(code), GpuUuid: gpu, Source: "nvml"}}
	}
	var findings []*event.Finding
	j := NewJudge(pack, func(f *event.Finding) { findings = append(findings, f) })
	at := origin
	apply := func(w *event.Worker, e *event.Event) {
		e.Host, e.Time, e.Worker = host, timestamppb.New(at), w
		j.Apply(e)
	}
	sample := func(w *event.Worker) { apply(w, &event.Event{Process: &event.Process{Fds: event.Ptr(uint64(1))}}) }
	a, b, c1, c2 := worker(1, "GPU-a"), worker(2, "GPU-b"), worker(3, "GPU-c"), worker(4, "GPU-c")
	for _, w := range []*event.Worker{a, b, c1, c2} {
		sample(w)
	}
	at = origin.Add(5 * time.Second)
	apply(a, xid(31, "GPU-a"))
	apply(nil, xid(45, "GPU-a")) // the clean-up that follows
	apply(nil, xid(79, "GPU-b"))
	apply(nil, xid(31, "GPU-b")) // after the device had gone
	apply(nil, xid(31, "GPU-c")) // of which of the two?
	j.Flush()
	if len(findings) != 2 {
		t.Fatalf("%d findings, want those of the illegal access and of the device: %+v", len(findings), findings)
	}
	f := findings[0]
	if f.Class != "software_fault" || f.Worker.GetPid() != 1 || f.State != event.Confirmed || f.Severity != event.Ticket || len(f.Symptoms) != 1 || f.Symptoms[0].Name != "xid" {
		t.Errorf("finding %+v", f)
	}
	f = findings[1]
	if f.Class != "device_fault" || f.Subject != (event.Subject{Kind: "gpu", Key: "c/h/GPU-b"}) || f.Worker.GetPid() != 2 || f.State != event.Confirmed || f.Severity != event.Page {
		t.Errorf("finding %+v", f)
	}
}
