package kernel

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

var noon = time.Date(2026, 5, 12, 12, 0, 0, 0, time.UTC)

func n(v uint64) *uint64 { return &v }
func p(v int64) *int64   { return &v }

// lines makes records of texts, a millisecond apart, facility 0, as a read of /dev/kmsg gives them.
func lines(texts ...string) (out []record) {
	for i, text := range texts {
		r, ok := parseRecord([]byte(fmt.Sprintf("3,%d,%d,-;%s\n SUBSYSTEM=pci\n DEVICE=+pci:0000:48:00.0\n", i, 1000*i, text)))
		if !ok {
			panic("no record: " + text)
		}
		out = append(out, r)
	}
	return out
}

// assemble gives all events of a log that ends.
func assemble(a *assembler, records ...record) (out []*event.Event) {
	for _, r := range records {
		out = append(out, a.take(r, noon.Add(r.uptime))...)
	}
	return append(out, a.settle(time.Now().Add(time.Hour))...)
}

func xid(ms int, pci string, code uint64, pid int64, name, text string) *event.Event {
	e := &event.Event{Time: timestamppb.New(noon.Add(time.Duration(ms) * time.Millisecond)), Xid: &event.Xid{Source: "kmsg", Pci: pci, Code: &code, ProcessName: name, Text: text}}
	if pid != 0 {
		e.Xid.Pid, e.Worker = &pid, &event.Worker{Pid: pid}
	}
	return e
}

func kill(ms int, kind string, pid int64, text string) *event.Event {
	return &event.Event{Time: timestamppb.New(noon.Add(time.Duration(ms) * time.Millisecond)), Worker: &event.Worker{Pid: pid}, Oom: &event.Oom{Kind: kind, VictimPid: &pid, Text: text}}
}

func compare(t *testing.T, got, want []*event.Event) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d events, want %d", len(got), len(want))
	}
	for i := range min(len(got), len(want)) {
		if !proto.Equal(got[i], want[i]) {
			t.Errorf("event %d\n got %v\nwant %v", i, got[i], want[i])
		}
		if err := event.Validate(got[i]); err != nil {
			t.Errorf("event %d: %v", i, err)
		}
	}
	if t.Failed() {
		for i, e := range got {
			t.Logf("%d: %v", i, e)
		}
	}
}

func TestEveryLineOfTheSample(t *testing.T) {
	file, err := os.Open("testdata/kmsg_xid.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var texts []string
	for s := bufio.NewScanner(file); s.Scan(); {
		texts = append(texts, s.Text())
	}
	if len(texts) != 9 {
		t.Fatalf("%d lines", len(texts))
	}
	compare(t, assemble(&assembler{gpus: newGPUs(t.TempDir())}, lines(texts...)...), []*event.Event{
		xid(0, "0000:00:06", 31, 570, "python3", texts[0]),
		xid(1, "0000:00:06", 43, 592, "python3", texts[1]),
		xid(2, "0000:48:00", 45, 2211, "VLLM::Worker", texts[2]),
		xid(3, "0000:48:00", 79, 0, "", texts[3]),
		xid(4, "0000:48:00", 94, 2211, "python3", texts[4]),
		xid(5, "0000:48:00", 63, 0, "", texts[5]),
		kill(7, "cgroup", 2211, texts[7]+" "+texts[6]), // the summary and the kill are one
		kill(8, "kernel", 2212, texts[8]),
	})
}

func TestOtherFormsOfAnXid(t *testing.T) {
	for _, c := range []struct {
		text string
		want *event.Xid
	}{
		{"NVRM: Xid (0000:03:00): 14, Channel 00000001", &event.Xid{Pci: "0000:03:00", Code: n(14)}},
		{"NVRM: Xid (PCI:0000:0A:00): 62, pid='<unknown>', name=<unknown>, 2023b230 20238a3a", &event.Xid{Pci: "0000:0a:00", Code: n(62)}},
		{"NVRM: Xid (PCI:0000:0a:00): 109, pid='1797828', name='pt_main_thread', Ch 00000008, errorString CTX SWITCH TIMEOUT", &event.Xid{Pci: "0000:0a:00", Code: n(109), Pid: p(1797828), ProcessName: "pt_main_thread"}},
		{"NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149", &event.Xid{Pci: "0000:dc:00", Code: n(45), Pid: p(1818990), ProcessName: "python3"}},
		{"NVRM: Xid (PCI:0000:01:00 GPU-I:03): 31, pid=5, name=a b, MMU Fault", &event.Xid{Pci: "0000:01:00", Code: n(31), Pid: p(5), ProcessName: "a b"}},
		{"NVRM: Xid (PCI:00000000:01:00.0): 79", &event.Xid{Pci: "0000:01:00", Code: n(79)}},
		{"NVRM: Xid (PCI:c3b4:00:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", &event.Xid{Pci: "c3b4:00:00", Code: n(154)}},
		{"NVRM: Xid (PCI:0000:01:00): 79, pid=0, GPU has fallen off the bus.", &event.Xid{Pci: "0000:01:00", Code: n(79)}},
		{"NVRM: Xid (PCI:0000:01:00): 13, pid=99999999999, name=x, Graphics", &event.Xid{Pci: "0000:01:00", Code: n(13), ProcessName: "x"}},
		{"NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has\\x0aNVRM: fallen off the bus and is not responding to commands.", &event.Xid{Pci: "0000:b3:00", Code: n(79)}},
		{"NVRM: GPU 0000:48:00.0: GPU has fallen off the bus.", &event.Xid{Pci: "0000:48:00", Code: n(79)}},
	} {
		got := assemble(&assembler{gpus: newGPUs(t.TempDir())}, lines(c.text)...)
		c.want.Source, c.want.Text = "kmsg", strings.ReplaceAll(c.text, `\x0a`, " ")
		if len(got) != 1 || !proto.Equal(got[0].Xid, c.want) {
			t.Errorf("%s\n got %v\nwant %v", c.text, got, c.want)
		}
	}
	for _, text := range []string{
		"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01", "NVRM: GPU 0000:09:00.0: RmInitAdapter failed! (0x22:0x56:894)",
		"usb 1-1: Product: NVRM: Xid (PCI:0000:48:00): 79, GPU has fallen off the bus.", "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 11001, Fatal, ingress invalid command",
		"NVRM: Xid (PCI:0000:48:00): x", "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:26b5) installed in this system is not supported", "",
		"python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
	} {
		if got := assemble(&assembler{gpus: newGPUs(t.TempDir())}, lines(text)...); len(got) != 0 {
			t.Errorf("%q gives %v", text, got)
		}
	}
}

// The lines of one fault are one event; the next fault, another device and other subsystems end it.
func TestJoinsTheLinesOfOneFault(t *testing.T) {
	const uuid = "GPU-efbdfde9-5798-a6e7-4c46-12518fa15375"
	a := &assembler{gpus: newGPUs(t.TempDir())}
	got := assemble(a, lines(
		"NVRM: GPU at PCI:0000:48:00: "+uuid,
		"NVRM: GPU Board Serial Number: 1650423013443",
		"NVRM: Xid (PCI:0000:48:00): 31, pid=570, name=python3, Ch 00000010, intr 00000000. MMU Fault:",
		"NVRM:     ENGINE GRAPHICS GPCCLIENT_T1_8 faulted @ 0x73ac_1c000000.",
		"NVRM:     Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE",
		"NVRM: Xid (PCI:0000:48:00): 79, GPU has fallen off the bus.",
		"NVRM: GPU 0000:48:00.0: GPU has fallen off the bus.",
		"NVRM: GPU 0000:49:00.0: GPU has fallen off the bus.",
		"mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link INIT",
		"NVRM: A GPU crash dump has been created.",
	)...)
	first := xid(2, "0000:48:00", 31, 570, "python3", "NVRM: Xid (PCI:0000:48:00): 31, pid=570, name=python3, Ch 00000010, intr 00000000. MMU Fault: "+
		"NVRM: ENGINE GRAPHICS GPCCLIENT_T1_8 faulted @ 0x73ac_1c000000. NVRM: Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE")
	second := xid(5, "0000:48:00", 79, 0, "", "NVRM: Xid (PCI:0000:48:00): 79, GPU has fallen off the bus. NVRM: GPU 0000:48:00.0: GPU has fallen off the bus.")
	first.Xid.GpuUuid, second.Xid.GpuUuid = uuid, uuid
	compare(t, got, []*event.Event{first, second, xid(7, "0000:49:00", 79, 0, "", "NVRM: GPU 0000:49:00.0: GPU has fallen off the bus.")})

	// Bounds: eight lines, and a tenth of a second by the log's clock.
	many := []string{"NVRM: Xid (PCI:0000:48:00): 119, pid=1, name=a, Timeout after 45s of waiting for RPC response from GPU4 GSP!"}
	for range 20 {
		many = append(many, "NVRM: "+strings.Repeat("rpc ", 25))
	}
	got = assemble(a, lines(many...)...)
	if len(got) != 1 || strings.Count(got[0].Xid.Text, "NVRM:") != faultLines {
		t.Errorf("%d events: %v", len(got), got)
	}
	late := lines("NVRM: Xid (PCI:0000:48:00): 43, pid=1, name=a, Ch 1", "NVRM: much later")
	late[1].uptime += time.Second
	if got = assemble(a, late...); len(got) != 1 || strings.Contains(got[0].Xid.Text, "later") {
		t.Errorf("%v", got)
	}
	piece := lines("NVRM: Xid (PCI:0000:48:00): 43, pid=1, name=a,", " Ch 00000008")
	piece[1].fragment = true
	if got = assemble(a, piece...); len(got) != 1 || got[0].Xid.Text != "NVRM: Xid (PCI:0000:48:00): 43, pid=1, name=a, Ch 00000008" {
		t.Errorf("%v", got)
	}
}

func TestJoinsTheLinesOfOneKill(t *testing.T) {
	summary := func(pid int) string {
		return fmt.Sprintf("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/k,task_memcg=/k/c1,task=python3,pid=%d,uid=0", pid)
	}
	a := &assembler{gpus: newGPUs(t.TempDir())}
	records := lines(
		summary(10), "Memory cgroup out of memory: Killed process 10 (python3) total-vm:1kB",
		"Memory cgroup out of memory: Killed process 11 (python3) total-vm:1kB", // memory.oom.group: more victims, one summary
		summary(12), "Memory cgroup out of memory: OOM victim 12 (python3) is already exiting. Skip killing the task",
		summary(13), summary(14), // the second line of 13 was lost
	)
	compare(t, assemble(a, records...), []*event.Event{
		kill(1, "cgroup", 10, "Memory cgroup out of memory: Killed process 10 (python3) total-vm:1kB "+summary(10)),
		kill(2, "cgroup", 11, "Memory cgroup out of memory: Killed process 11 (python3) total-vm:1kB"),
		kill(5, "cgroup", 13, summary(13)),
		kill(6, "cgroup", 14, summary(14)),
	})
}

func TestProgramsCannotForge(t *testing.T) {
	forged, ok := parseRecord([]byte("12,5,1000,-;NVRM: Xid (PCI:0000:48:00): 79, GPU has fallen off the bus.\n")) // 12 = user.warning
	if !ok || forged.facility != 1 {
		t.Fatalf("%v %v", forged, ok)
	}
	if got := assemble(&assembler{gpus: newGPUs(t.TempDir())}, forged); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

func TestReadsUUIDsFromProc(t *testing.T) {
	root := t.TempDir()
	write := func(address, uuid string) {
		dir := filepath.Join(root, "driver/nvidia/gpus", address)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		text := "Model: \t\t NVIDIA H200\nIRQ:   \t\t 185\nGPU UUID: \t " + uuid + "\nVideo BIOS: \t 96.00\nBus Location: \t " + address + "\n"
		if err := os.WriteFile(filepath.Join(dir, "information"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("0000:48:00.0", "GPU-efbdfde9-5798-a6e7-4c46-12518fa15375")
	write("0000:49:00.0", "GPU-????????-????-????-????-????????????")
	g := newGPUs(root)
	if got := g.uuid("0000:48:00"); got != "GPU-efbdfde9-5798-a6e7-4c46-12518fa15375" {
		t.Errorf("%q", got)
	}
	write("0000:49:00.0", "GPU-3b6ec030-5adc-1847-e155-79f635584b4e")
	if got := g.uuid("0000:49:00"); got != "" {
		t.Errorf("/proc was read again at once: %q", got)
	}
	g.asked = g.asked.Add(-rereadAfter)
	if got := g.uuid("0000:49:00"); got != "GPU-3b6ec030-5adc-1847-e155-79f635584b4e" {
		t.Errorf("%q", got)
	}
}

func TestRefusesWhatIsNoRecord(t *testing.T) {
	for _, b := range []string{"", ";", "6,1;text", "a,1,1,-;text", "6,1,99999999999999999999,-;x", "6,1,-5,-;x", "no semicolon", strings.Repeat("6", maxRecord+1)} {
		if r, ok := parseRecord([]byte(b)); ok {
			t.Errorf("%.40q gives %v", b, r)
		}
	}
	r, ok := parseRecord([]byte("6,339,5140900,-,caller=T1;a\\x0ab\\x5c\\xzz\n SUBSYSTEM=x\n"))
	if want := (record{sequence: 339, uptime: 5140900 * time.Microsecond, text: "a\nb\\\\xzz"}); !ok || r != want {
		t.Errorf("%+v", r)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte("3,1,1000,-;NVRM: Xid (PCI:0000:48:00): 31, pid=570, name=python3, MMU\\x0aFault\n DEVICE=x\n"))
	f.Add([]byte("3,1,1000,+;NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: fallen off the bus"))
	f.Add([]byte("6,1,1000,c;oom-kill:constraint=CONSTRAINT_MEMCG,task=a,pid=7,uid=0"))
	f.Add([]byte("6,1,1000,-;Out of memory: Killed process 7 (a)"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, ok := parseRecord(b)
		if !ok {
			return
		}
		if r.uptime < 0 {
			t.Fatalf("before boot: %v", r.uptime)
		}
		a := &assembler{gpus: &gpus{asked: time.Now(), uuids: map[string]string{}}}
		for _, e := range assemble(a, lines("NVRM: Xid (PCI:0000:48:00): 43, pid=1, name=a, Ch 1")[0], r, r) {
			if err := event.Validate(e); err != nil {
				t.Fatal(err)
			}
			if _, err := proto.Marshal(e); err != nil {
				t.Fatal(err)
			}
			if len(e.GetXid().GetText()) > maxText {
				t.Fatalf("text of %d bytes", len(e.Xid.Text))
			}
		}
	})
}

func BenchmarkOtherRecord(b *testing.B) {
	a := &assembler{gpus: newGPUs(b.TempDir())}
	raw := []byte("6,339,5140900,-;mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link ACTIVE\n SUBSYSTEM=pci\n DEVICE=+pci:0000:ab:00.0\n")
	b.ReportAllocs()
	for b.Loop() {
		if r, ok := parseRecord(raw); ok {
			a.take(r, noon)
		}
	}
}
