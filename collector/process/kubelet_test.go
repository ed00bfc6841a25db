package process

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"lowtide/collector/status"
	"lowtide/event"
)

// podServer is a kubelet as far as podresources goes, behind a real gRPC server.
type podServer struct {
	podresources.UnimplementedPodResourcesListerServer
	pods  []*podresources.PodResources
	fails error
	hangs bool
	asked int
}

func (p *podServer) List(ctx context.Context, _ *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	p.asked++
	if p.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &podresources.ListPodResourcesResponse{PodResources: p.pods}, p.fails
}

func serve(t *testing.T, socket string, p *podServer) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, p)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func pod(namespace, name, container string, devices ...string) *podresources.PodResources {
	return &podresources.PodResources{Namespace: namespace, Name: name, Containers: []*podresources.ContainerResources{{
		Name: container, Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: devices, Topology: &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: 1}}}}},
		CpuIds: []int64{1, 2},
	}}}
}

func TestPodNamesFromTheKubelet(t *testing.T) {
	f := newTree(t)
	o := f.options()
	server := &podServer{pods: []*podresources.PodResources{
		pod("prod", "chat-5d59d67564-x7k2p", "engine", "GPU-a", "GPU-b"), pod("prod", "embed-0", "embed", "GPU-c"), {Name: "idle", Namespace: "prod"},
	}}
	serve(t, o.PodResources, server)
	s := open(t, o)
	if w := workers(collectAt(t, s, tick))[101]; w.Unit != "port-8000" || w.Pod != testPod || server.asked != 0 {
		t.Errorf("without a GPU there is nothing to ask for: %v, asked %d times", w, server.asked)
	}
	holds(s, tick, "GPU-a", 101)
	if w := workers(collectAt(t, s, tick.Add(5*time.Second)))[101]; w.Unit != "port-8000" || server.asked != 0 {
		t.Errorf("asked after 5 s: %v, %d times", w, server.asked)
	}
	found := workers(collectAt(t, s, tick.Add(10*time.Second)))
	for _, pid := range []int64{100, 101} {
		if w := found[pid]; w.Unit != "chat/engine" || w.Pod != "prod/chat-5d59d67564-x7k2p" || w.ContainerId != testContainer {
			t.Errorf("%d: %v", pid, w)
		}
	}
	for i := range 5 {
		holds(s, tick.Add(time.Duration(i)*10*time.Second), "GPU-a", 101)
		collectAt(t, s, tick.Add(time.Duration(20+10*i)*time.Second))
	}
	if server.asked != 1 {
		t.Errorf("asked %d times, want once: all is known", server.asked)
	}
}

func TestJoinByDevice(t *testing.T) {
	gpus := map[int64]string{0: "GPU-a", 1: "GPU-b"}
	for name, c := range map[string]struct {
		pods []*podresources.PodResources
		held []string
		want string
	}{
		"by uuid":                       {[]*podresources.PodResources{pod("n", "p", "c", "GPU-a")}, []string{"GPU-a"}, "n/p/c"},
		"a MIG device":                  {[]*podresources.PodResources{pod("n", "p", "c", "MIG-1"), pod("n", "q", "c", "MIG-2")}, []string{"MIG-2"}, "n/q/c"},
		"by index":                      {[]*podresources.PodResources{pod("n", "p", "c", "nvidia1")}, []string{"GPU-b"}, "n/p/c"},
		"time slices of one pod":        {[]*podresources.PodResources{pod("n", "p", "c", "GPU-a::0", "GPU-a::3")}, []string{"GPU-a"}, "n/p/c"},
		"time slices of two pods":       {[]*podresources.PodResources{pod("n", "p", "c", "GPU-a::0"), pod("n", "q", "c", "GPU-a::1")}, []string{"GPU-a"}, ""},
		"a shared GPU by index":         {[]*podresources.PodResources{pod("n", "p", "c", "nvidia0/vgpu0"), pod("n", "q", "c", "nvidia0/vgpu1")}, []string{"GPU-a"}, ""},
		"a part of a GPU":               {[]*podresources.PodResources{pod("n", "p", "c", "nvidia0/gi0")}, []string{"GPU-a"}, ""},
		"two containers of a pod":       {[]*podresources.PodResources{pod("n", "p", "c", "GPU-a"), pod("n", "p", "d", "GPU-a")}, []string{"GPU-a"}, "n/p/"},
		"GPUs of two pods":              {[]*podresources.PodResources{pod("n", "p", "c", "GPU-a"), pod("n", "q", "c", "GPU-b")}, []string{"GPU-a", "GPU-b"}, ""},
		"the same name elsewhere":       {[]*podresources.PodResources{pod("n", "p", "c", "GPU-a"), pod("m", "p", "c", "GPU-b")}, []string{"GPU-a", "GPU-b"}, ""},
		"nobody":                        {nil, []string{"GPU-a"}, ""},
		"an index that nobody has seen": {[]*podresources.PodResources{pod("n", "p", "c", "nvidia7")}, []string{"GPU-a"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			serve(t, socket, &podServer{pods: c.pods})
			k := newKubelet(socket)
			defer k.Close()
			assigned, err := k.list(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if name, ok := join(holders(assigned, gpus), c.held); ok {
				got = fmt.Sprintf("%s/%s/%s", name.namespace, name.name, name.container)
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// Whatever is wrong with the kubelet is said, and takes nothing else along.
func TestKubeletThatFails(t *testing.T) {
	for name, c := range map[string]struct {
		server *podServer
		want   string
	}{
		"denied":      {&podServer{fails: grpcstatus.Error(codes.PermissionDenied, "no")}, status.Denied},
		"too old":     {&podServer{fails: grpcstatus.Error(codes.Unimplemented, "no")}, status.Unsupported},
		"hangs":       {&podServer{hangs: true}, status.Timeout},
		"not there":   {nil, status.OK},
		"no listener": {nil, status.Lost},
	} {
		t.Run(name, func(t *testing.T) {
			f := newTree(t)
			o := f.options()
			switch {
			case c.server != nil:
				serve(t, o.PodResources, c.server)
			case name == "no listener": // as a dead kubelet leaves it
				l, err := net.ListenUnix("unix", &net.UnixAddr{Name: o.PodResources})
				if err != nil {
					t.Fatal(err)
				}
				l.SetUnlinkOnClose(false)
				l.Close()
			}
			s := open(t, o)
			holds(s, tick, "GPU-a", 101)
			events, err := s.Collect(t.Context(), tick)
			if status.Of(err) != c.want || len(workers(events)) != 3 {
				t.Errorf("%v, %d processes", err, len(workers(events)))
			}
			// Until it is asked again its trouble lasts.
			if _, err := s.Collect(t.Context(), tick.Add(5*time.Second)); status.Of(err) != c.want {
				t.Errorf("5 s later: %v", err)
			}
		})
	}
}

func TestKubeletThatMayNotBeAsked(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("SKIPPED: root may open every socket; run as another user to test what a refusal gives")
	}
	f := newTree(t)
	o := f.options()
	serve(t, o.PodResources, &podServer{})
	if err := os.Chmod(o.PodResources, 0); err != nil {
		t.Fatal(err)
	}
	s := open(t, o)
	holds(s, tick, "GPU-a", 101)
	if _, err := s.Collect(t.Context(), tick); status.Of(err) != status.Denied {
		t.Errorf("%v", err)
	}
}

// A GPU's index, by which some kubelets name devices, comes from its own events.
func TestIndexOfAGPU(t *testing.T) {
	s := open(t, newTree(t).options())
	complete(s, &event.Event{Gpu: &event.Gpu{Uuid: "GPU-a", Index: event.Ptr(int64(2))}})
	complete(s, &event.Event{Gpu: &event.Gpu{Uuid: "MIG-a", Index: event.Ptr(int64(2)), Mig: "1g.5gb"}})
	if _, gpus := s.roster.unnamed(); gpus[2] != "GPU-a" {
		t.Errorf("gpu 2 is %q", gpus[2])
	}
}
