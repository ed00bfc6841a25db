package snapshot

import (
	"strings"
	"testing"
)

func TestCut(t *testing.T) {
	for _, c := range []struct {
		path, want string
		whose      kin
	}{
		{"/home/x/venv/lib/python3.11/site-packages/vllm/worker.py", "vllm/worker.py", library},
		{"/srv/worker/worker.py", "worker/worker.py", own},
		{"/usr/local/lib/python3.12/dist-packages/torch/nn/modules/linear.py", "torch/nn/modules/linear.py", plumbing},
		{"/usr/lib/python3.12/site-packages/triton/runtime/jit.py", "triton/runtime/jit.py", plumbing},
		{"/opt/app/.venv/lib/python3.11/site-packages/flash_attn-2.5-py3.11.egg/flash_attn/ops.py", "flash_attn/ops.py", library},
		{"/home/alice/.pyenv/versions/3.11.7/lib/python3.11/asyncio/base_events.py", "asyncio/base_events.py", plumbing},
		{"/usr/lib/python3.13t/threading.py", "threading.py", plumbing},
		{"/home/alice/run.py", "run.py", own},
		{"/home/alice/serve/engine/cache.py", "engine/cache.py", own},
		{"/Users/alice/engine/cache.py", "engine/cache.py", own},
		{"/mnt/nfs/home/alice/cache.py", "cache.py", own},
		{`C:\Users\alice\engine\cache.py`, "engine/cache.py", own},
		{"/root/serve.py", "root/serve.py", own},
		{"serve.py", "serve.py", own},
		{"/tmp/torchinductor_alice/ab/cabcd.py", "torchinductor/cabcd.py", plumbing},
		{"/home/alice/.cache/vllm/torch_compile_cache/0123/rank_0/inner.py", "torch_compile_cache/inner.py", plumbing},
		{"/home/alice/.local/bin/vllm", "bin/vllm", plumbing},
		{"/opt/pytorch/pytorch/c10/cuda/CUDACachingAllocator.cpp", "cuda/CUDACachingAllocator.cpp", plumbing},
		{"??", "??", plumbing},
		{"", "", plumbing},
		{"<frozen runpy>", "<frozen runpy>", plumbing},
		{"<doctest /home/alice/x.py>", "x.py>", plumbing},
		{"/srv/\x1b[31mred/a\nb.py", "[31mred/ab.py", own},
	} {
		if got, whose := cut(c.path); got != c.want || whose != c.whose {
			t.Errorf("cut(%q) = %q, %d; want %q, %d", c.path, got, whose, c.want, c.whose)
		}
	}
	if got, _ := cut("/srv/" + strings.Repeat("é", 400) + "/" + strings.Repeat("é", 400)); len(got) > maxFile {
		t.Errorf("%d bytes are kept of a file's name", len(got))
	}
	if got, _ := (Frame{Name: strings.Repeat("f", 5000), File: "/srv/app/a.py", Line: 7}).text(); got != "app/a.py:7 "+strings.Repeat("f", maxFunction) {
		t.Errorf("a long function is %q", got)
	}
	if got, whose := (Frame{Name: "c10::cuda::malloc", File: "??"}).text(); got != "?? c10::cuda::malloc" || whose != plumbing {
		t.Errorf("a native frame is %q, %d", got, whose)
	}
}

func TestOwnFramesComeFirst(t *testing.T) {
	const torch, vllm, std = "/usr/lib/python3.12/site-packages/torch/nn/linear.py", "/usr/lib/python3.12/site-packages/vllm/model.py", "/usr/lib/python3.12/threading.py"
	for _, c := range []struct{ name, stack, want string }{
		{"own frames behind torch", torch + " /srv/app/leak.py " + std, "app/leak.py threading.py"},
		{"own frames behind an engine", torch + " " + vllm + " /srv/app/leak.py", "app/leak.py"},
		{"an engine without own frames", torch + " " + vllm + " " + std, "vllm/model.py threading.py"},
		{"an engine behind its own command", torch + " " + vllm + " /usr/local/bin/vllm", "vllm/model.py bin/vllm"},
		{"nothing but torch", torch + " " + std, "torch/nn/linear.py threading.py"},
		{"native frames", "/build/c10/Allocator.cpp ?? /srv/app/leak.py", "app/leak.py"},
		{"deep", strings.Repeat(torch+" ", 30) + "/a/b/1.py /a/b/2.py /a/b/3.py /a/b/4.py /a/b/5.py /a/b/6.py /a/b/7.py /a/b/8.py /a/b/9.py",
			"b/1.py b/2.py b/3.py b/4.py b/5.py b/6.py b/7.py b/8.py"},
	} {
		s := &Snapshot{Frames: make([]Frame, 1), Stacks: []Stack{nil, nil}}
		for i, file := range strings.Fields(c.stack) {
			s.Frames = append(s.Frames, Frame{Name: "f", File: file})
			s.Stacks[1] = append(s.Stacks[1], uint32(i+1))
		}
		var got []string
		for _, frame := range split(newPlaces(s).key(1)) {
			got = append(got, strings.TrimSuffix(strings.TrimSuffix(frame, " f"), ":0"))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", c.name, strings.Join(got, " "), c.want)
		}
	}
}

// Two stacks that differ only below the program's own frames are one place.
func TestStacksAreGroupedByOwnFrames(t *testing.T) {
	s := &Snapshot{Frames: []Frame{{}, {"empty", "/x/site-packages/torch/a.py", 1}, {"zeros", "/x/site-packages/torch/b.py", 2}, {"keep", "/srv/app/leak.py", 3}},
		Stacks: []Stack{nil, {1, 3}, {2, 3}}, Segments: []Segment{{Total: 4096, Blocks: []Block{
			{Address: 0, Size: 1024, State: Live, Stack: 1}, {Address: 1024, Size: 512, State: Live, Stack: 2}, {Address: 1536, Size: 512, State: Pending, Stack: 2}, {Address: 2048, Size: 512, State: Live, Stack: 77}}}}}
	c := only(t, s)
	if len(c.holders) != 1 || c.holders[0].key != "app/leak.py:3 keep" || c.holders[0].live != 1536 || c.holders[0].pending != 512 || c.holders[0].blocks != 3 {
		t.Errorf("%d places, the first %+v", len(c.holders), c.holders[0])
	}
	if c.bare.live != 512 {
		t.Errorf("%d bytes without a stack; a stack that does not exist is none", c.bare.live)
	}
}
