package collector

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An engine behind more listening ports of python programs than the source tries in one tick is found all the same.
func TestDoctorTriesEveryPort(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3\n"+
			"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 1\n")
	}))
	defer server.Close()
	engine := server.Listener.Addr().(*net.TCPAddr).Port
	root := t.TempDir()
	write := func(path, text string) {
		at := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("proc/stat", "btime 1790000000\n")
	write("proc/meminfo", "MemTotal: 1 kB\n")
	write("proc/sys/net/ipv4/ip_local_port_range", "65000 65535\n") // the server's port counts as one that was chosen
	listen := func(pid, port int) {
		write(fmt.Sprintf("proc/%d/cmdline", pid), fmt.Sprintf("/usr/bin/vllm\x00serve\x00m\x00--port\x00%d\x00", port))
		write(fmt.Sprintf("proc/%d/stat", pid), fmt.Sprintf("%d (vllm) S 1 1 1 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 1 0 5000 5 1 1 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0\n", pid))
		write(fmt.Sprintf("proc/%d/status", pid), "Name:\tvllm\nThreads:\t1\n")
		write(fmt.Sprintf("proc/%d/net/tcp", pid), fmt.Sprintf("head\n 0: 0100007F:%04X 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 %d 1 0 100 0 0 10 0\n", port, 1000+pid))
		link := filepath.Join(root, fmt.Sprintf("proc/%d/fd/3", pid))
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(fmt.Sprintf("socket:[%d]", 1000+pid), link); err != nil {
			t.Fatal(err)
		}
	}
	listen(100, engine)
	for n := range 40 {
		listen(200+n, 1+n) // nobody listens on these; as texts they come before the server's
	}
	d := &DoctorCommand{Root: root, ProbeSocket: filepath.Join(root, "none")}
	for _, c := range d.Checks(t.Context()) {
		if c.Name == "engine" && (c.Status != "ok" || !strings.Contains(c.Found, "vllm (pid 100)")) {
			t.Errorf("port %d: %+v", engine, c)
		}
	}
}
