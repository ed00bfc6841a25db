package worker

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// The engine, the probe and a declaration each know a part of what a worker was started with; none takes away what another said.
func TestConfigsOfSeveralOriginsAddUp(t *testing.T) {
	host := &event.Host{Cluster: "c", Name: "h"}
	w := New("k", host, &event.Worker{Pid: 1}, time.Unix(1_790_000_000, 0))
	apply := func(c *event.Config) {
		w.Apply(&event.Event{Time: timestamppb.New(w.First), Host: host, Config: c})
	}
	apply(&event.Config{Origin: "info metric", EngineVersion: "0.30.1", BlockSize: event.Ptr(uint64(16))})
	apply(&event.Config{Origin: "probe", TorchVersion: "2.11.0"})
	apply(&event.Config{Origin: "declared", DeclaredCaches: []*event.DeclaredCache{{Name: "a", CapBytes: event.Ptr(uint64(7))}}})
	before := w.Config
	apply(&event.Config{Origin: "declared", DeclaredCaches: []*event.DeclaredCache{{Name: "a", CapBytes: event.Ptr(uint64(7))}}})
	if c := w.Config; c.EngineVersion != "0.30.1" || c.GetBlockSize() != 16 || c.TorchVersion != "2.11.0" || len(c.DeclaredCaches) != 1 {
		t.Errorf("config %v", c)
	}
	if w.Config != before {
		t.Error("the same said again counts as a change")
	}
}
