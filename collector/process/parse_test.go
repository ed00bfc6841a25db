package process

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"lowtide/event"
)

func TestWords(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	for line, want := range map[string]words{
		"python3 -m vllm.entrypoints.openai.api_server --model org/m --port=9000": {engine: "vllm", role: "frontend", model: "org/m", port: "9000", serves: true},
		"/usr/bin/python3 /usr/local/bin/vllm serve org/m -tp 4 --config c.yaml":  {engine: "vllm", role: "frontend", model: "org/m", tpSize: 4, serves: true, configured: true},
		"VLLM::EngineCore_DP1":         {engine: "vllm", role: "core", dp: n(1)},
		"VLLM::Worker_DP2_PP1_TP3_EP7": {engine: "vllm", role: "worker", dp: n(2), pp: n(1), tp: n(3)},
		"VLLM::Worker_PCP1_TP2_DCP0":   {engine: "vllm", role: "worker", tp: n(2)},
		"VLLM::APIServer_1":            {engine: "vllm", role: "frontend", serves: true},
		"VLLM::DPCoordinator":          {engine: "vllm", role: "other"},
		"prod::EngineCore_DP0":         {engine: "vllm", role: "core", dp: n(0)},
		"sglang::scheduler_DP1_TP0":    {engine: "sglang", role: "worker", dp: n(1), tp: n(0)},
		"sglang::detokenizer":          {engine: "sglang", role: "other"},
		"python3 -m sglang.launch_server --model-path a --served-model-name b":              {engine: "sglang", role: "frontend", model: "b", serves: true},
		"/usr/bin/python3 /usr/local/bin/trtllm-serve m --tp_size 2 --port 8001":            {engine: "trtllm", role: "frontend", model: "m", port: "8001", tpSize: 2, serves: true, combined: true},
		"tritonserver --model-repository=/m --http-port 9000":                               {engine: "triton", role: "worker", port: "9000", serves: true},
		"text-generation-launcher --model-id org/m":                                         {engine: "tgi", role: "other", model: "org/m"},
		"/opt/conda/bin/python3.11 /opt/conda/bin/text-generation-server serve org/m":       {engine: "tgi", role: "worker"},
		"text-generation-router --port 80":                                                  {engine: "tgi", role: "frontend", port: "80", serves: true},
		"/usr/bin/python3 /usr/bin/lmdeploy serve api_server org/m --tp 2":                  {engine: "lmdeploy", role: "frontend", model: "org/m", tpSize: 2, serves: true, combined: true},
		"/opt/llama-server -m /models/q4.gguf --alias q4":                                   {engine: "llama.cpp", role: "worker", model: "q4", serves: true},
		"python3 -m dynamo.vllm --model org/m":                                              {engine: "vllm", role: "frontend", model: "org/m", serves: true, configured: true},
		"ray::RayWorkerWrapper.execute_method":                                              {engine: "vllm", role: "worker", ray: true},
		"ray::IDLE":                                                                         {ray: true},
		"python3 -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)": {},
		"python3 -m torch.distributed.run --nproc-per-node 2 train.py":                      {launcher: true},
		"/usr/bin/mpirun -n 2 trtllm-serve m":                                               {launcher: true},
		"/usr/bin/python3 /usr/bin/jupyter-lab --port 8888":                                 {host: true},
		"python3 -X dev train.py --model --x":                                               {},
		"vllm serve --port 99999999":                                                        {engine: "vllm", role: "frontend", serves: true},
		"vllm bench serve --model m":                                                        {model: "m"},
		"tail -f vllm.log":                                                                  {},
		"std::thread":                                                                       {},
	} {
		got := parseWords(strings.Fields(line))
		if strings.HasPrefix(line, "python3 -c") {
			got = parseWords([]string{"python3", "-c", strings.TrimPrefix(line, "python3 -c ")})
		}
		for _, p := range []struct {
			name      string
			got, want *int64
		}{{"tp", got.tp, want.tp}, {"pp", got.pp, want.pp}, {"dp", got.dp, want.dp}} {
			if (p.got == nil) != (p.want == nil) || p.got != nil && *p.got != *p.want {
				t.Errorf("%s: %s is %v, want %v", line, p.name, p.got, p.want)
			}
		}
		got.tp, got.pp, got.dp, want.tp, want.pp, want.dp = nil, nil, nil, nil, nil, nil
		if got != want {
			t.Errorf("%s:\n got %+v\nwant %+v", line, got, want)
		}
	}
}

// Whoever only names an engine is none.
func TestDefaultMatch(t *testing.T) {
	f := bareTree(t)
	s := open(t, f.options())
	for line, want := range map[string]bool{
		"/usr/bin/python3 app.py": true, "vllm serve m": true, "VLLM::Worker_TP0": true, "ray::IDLE": true, "/opt/tritonserver/bin/tritonserver --x": true,
		"text-generation-router --port 80": true, "tail -f vllm.log": false, "vim sglang.py": false, "docker run vllm/vllm-openai": false, "pythonize x": false,
	} {
		o := &observation{}
		s.reader.name(o, strings.ReplaceAll(line, " ", "\x00")+"\x00\x00")
		if o.matches != want {
			t.Errorf("%s: matches %v", line, o.matches)
		}
	}
}

func TestRankOfEnvironment(t *testing.T) {
	for text, want := range map[string]int64{
		"A=1\x00RANK=3\x00":                        3,
		"LOCAL_RANK=1\x00RANK=9":                   9,
		"SLURM_PROCID=7\x00OMPI_COMM_WORLD_RANK=2": 2,
		"MY_RANK=4\x00RANK=\x00SLURM_PROCID=x":     -1,
		"RANK=12345678\x00":                        -1,
		"RANK=-1\x00LOCAL_RANK=0\x00TOKEN=RANK=5":  0,
		"": -1,
	} {
		got := int64(-1)
		if r := rankOf([]byte(text)); r != nil {
			got = *r
		}
		if got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestStatOfAZombie(t *testing.T) {
	// Written by hand from proc(5): killed by signal 9 is status 9.
	text := "4242 (a) b (c) Z 17 1 1 0 -1 4227084 0 0 0 0 250 50 0 0 20 0 1 0 777 0 0 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 9\n"
	s, err := parseStat([]byte(text))
	if err != nil || s.state != 'Z' || s.parent != 17 || s.ticks != 777 || s.cpu != 3 || s.status != 9 || !s.dead() || s.kernel {
		t.Errorf("%+v, %v", s, err)
	}
	leader := strings.Replace(text, " 20 0 1 0 777", " 20 0 5 0 777", 1)
	if s, err = parseStat([]byte(leader)); err != nil || s.dead() {
		t.Errorf("a leader whose threads live is dead: %+v, %v", s, err)
	}
}

func TestFirstOfNamespace(t *testing.T) {
	for text, want := range map[string]bool{"Name:\tx\nNSpid:\t100\t1\n": true, "NSpid:\t100\n": false, "NSpid:\t100\t7\n": false, "": false, "NSpid:\t1\n": false} {
		if got := firstOfNamespace([]byte(text)); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"0100007F:1F40":                         "127.0.0.1:8000",
		"00000000000000000000000001000000:0050": "[::1]:80",
		"0000000000000000FFFF00000201000A:1F90": "10.0.1.2:8080",
		"00000000000000000000000000000000:1F40": "[::]:8000",
		"0100007F":                              "",
		"zz00007F:1F40":                         "",
	} {
		got, ok := parseAddress([]byte(text))
		if ok != (want != "") || ok && got.String() != want {
			t.Errorf("%s: %v %v, want %s", text, got, ok, want)
		}
	}
}

// As the kernel writes it for a pod with one interface.
const podTrie = `Main:
  +-- 0.0.0.0/0 3 0 5
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
     +-- 10.244.3.0/24 2 0 2
        |-- 10.244.3.0
           /24 link UNICAST
        |-- 10.244.3.17
           /32 host LOCAL
        |-- 10.244.3.255
           /32 link BROADCAST
`

func TestOwnAddress(t *testing.T) {
	if got := parseTrie(strings.NewReader(podTrie)); got != netip.MustParseAddr("10.244.3.17") {
		t.Errorf("fib_trie: %v", got)
	}
	six := "00000000000000000000000000000001 01 80 10 80       lo\nfe800000000000000000000000000001 02 40 20 80     eth0\nfd000000000000000000000000000017 02 40 00 80     eth0\n"
	if got := parseInterfaces(strings.NewReader(six)); got != netip.MustParseAddr("fd00::17") {
		t.Errorf("if_inet6: %v", got)
	}
}

// Names as Kubernetes makes them, and the controller that made each.
func TestOwners(t *testing.T) {
	for pod, want := range map[string]string{
		"vllm-decode-5d59d67564-x7k2p": "vllm-decode", // Deployment
		"vllm-5d59d67564-x7k2p":        "vllm",
		"engine-0":                     "engine",     // StatefulSet
		"prefill-3-1":                  "prefill",    // LeaderWorkerSet
		"node-agent-zx9kd":             "node-agent", // DaemonSet
		"batch-7-b2wqk":                "batch",      // indexed Job
		"static-web":                   "static-web",
		"qwen3-worker":                 "qwen3-worker",
		"-0":                           "-0",
	} {
		if got := ownerOf(pod); got != want {
			t.Errorf("%s: %s, want %s", pod, got, want)
		}
	}
}

func FuzzCommandLine(f *testing.F) {
	f.Add("vllm\x00serve\x00model\x00--port\x008000")
	f.Add("VLLM::Worker_DP2_TP3\x00\x00\x00")
	f.Add("python3\x00-X")
	f.Add("python3\x00-m")
	f.Fuzz(func(t *testing.T, raw string) {
		w := parseWords(parseLine(raw))
		if w.tp != nil && (*w.tp < 0 || *w.tp > 99999) || len(w.port) > 0 && len(strings.TrimLeft(w.port, "0")) > 5 {
			t.Errorf("%q gave %+v", raw, w)
		}
	})
}

func FuzzEnvironment(f *testing.F) {
	f.Add([]byte("RANK=1\x00LOCAL_RANK=2"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if r := rankOf(text); r != nil && (*r < 0 || *r > 999999 || !bytes.Contains(text, []byte("RANK=")) && !bytes.Contains(text, []byte("SLURM_PROCID="))) {
			t.Errorf("%q gave %d", text, *r)
		}
	})
}

func FuzzStat(f *testing.F) {
	f.Add([]byte("1 (x) S 0 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 7 0"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if s, err := parseStat(text); err == nil && (s.parent < 0 || s.status < 0 || s.cpu < 0) {
			t.Errorf("%q gave %+v", text, s)
		}
	})
}

func FuzzStatus(f *testing.F) {
	f.Add(fullStatus)
	f.Add("VmRSS:\t 18446744073709551615 kB\nNSpid:\t1\t1")
	f.Fuzz(func(t *testing.T, text string) {
		p := &event.Process{}
		memory(p, parseStatus(text))
		if p.RssBytes != nil && !strings.Contains(text, "VmRSS") || firstOfNamespace([]byte(text)) && !strings.Contains(text, "NSpid:") {
			t.Errorf("%q: %v", text, p)
		}
		parseLimit([]byte(text))
	})
}

func FuzzPlace(f *testing.F) {
	f.Add("0::/kubepods/burstable/pod" + testPod + "/" + testContainer)
	f.Add("11:memory,cpu:/../..")
	f.Fuzz(func(t *testing.T, text string) {
		p := parsePlace(parseGroups(text))
		if p.container != "" && len(p.container) != 64 || p.pod != "" && len(p.pod) != 36 || strings.Contains("/"+p.memory+"/", "/../") {
			t.Errorf("%q gave %+v", text, p)
		}
	})
}

func FuzzSockets(f *testing.F) {
	f.Add("   0: 0100007F:1F40 00000000:0000 0A 0:0 00:0 0 0 0 700 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		table := &table{listens: make(map[uint64]netip.AddrPort), waiting: make(map[uint64]bool)}
		if err := table.parse(strings.NewReader(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		for inode, at := range table.listens {
			if inode == 0 || !at.IsValid() {
				t.Errorf("%q: %d listens on %v", text, inode, at)
			}
		}
	})
}

func FuzzTrie(f *testing.F) {
	f.Add(podTrie)
	f.Add("fd000000000000000000000000000017 02 40 00 80     eth0\n")
	f.Fuzz(func(t *testing.T, text string) {
		if at := parseTrie(strings.NewReader(text)); at.IsValid() && (!at.Is4() || at.IsLoopback()) {
			t.Errorf("%q gave %v", text, at)
		}
		if at := parseInterfaces(strings.NewReader(text)); at.IsValid() && !at.Is6() {
			t.Errorf("%q gave %v", text, at)
		}
	})
}

func FuzzAssignments(f *testing.F) {
	f.Add([]byte("\n\x0c\n\x01p\x12\x01n\x1a\x04\n\x02c1"))
	f.Fuzz(func(t *testing.T, message []byte) {
		if found, err := parseAssignments(message); err != nil && found != nil {
			t.Errorf("%q: %v beside %v", message, found, err)
		}
	})
}
