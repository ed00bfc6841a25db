package collector

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"lowtide/collector/allocator"
	"lowtide/collector/engine"
	"lowtide/collector/kernel"
	"lowtide/collector/nvml"
	"lowtide/collector/process"
	"lowtide/collector/status"
	"lowtide/event"
	"lowtide/processor/broker"
	store "lowtide/sink/engine"
)

func (d *DoctorCommand) path(p string) string { return filepath.Join("/", d.Root, p) }

// process checks /proc and, with what it shows, the engines.
func (d *DoctorCommand) process(ctx context.Context) (proc, open, engines Check) {
	proc = Check{Name: "process", Required: true, Missing: "host memory, handles and threads of every worker: host_memory, pinned_memory, fd_leak and thread_leak cannot be told",
		Hint: "mount /proc, and in a container use the host's pid namespace (hostPID)"}
	open = Check{Name: "open files", Missing: "handles and sockets of processes of other users", Hint: proc.Hint}
	engines = Check{Name: "engine", Missing: "queues, KV cache, tokens and latency: kv_pressure, kv_block_leak and stall cannot be told, and quiet is only inferred", Hint: proc.Hint}
	source, err := process.New(process.Options{ProcRoot: d.path("proc"), CgroupRoot: d.path("sys/fs/cgroup")})
	if err != nil {
		return fail(proc, err), fail(open, err), fail(engines, err)
	}
	defer source.Close()
	events, err := source.Collect(ctx, time.Now())
	if len(events) == 0 {
		return fail(proc, err), fail(open, err), fail(engines, err)
	}
	watched := 0
	for _, e := range events {
		if e.Process != nil {
			watched++
		}
	}
	proc = pass(proc, fmt.Sprintf("%d processes are watched", watched))
	open.Hint = "run as the workers' user, or with CAP_SYS_PTRACE"
	if err != nil {
		open = fail(open, err)
	} else {
		open = pass(open, "")
	}
	return proc, open, d.engines(ctx, engines, source.Roster())
}

// doctorPorts is no more than what the engine source tries in a tick.
const doctorPorts = 8

// engines asks the listening ports of watched processes once.
func (d *DoctorCommand) engines(ctx context.Context, c Check, roster *process.Roster) Check {
	c.Hint = "start the engine with its metrics on: SGLang --enable-metrics; trtllm-serve return_perf_metrics and enable_iter_perf_stats; llama-server --metrics; vLLM has them. " +
		"Elsewhere: lowtide collect --engine NAME=URL. A worker without metrics can call lowtide_probe.busy() and idle()"
	tables, err := engine.LoadTables()
	if err != nil {
		return fail(c, err)
	}
	source, err := engine.New(engine.Options{Tables: tables, Discover: discover(roster)})
	if err != nil {
		return fail(c, err)
	}
	ports := len(roster.Endpoints())
	seen := make(map[string]bool)
	for range ports/doctorPorts + 1 { // a tick tries only some of those that it has not tried yet
		var events []*event.Event
		events, err = source.Collect(ctx, time.Now())
		for _, e := range events {
			if e.Engine != nil {
				seen[fmt.Sprintf("%s (pid %d)", e.Worker.GetEngine(), e.Worker.GetPid())] = true
			}
		}
	}
	if len(seen) == 0 {
		return fail(c, errors.Join(fmt.Errorf("%w: no engine answers on %d listening ports of watched processes", status.ErrAbsent, ports), err))
	}
	return pass(c, strings.Join(slices.Sorted(maps.Keys(seen)), ", "))
}

func (d *DoctorCommand) cgroup() Check {
	c := Check{Name: "cgroup", Missing: "memory limits of containers; host_memory has no forecast", Hint: "mount /sys/fs/cgroup read-only"}
	for _, at := range []struct{ file, found string }{
		{"sys/fs/cgroup/cgroup.controllers", "v2"}, {"sys/fs/cgroup/memory/memory.usage_in_bytes", "v1"},
	} {
		if _, err := os.Stat(d.path(at.file)); err == nil {
			return pass(c, at.found)
		}
	}
	return fail(c, fmt.Errorf("%w: no memory controller below %s", status.ErrAbsent, d.path("sys/fs/cgroup")))
}

// nvmlPlaces are where distributions and the container runtime put the library.
var nvmlPlaces = []string{
	"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1", "usr/lib64/libnvidia-ml.so.1",
	"usr/lib/libnvidia-ml.so.1", "usr/local/nvidia/lib64/libnvidia-ml.so.1", "run/opengl-driver/lib/libnvidia-ml.so.1",
}

// nvmlPatience is for opening the library and one reading: without persistence mode every card wakes up first.
const nvmlPatience = 30 * time.Second

// nvml asks the cards themselves; with another root, only whether library and device are there.
func (d *DoctorCommand) nvml(ctx context.Context) Check {
	c := Check{Name: "nvml", Missing: "device memory, memory outside the allocator, ECC: native_growth, cotenant and device_fault cannot be told",
		Hint: "install the NVIDIA driver, or in a container set NVIDIA_VISIBLE_DEVICES=all and NVIDIA_DRIVER_CAPABILITIES=utility"}
	library := ""
	for _, place := range nvmlPlaces {
		if _, err := os.Stat(d.path(place)); err == nil {
			library = d.path(place)
			break
		}
	}
	_, device := os.Stat(d.path("dev/nvidiactl"))
	if library != "" && device != nil {
		c.Hint = "give access to /dev/nvidia*: DeviceAllow in a unit, the nvidia runtime class in Kubernetes"
		return fail(c, fmt.Errorf("%s is there, %w", library, device))
	}
	if d.Root != "" {
		if library == "" {
			return fail(c, fmt.Errorf("%w: no libnvidia-ml.so.1", status.ErrAbsent))
		}
		return pass(c, library)
	}
	source := nvml.New(nvml.Options{Deadline: nvmlPatience})
	defer source.Close()
	events, err := source.Collect(ctx, time.Now())
	cards := 0
	for _, e := range events {
		if e.Gpu != nil {
			cards++
		}
	}
	if err != nil {
		return fail(c, err)
	}
	return pass(c, fmt.Sprintf("%d devices are read", cards))
}

// firstRead is how long the kernel log has to fail its first read.
const firstRead = 200 * time.Millisecond

func (d *DoctorCommand) kernel(ctx context.Context) Check {
	c := Check{Name: "kernel", Missing: "Xid with its process, and kernel OOM kills: software_fault only where one process has the card, external_kill by signal only",
		Hint: "run with CAP_SYSLOG, or as root; in a container mount /dev/kmsg. Xids then come from NVML alone"}
	source, err := kernel.Open(kernel.Options{Path: d.path("dev/kmsg"), ProcRoot: d.path("proc")})
	if err != nil {
		return fail(c, err)
	}
	defer source.Close()
	first := time.NewTimer(firstRead) // what stands in for the device in some containers opens, and fails when it is read
	defer first.Stop()
	select {
	case <-first.C:
	case <-ctx.Done():
	}
	if _, err := source.Collect(ctx, time.Now()); err != nil {
		return fail(c, err)
	}
	return pass(c, d.path("dev/kmsg"))
}

// probe asks the collector of this host as a probe would.
func (d *DoctorCommand) probe(ctx context.Context) Check {
	c := Check{Name: "allocator", Missing: "PyTorch's allocator in the workers: retention, native_growth, graph_pools, stream_backlog and fragmentation cannot be told",
		Hint: "run lowtide collect on this host, install the probe into the workers' Python (pip install ./collector/probe) and, in containers, mount the socket's folder"}
	at := d.ProbeSocket
	if at == "" {
		var err error
		if at, err = allocator.DefaultSocket(); err != nil {
			return fail(c, err)
		}
		at = d.path(at)
	}
	conn, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "unix", at)
	if err != nil {
		return fail(c, fmt.Errorf("%w: no collector is reached on %s: %w", status.ErrAbsent, at, err))
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return fail(c, err)
	}
	line, err := bufio.NewReaderSize(conn, allocator.MaxLine).ReadSlice('\n')
	if err != nil || !strings.Contains(string(line), `"lowtide"`) {
		return fail(c, errors.Join(fmt.Errorf("%w: %s is no collector's", status.ErrUnsupported, at), err))
	}
	return pass(c, "a collector listens on "+at)
}

// journal is only needed where units are followed.
func (d *DoctorCommand) journal() Check {
	c := Check{Name: "logs", Missing: "--journal; files can be followed with --log", Hint: "install systemd's journalctl, and in a container mount /var/log/journal"}
	if d.Root != "" {
		return fail(c, fmt.Errorf("%w: another root is looked at", status.ErrAbsent))
	}
	at, err := exec.LookPath("journalctl")
	if err != nil {
		return fail(c, fmt.Errorf("%w: no journalctl", status.ErrAbsent))
	}
	return pass(c, at)
}

func (d *DoctorCommand) pods() Check {
	c := Check{Name: "podresources", Missing: "names of pods and containers; outside Kubernetes nothing", Hint: "mount the folder /var/lib/kubelet/pod-resources into the collector's container"}
	at := d.path("var/lib/kubelet/pod-resources/kubelet.sock")
	if _, err := os.Stat(at); err != nil {
		return fail(c, err)
	}
	return pass(c, at)
}

func (d *DoctorCommand) library() Check {
	c := Check{Name: "engine library", Missing: "the embedded ClickHouse; everything else works", Hint: "run: make engine"}
	at, err := store.FindLibrary("")
	if err != nil {
		return fail(c, fmt.Errorf("%w: %w", status.ErrAbsent, err))
	}
	return pass(c, at)
}

// broker is required: who names one means to use it.
func (d *DoctorCommand) broker() Check {
	c := Check{Name: "nats", Required: true, Missing: "nothing is delivered; it is kept in memory as long as there is room",
		Hint: "start a nats-server with JetStream (-js), or 'lowtide up', and check the address"}
	conn, err := broker.Dial(d.NATS, "doctor", nil, nats.MaxReconnects(0))
	if err != nil {
		return fail(c, fmt.Errorf("%w: %w", status.ErrAbsent, err))
	}
	defer conn.Close()
	if _, err := conn.Request("$JS.API.INFO", nil, 5*time.Second); err != nil {
		return fail(c, fmt.Errorf("%w: it answers, but JetStream does not: %w", status.ErrUnsupported, err))
	}
	return pass(c, broker.Redact(d.NATS)+", server "+conn.ConnectedServerVersion())
}

func pass(c Check, found string) Check {
	c.Status, c.Found, c.Missing, c.Hint = status.OK, found, "", ""
	return c
}

func fail(c Check, err error) Check {
	c.Status = status.Of(err)
	c.Found = strings.TrimPrefix(err.Error(), c.Status+": ") // said in its own column
	return c
}
