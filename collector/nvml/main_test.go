package nvml

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// The test binary is also each of the children that the tests start: `test.binary child BEHAVIOUR`.
func TestMain(m *testing.M) {
	if len(os.Args) < 3 || os.Args[1] != "child" || os.Getenv(childMark) == "" {
		os.Exit(m.Run())
	}
	if err := behave(os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		unix.Exit(1)
	}
	unix.Exit(0) // os.Exit of the race detector sleeps a second, which is Close's patience
}

func behave(behaviour string, args []string) error {
	out := &frameWriter{out: os.Stdout}
	switch behaviour {
	case "library":
		c := new(ChildCommand)
		for _, a := range args {
			fmt.Sscanf(a, "--library=%s", &c.Library)
		}
		return c.Run(context.Background())
	case "answer":
		return serve(os.Stdin, out, &scripted{uuids: []string{"GPU-a"}})
	case "hang":
		return serve(os.Stdin, out, &scripted{uuids: []string{"GPU-a", "GPU-b"}, hang: "GPU-b"})
	case "deaf": // it does not even end with its input
		out.write(hello, &event.Batch{Schema: protocol})
		block()
	case "garbage":
		if err := out.write(hello, &event.Batch{Schema: protocol}); err != nil {
			return err
		}
		bufio.NewReader(os.Stdin).ReadString('\n')
		os.Stdout.WriteString("NVRM: this line was meant for somebody else\n")
		io.Copy(io.Discard, os.Stdin)
		return nil
	case "die":
		if err := out.write(hello, &event.Batch{Schema: protocol}); err != nil {
			return err
		}
		bufio.NewReader(os.Stdin).ReadString('\n')
		return fmt.Errorf("symbol lookup error: undefined symbol: nvmlDeviceGetNothing")
	}
	return fmt.Errorf("no behaviour %q", behaviour)
}

// scripted is a child's cards without a library.
type scripted struct {
	uuids []string
	hang  string // the call to this card does not return
	fatal []failure
	emit  func(*event.Event)
}

func (s *scripted) open(emit func(*event.Event)) []failure { s.emit = emit; return s.fatal }

func (s *scripted) sample(r request, out *frameWriter) (failures, fatal []failure, err error) {
	for _, uuid := range s.uuids {
		skip := false
		for _, other := range r.skip {
			skip = skip || uuid == other
		}
		if skip {
			continue
		}
		if err := out.ask(uuid); err != nil {
			return nil, nil, err
		}
		if uuid == s.hang {
			block()
		}
		if err := out.add(device, cardBatch(uuid, timestamppb.New(r.tick))); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, nil
}

func (s *scripted) close() {}

// block holds its thread in a system call, as a call of the library does.
func block() {
	for {
		unix.Ppoll(nil, nil, nil)
	}
}

func cardBatch(uuid string, at *timestamppb.Timestamp) *event.Batch {
	return &event.Batch{Source: uuid, Events: []*event.Event{
		{Time: at, Gpu: &event.Gpu{Uuid: uuid, UsedBytes: event.Ptr(uint64(1 << 30))}},
		{Time: at, Worker: &event.Worker{Pid: 4242}, GpuProcess: &event.GpuProcess{GpuUuid: uuid, UsedBytes: event.Ptr(uint64(1 << 29))}},
	}}
}
