package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	testContainer = "3f4a1c0b9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a"
	testPod       = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
)

// tree writes files below a folder of the test: a small /proc and /sys/fs/cgroup.
type tree struct {
	t    testing.TB
	root string
}

func (f tree) write(path, content string) {
	f.t.Helper()
	at := filepath.Join(f.root, path)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(content), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f tree) link(path, target string) {
	f.t.Helper()
	at := filepath.Join(f.root, path)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Symlink(target, at); err != nil {
		f.t.Fatal(err)
	}
}

// process adds /proc/PID. USER_HZ ticks: 1500 user and 500 system, which is 20 s.
func (f tree) process(pid, parent int, start uint64, line []string, cgroup, status string) {
	dir := fmt.Sprintf("proc/%d/", pid)
	f.write(dir+"cmdline", strings.Join(line, "\x00")+"\x00")
	f.write(dir+"stat", fmt.Sprintf("%d (py (odd) name) S %d 1 1 0 -1 4194304 1 0 0 0 1500 500 0 0 20 0 61 0 %d 5000000 1000 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n", pid, parent, start))
	f.write(dir+"cgroup", cgroup)
	f.write(dir+"status", status)
	f.write(dir+"limits", "Limit                     Soft Limit           Hard Limit           Units     \nMax open files            65536                1048576              files     \n")
	if err := os.MkdirAll(filepath.Join(f.root, dir, "fd"), 0o755); err != nil {
		f.t.Fatal(err)
	}
}

const fullStatus = `Name:	VLLM::Worker
VmLck:	    1024 kB
VmPin:	    2048 kB
VmRSS:	  900000 kB
RssAnon:	  500000 kB
RssFile:	  300000 kB
RssShmem:	  100000 kB
VmSwap:	    4096 kB
Threads:	61
`

// environ, listen and network add to a process what the tests of instances need.
func (f tree) environ(pid int, entries ...string) {
	f.write(fmt.Sprintf("proc/%d/environ", pid), strings.Join(entries, "\x00")+"\x00")
}

// listen gives a process listening sockets, each "address in hex:port in hex", in a namespace of its own table.
func (f tree) listen(pid int, at ...string) {
	table := "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	for n, address := range at {
		inode := pid*100 + n
		table += fmt.Sprintf("%4d: %s 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 %d 1 0000000000000000 100 0 0 10 0\n", n, address, inode)
		f.link(fmt.Sprintf("proc/%d/fd/%d", pid, n+3), fmt.Sprintf("socket:[%d]", inode))
	}
	f.write(fmt.Sprintf("proc/%d/net/tcp", pid), table)
}

func (f tree) remove(pid int) {
	f.t.Helper()
	if err := os.RemoveAll(filepath.Join(f.root, fmt.Sprintf("proc/%d", pid))); err != nil {
		f.t.Fatal(err)
	}
}

// bareTree is a host on which nothing matters yet.
func bareTree(t testing.TB) tree {
	f := tree{t, t.TempDir()}
	f.write("proc/stat", "cpu  1 2 3 4 5 6 7 8 9 10\nbtime 1790000000\n")
	f.write("proc/meminfo", "MemTotal:       2097152 kB\nMemFree:         100000 kB\nMemAvailable:   1048576 kB\n")
	f.write("proc/sys/fs/file-nr", "5000\t0\t9223372036854775807\n")
	f.write("proc/sys/kernel/osrelease", "6.8.0-45-generic\n")
	f.write("proc/sys/kernel/random/boot_id", "b8d3c1f2-0000-4000-8000-000000000001\n")
	f.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (x)\n")
	return f
}

// newTree is a host with one vLLM instance in a pod (front end 100, rank 101), a llama server under systemd, and a shell.
func newTree(t testing.TB) tree {
	f := bareTree(t)
	slice := "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(testPod, "-", "_") + ".slice"
	scope := slice + "/cri-containerd-" + testContainer + ".scope"
	f.process(100, 1, 5000, []string{"/usr/bin/python3", "/usr/local/bin/vllm", "serve", "org/model-7b", "--port", "8000"}, "0::"+scope+"\n", fullStatus)
	f.process(101, 100, 6000, []string{"VLLM::Worker_TP1"}, "0::"+scope+"\n", fullStatus)
	f.write("proc/101/net/tcp", `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 700 1 0000000000000000 100 0 0 10 0
   1: 0100007F:1F40 0100007F:9C40 08 00000000:00000000 00:00000000 00000000     0        0 701 1 0000000000000000 20 4 30 10 -1
   2: 0100007F:1F40 0100007F:9C41 08 00000000:00000000 00:00000000 00000000     0        0 799 1 0000000000000000 20 4 30 10 -1
`)
	f.write("proc/101/net/tcp6", `  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000001000000:1F40 00000000000000000000000001000000:9C40 08 00000000:00000000 00:00000000 00000000     0        0 702 1 0000000000000000 20 4 30 10 -1
`)
	for number, target := range map[string]string{"0": "/dev/null", "3": "socket:[700]", "4": "socket:[701]", "5": "socket:[702]", "6": "anon_inode:[eventfd]"} {
		f.link("proc/101/fd/"+number, target)
	}
	f.process(200, 1, 7000, []string{"/opt/llama-server", "-m", "/models/q4.gguf"}, "0::/system.slice/llama.service\n", "Name:\tllama-server\nVmRSS:\t 1000 kB\nThreads:\t4\n")
	f.process(300, 1, 8000, []string{"/bin/bash"}, "0::/user.slice\n", fullStatus)
	f.write("sys/fs/cgroup"+scope+"/memory.current", "3000000000\n")
	f.write("sys/fs/cgroup"+scope+"/memory.max", "max\n")
	f.write("sys/fs/cgroup"+slice+"/memory.current", "3100000000\n")
	f.write("sys/fs/cgroup"+slice+"/memory.max", "8589934592\n")
	f.write("sys/fs/cgroup/system.slice/llama.service/memory.current", "2000000\n")
	f.write("sys/fs/cgroup/system.slice/llama.service/memory.max", "max\n")
	return f
}

func (f tree) options() Options {
	return Options{ProcRoot: filepath.Join(f.root, "proc"), CgroupRoot: filepath.Join(f.root, "sys/fs/cgroup"),
		LogRoot: filepath.Join(f.root, "var/log"), PodResources: filepath.Join(f.root, "kubelet.sock")}
}

func read(t testing.TB, f tree, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(f.root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func stampOf(at time.Time) *timestamppb.Timestamp { return timestamppb.New(at) }
