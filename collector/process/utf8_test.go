package process

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
)

// A command line is bytes. One that is no UTF-8 must not keep the events of its process, and of all others, from being encoded.
func TestCommandLineThatIsNoUTF8(t *testing.T) {
	f := bareTree(t)
	f.process(100, 1, 5000, []string{"/usr/bin/python3", "/usr/local/bin/vllm", "serve", "/models/mod\xe8le", "--port", "8000"}, "0::/system.slice/v\xff.service\n", fullStatus)
	s, err := New(f.options())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	events, err := s.Collect(t.Context(), time.Unix(1_790_000_100, 0))
	if err != nil {
		t.Fatal(err)
	}
	models := 0
	for _, e := range events {
		if _, err := proto.Marshal(e); err != nil {
			t.Errorf("%v: %v", e.Worker, err)
		}
		if e.Worker.GetModel() == "/models/mod\uFFFDle" {
			models++
		}
	}
	if models != 1 {
		t.Errorf("%d events of the model, want 1 of %v", models, events)
	}
}
