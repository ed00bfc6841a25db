package collector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"

	"lowtide/collector/process"
	"lowtide/collector/status"
	"lowtide/processor/broker"
	"lowtide/sink/engine"
)

// DoctorCommand is `doctor`: what can be seen from here, what cannot, and how to get it.
type DoctorCommand struct {
	JSON bool   `name:"json" help:"One array of checks, for programs."`
	NATS string `name:"nats" placeholder:"URL" env:"LOWTIDE_NATS" help:"Check this broker; without it the embedded one of 'up' is meant and nothing is asked."`

	Stdout io.Writer `kong:"-"`
	Root   string    `kong:"-"` // before every path; empty is the real one
}

// Check is what was found out about one sensor or part.
type Check struct {
	Name     string `json:"name"`
	Status   string `json:"status"` // as of a source event
	Required bool   `json:"required"`
	Found    string `json:"found,omitempty"`
	Missing  string `json:"missing,omitempty"` // what cannot be told without it
	Hint     string `json:"hint,omitempty"`
}

// ErrRequired marks the end of a doctor's visit that found something required broken.
var ErrRequired = errors.New("something required is broken")

// Run checks everything and prints the table, or with JSON the array. The error, which wraps ErrRequired, names the required
// parts that are broken; what is merely not there is no error.
func (d *DoctorCommand) Run(ctx context.Context) error {
	out := d.Stdout
	if out == nil {
		out = os.Stdout
	}
	checks := d.Checks(ctx)
	if err := d.print(out, checks); err != nil {
		return fmt.Errorf("write checks: %w", err)
	}
	var broken []error
	for _, c := range checks {
		if c.Required && c.Status != status.OK {
			broken = append(broken, fmt.Errorf("%w: %s is %s", ErrRequired, c.Name, c.Status))
		}
	}
	return errors.Join(broken...)
}

// Checks asks every sensor once.
func (d *DoctorCommand) Checks(ctx context.Context) []Check {
	proc, machine := d.process(ctx)
	checks := []Check{proc, machine, d.cgroup(), d.nvml(), d.kmsg(), d.library()}
	if d.NATS != "" {
		checks = append(checks, d.broker())
	}
	return checks
}

func (d *DoctorCommand) path(p string) string { return filepath.Join("/", d.Root, p) }

func (d *DoctorCommand) process(ctx context.Context) (proc, open Check) {
	proc = Check{Name: "proc", Required: true, Missing: "host memory, handles and threads of every worker"}
	open = Check{Name: "open files", Missing: "fd_leak and sockets of processes of other users"}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	source, err := process.New(process.Options{ProcRoot: d.path("proc"), CgroupRoot: d.path("sys/fs/cgroup")})
	if err != nil {
		proc.Hint = "mount /proc, and in a container use the host's pid namespace (hostPID)"
		open.Hint = proc.Hint
		return fail(proc, err), fail(open, err)
	}
	events, err := source.Collect(ctx, time.Now())
	if len(events) == 0 {
		proc.Hint = "mount /proc, and in a container use the host's pid namespace (hostPID)"
		return fail(proc, err), fail(open, err)
	}
	proc = pass(proc, fmt.Sprintf("%d processes match the default pattern", len(events)-1))
	if err != nil {
		open.Hint = "run as the workers' user, or with CAP_SYS_PTRACE"
		return proc, fail(open, err)
	}
	return proc, pass(open, "")
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

func (d *DoctorCommand) nvml() Check {
	c := Check{Name: "nvml", Missing: "device memory, memory outside the allocator, ECC: native_growth, cotenant, device_fault",
		Hint: "install the NVIDIA driver, or in a container set NVIDIA_VISIBLE_DEVICES=all and NVIDIA_DRIVER_CAPABILITIES=utility"}
	for _, place := range nvmlPlaces {
		if _, err := os.Stat(d.path(place)); err == nil {
			if _, err := os.Stat(d.path("dev/nvidiactl")); err != nil {
				c.Hint = "give access to /dev/nvidia*: DeviceAllow in a unit, the nvidia runtime class in Kubernetes"
				return fail(c, fmt.Errorf("%s is there, %w", d.path(place), err))
			}
			return pass(c, d.path(place))
		}
	}
	return fail(c, fmt.Errorf("%w: no libnvidia-ml.so.1", status.ErrAbsent))
}

func (d *DoctorCommand) kmsg() Check {
	c := Check{Name: "kmsg", Missing: "Xid and kernel OOM: device_fault, software_fault, external_kill",
		Hint: "run with CAP_SYSLOG, or as root; in a container mount /dev/kmsg"}
	file, err := os.Open(d.path("dev/kmsg"))
	if err != nil {
		return fail(c, err)
	}
	if err := file.Close(); err != nil {
		return fail(c, err)
	}
	return pass(c, "")
}

func (d *DoctorCommand) library() Check {
	c := Check{Name: "engine library", Missing: "the embedded ClickHouse; everything else works", Hint: "run: make engine"}
	at, err := engine.FindLibrary("")
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
	c.Status, c.Found = status.Of(err), err.Error()
	return c
}

func (d *DoctorCommand) print(out io.Writer, checks []Check) error {
	if d.JSON {
		if err := json.MarshalWrite(out, checks, jsontext.Multiline(true)); err != nil {
			return err
		}
		_, err := fmt.Fprintln(out)
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, c := range checks {
		fmt.Fprintf(table, "%s\t%s\t%s\n", c.Name, c.Status, c.Found)
		if c.Status != status.OK {
			fmt.Fprintf(table, "\t\twithout it: %s\n\t\thint: %s\n", c.Missing, c.Hint)
		}
	}
	return table.Flush()
}
