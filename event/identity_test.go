package event

import (
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestKeys(t *testing.T) {
	known := &Host{Cluster: "lab", Name: "h200-a", BootId: "boot"}
	bare := &Host{Cluster: "lab", Name: "h200-a"}
	born := &timestamppb.Timestamp{Seconds: 1793491260, Nanos: 476e6} // date -u -d @1793491260: Sun Nov 1 00:01:00 2026
	for _, test := range []struct {
		name           string
		host           *Host
		worker         *Worker
		life, instance string
		slot           string
	}{
		{"ticks", known, &Worker{Pid: 7, StartTicks: Ptr(uint64(18446744073709551615)), StartTime: born, Unit: "vllm/0", EngineIndex: Ptr(int64(2)), Rank: Ptr(int64(3))},
			"lab/h200-a/boot/7/18446744073709551615", "lab/h200-a/vllm_0/2", "lab/h200-a/vllm_0/2/3"},
		{"no boot id", bare, &Worker{Pid: 7, StartTicks: Ptr(uint64(1)), StartTime: born, GpuUuids: []string{"b", "a"}, Role: "worker"},
			"lab/h200-a/7@2026-11-01T00:01:00.476Z", "lab/h200-a/a+b/0", "lab/h200-a/a+b/0/0"},
		{"no ticks", known, &Worker{Pid: 7, StartTime: &timestamppb.Timestamp{Seconds: 1793491260}, Engine: "vllm", Model: "org/m", Role: "core"},
			"lab/h200-a/7@2026-11-01T00:01:00Z", "lab/h200-a/vllm:org_m/0", "lab/h200-a/vllm:org_m/0/core"},
		{"pid alone", known, &Worker{Pid: 7}, "lab/h200-a/7", "lab/h200-a/pid7/0", "lab/h200-a/pid7/0/0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := WorkerKey(test.host, test.worker); got != test.life {
				t.Errorf("life %q, want %q", got, test.life)
			}
			if got := InstanceKey(test.host, test.worker); got != test.instance {
				t.Errorf("instance %q, want %q", got, test.instance)
			}
			if got := SlotKey(test.host, test.worker); got != test.slot {
				t.Errorf("slot %q, want %q", got, test.slot)
			}
		})
	}
}

func BenchmarkWorkerKey(b *testing.B) {
	h := &Host{Cluster: "lab", Name: "h200-a"}
	w := &Worker{Pid: 4242, StartTime: &timestamppb.Timestamp{Seconds: 1793491260}}
	b.ReportAllocs()
	for b.Loop() {
		WorkerKey(h, w)
	}
}
