package allocator

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"lowtide/event"
)

// readLine is what the probe sends of a worker with one card (a line of the probe's own test, with the numbers of facts, section 14).
const readLine = `{"v":1,"kind":"read","time":1764470005.25,"took_seconds":0.0002,"interval_seconds":5,"compiles_total":3,"devices":[` +
	`{"gpu_uuid":"GPU-9f1d6a3c-0b7e-4a51-8c2d-000000000000","backend":"native","expandable_segments":false,"allocated_bytes":15032385536,` +
	`"reserved_bytes":17179869184,"active_bytes":15034482688,"requested_bytes":15011414016,"allocated_peak_bytes":16032385536,"reserved_peak_bytes":17179869184,` +
	`"limit_bytes":75161927680,"inactive_split_bytes":671088640,"private_pool_bytes":2121000000,"graph_pools":1,"alloc_retries_total":3,"ooms_total":1,` +
	`"device_allocs_total":1204,"device_frees_total":392,"segments":812,"pinned_allocated_bytes":67108864,"pinned_active_bytes":1048576,"later":{"a":[1]}},` +
	`{"gpu_uuid":"MIG-1","allocated_bytes":0}]}`

func TestRead(t *testing.T) {
	l, err := parse([]byte(readLine))
	if err != nil {
		t.Fatal(err)
	}
	s := l.sample()
	if got := s.at.Format("2006-01-02T15:04:05.00Z"); got != "2025-11-30T02:33:25.25Z" {
		t.Errorf("time %s", got)
	}
	if len(s.devices) != 2 {
		t.Fatalf("%d devices", len(s.devices))
	}
	same(t, s.devices[0], &event.Allocator{
		GpuUuid: "GPU-9f1d6a3c-0b7e-4a51-8c2d-000000000000", Backend: "native", ExpandableSegments: event.Ptr(false),
		AllocatedBytes: u(15032385536), ReservedBytes: u(17179869184), ActiveBytes: u(15034482688), RequestedBytes: u(15011414016),
		AllocatedPeakBytes: u(16032385536), ReservedPeakBytes: u(17179869184), LimitBytes: u(75161927680), InactiveSplitBytes: u(671088640),
		PrivatePoolBytes: u(2121000000), GraphPools: u(1), AllocRetriesTotal: u(3), OomsTotal: u(1), DeviceAllocsTotal: u(1204),
		DeviceFreesTotal: u(392), Segments: u(812), PinnedAllocatedBytes: u(67108864), PinnedActiveBytes: u(1048576), CompilesTotal: u(3),
	})
	same(t, s.devices[1], &event.Allocator{GpuUuid: "MIG-1", AllocatedBytes: u(0)}) // compiles stand once, and zero is a reading
}

func TestLinesThatAreNone(t *testing.T) {
	for name, c := range map[string]struct{ line, says string }{
		"empty":             {``, "EOF"},
		"no object":         {`[1]`, "JSON array"},
		"half":              {`{"v":1,"kind":"read","ti`, "EOF"},
		"not a number":      {`{"v":1,"kind":"mark","mark":"busy","time":NaN}`, "invalid"},
		"another protocol":  {`{"v":2,"kind":"bye","time":1}`, "field v: 2"},
		"kind":              {`{"v":1,"kind":"shout","time":1}`, `"shout"`},
		"no time":           {`{"v":1,"kind":"bye"}`, "field time"},
		"time":              {`{"v":1,"kind":"bye","time":1e300}`, "field time"},
		"a string":          {`{"v":1,"kind":"read","time":1,"interval_seconds":5,"devices":[{"allocated_bytes":"12"}]}`, "allocated_bytes"},
		"negative":          {`{"v":1,"kind":"read","time":1,"interval_seconds":5,"devices":[{"reserved_bytes":-1}]}`, "reserved_bytes"},
		"a fraction":        {`{"v":1,"kind":"read","time":1,"interval_seconds":5,"devices":[{"reserved_bytes":1.5}]}`, "reserved_bytes"},
		"beyond 2^53":       {`{"v":1,"kind":"read","time":1,"interval_seconds":5,"devices":[{},{"segments":9007199254740992}]}`, "devices.1.segments"},
		"beyond in an oom":  {`{"v":1,"kind":"oom","source":"observer","time":1,"free_bytes":9007199254740992}`, "free_bytes"},
		"interval":          {`{"v":1,"kind":"read","time":1,"interval_seconds":0,"devices":[]}`, "interval_seconds"},
		"uuid":              {`{"v":1,"kind":"read","time":1,"interval_seconds":5,"devices":[{"gpu_uuid":"GPU 1\n"}]}`, "devices.0: field gpu_uuid"},
		"devices":           {`{"v":1,"kind":"read","time":1,"interval_seconds":5,"devices":[` + strings.Repeat(`{},`, 64) + `{}]}`, "at most 64"},
		"source":            {`{"v":1,"kind":"oom","time":1,"source":"rumour"}`, `"rumour"`},
		"mark":              {`{"v":1,"kind":"mark","time":1,"mark":"start"}`, `"start"`},
		"exit code":         {`{"v":1,"kind":"bye","time":1,"exit_code":256}`, "exit_code"},
		"snapshot id":       {`{"v":1,"kind":"snapshot","time":1,"reason":"oom","status":"ok"}`, "field id"},
		"a long id":         {`{"v":1,"kind":"recording","time":1,"history":"on","id":"` + strings.Repeat("i", 65) + `"}`, "field id"},
		"snapshot status":   {`{"v":1,"kind":"snapshot","id":"a","time":1,"reason":"oom","status":"fine"}`, `"fine"`},
		"snapshot reason":   {`{"v":1,"kind":"snapshot","id":"a","time":1,"reason":"why","status":"ok"}`, `"why"`},
		"snapshot bytes":    {`{"v":1,"kind":"snapshot","id":"a","time":1,"reason":"oom","status":"ok","bytes":9007199254740992}`, "field bytes"},
		"snapshot list":     {`{"v":1,"kind":"snapshot","id":"a","time":1,"reason":"oom","status":"ok","devices":[]}`, "field devices"},
		"snapshot device":   {`{"v":1,"kind":"snapshot","id":"a","time":1,"reason":"oom","status":"ok","devices":{"00":"GPU-1"}}`, `"00" is no device`},
		"snapshot uuid":     {`{"v":1,"kind":"snapshot","id":"a","time":1,"reason":"oom","status":"ok","devices":{"0":"GPU 1"}}`, "devices.0: field gpu_uuid"},
		"snapshot time":     {`{"v":1,"kind":"snapshot","id":"a","time":1,"reason":"oom","status":"ok","took_seconds":-1}`, "field took_seconds"},
		"census":            {`{"v":1,"kind":"snapshot","id":"a","time":1,"reason":"oom","status":"ok","census":{"bytes":9007199254740992}}`, "census.bytes"},
		"history":           {`{"v":1,"kind":"recording","id":"a","time":1,"history":"maybe"}`, `"maybe"`},
		"read of an object": {`{"v":1,"kind":"read","time":1,"interval_seconds":5,"devices":{"0":"GPU-1"}}`, "field devices"},
		"name twice":        {`{"v":1,"kind":"bye","time":1,"time":2}`, "duplicate"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := parse([]byte(c.line))
			if err == nil {
				t.Fatalf("%+v", l)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q does not say %q", err, c.says)
			}
		})
	}
}

func TestTextAndNumbersOfOneFailure(t *testing.T) {
	seen := observed(&line{Time: 1764470005, GPU: "GPU-1", Wanted: u(268435456), Free: u(20626538496), Limit: u(15032385536)})
	text := "CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which 19.21 GiB is free. Process 662 has 14.65 GiB memory in use. " +
		"14.00 GiB allowed; Of the allocated memory 13.51 GiB is allocated by PyTorch, and 276.25 MiB is reserved by PyTorch but unallocated."
	told := excepted(&line{Text: text})
	if !seen.same(told) {
		t.Error("256.00 MiB and 268435456 are the same request")
	}
	merged := seen.merge(told)
	same(t, merged, &event.Oom{
		Kind: "cuda", RequestedBytes: u(268435456), FreeBytes: u(20626538496), LimitBytes: u(15032385536), // exact: the text says 19.21 GiB
		AllocatedBytes: told.AllocatedBytes, ReservedUnallocatedBytes: u(289669120), OtherProcessesBytes: told.OtherProcessesBytes, Text: text, GpuUuid: "GPU-1",
	})
	if got := merged.GetAllocatedBytes(); got/(1<<20) != 13834 { // 13.51 GiB
		t.Errorf("allocated %d", got)
	}
	if seen.same(&event.Oom{Kind: "cuda", RequestedBytes: u(300 << 20)}) {
		t.Error("300 MiB is another request")
	}
	strange := excepted(&line{Text: "no memory today"})
	same(t, strange, &event.Oom{Kind: "cuda", Text: "no memory today"})
	if victim := excepted(&line{Text: "Out of memory: Killed process 1 (init)"}); victim.Kind != "cuda" || victim.VictimPid != nil {
		t.Errorf("a worker's word about another process: %v", victim)
	}
	same(t, seen.alone(), &event.Oom{Kind: "cuda", RequestedBytes: u(268435456), FreeBytes: u(20626538496), LimitBytes: u(15032385536),
		GpuUuid: "GPU-1"})
}

func TestStartTicks(t *testing.T) {
	got, err := parseStartTicks("42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 987654 20 21\n")
	if err != nil || got != 987654 {
		t.Errorf("%d, %v", got, err)
	}
	for _, text := range []string{"", "42 (a", "42 (a) S 1", "42 (a) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 x"} {
		if got, err := parseStartTicks(text); err == nil {
			t.Errorf("%q gives %d", text, got)
		}
	}
}

func FuzzLine(f *testing.F) {
	f.Add([]byte(readLine))
	f.Add([]byte(`{"v":1,"kind":"hello","torch":"2.11.0","cuda":"13.0","backend":"native","alloc_conf":"expandable_segments:True"}`))
	f.Add([]byte(`{"v":1,"kind":"oom","time":1764470005.1,"source":"observer","gpu_uuid":"GPU-1","requested_bytes":1,"free_bytes":2,"limit_bytes":3}`))
	f.Add([]byte(`{"v":1,"kind":"oom","time":1764470005.1,"source":"exception","text":"CUDA out of memory. Tried to allocate 2.00 GiB."}`))
	f.Add([]byte(`{"v":1,"kind":"mark","time":1,"mark":"quiet","name":"x"}`))
	f.Add([]byte(`{"v":1,"kind":"bye","time":1,"exit_code":1}`))
	f.Add([]byte(`{"v":1,"kind":"snapshot","id":"X7","time":1764470005.1,"reason":"asked","status":"ok","bytes":5,"took_seconds":0.4,"gil_seconds":0.1,"history_seconds":600,` +
		`"devices":{"0":"GPU-1"},"note":"n","census":{"tensors":1,"bytes":2,"complete":true,"took_seconds":0.1}}`))
	f.Add([]byte(`{"v":1,"kind":"snapshot","id":"X7","time":1,"reason":"oom","status":"refused","error":"too large"}`))
	f.Add([]byte(`{"v":1,"kind":"recording","id":"X7","time":1,"history":"on"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > MaxLine {
			return
		}
		l, err := parse(text)
		if err != nil {
			return
		}
		if l.Kind == "snapshot" || l.Kind == "recording" {
			if len(l.ID) == 0 || len(l.ID) > maxID || len(l.Error) > 2<<10 || len(l.Note) > 2<<10 || len(l.Devices.uuids) > maxDevices || l.Bytes != nil && *l.Bytes >= maxExact {
				t.Fatalf("%+v of %q", l, text)
			}
		}
		if l.Kind == "oom" {
			seen, told := observed(l), excepted(l)
			for _, o := range []*event.Oom{seen.alone(), seen.merge(told), told} {
				if o.Kind == "" || len(o.Text) > 8<<10 {
					t.Fatalf("%v of %q", o, text)
				}
			}
		}
		for _, a := range l.sample().devices {
			if proto.Size(a) == 0 || a.GetAllocatedBytes() >= maxExact || a.GetCompilesTotal() >= maxExact {
				t.Fatalf("%v of %q", a, text)
			}
		}
	})
}

func BenchmarkLineToEvents(b *testing.B) {
	text := []byte(readLine)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		l, err := parse(text)
		if err != nil || len(l.sample().devices) != 2 {
			b.Fatal(err)
		}
	}
}

func u(v uint64) *uint64 { return &v }

func same(t *testing.T, got, want proto.Message) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Errorf("got  %s\nwant %s", prototext.Format(got), prototext.Format(want))
	}
}
