package main

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor/broker/brokertest"
)

// sender publishes what a collector of prod/NAME would, in turn as the source allocator alone and in a message that it shares.
func sender(t *testing.T, conn *nats.Conn, name string) func(...*event.Event) {
	sequence := uint64(0)
	return func(events ...*event.Event) {
		t.Helper()
		sequence++
		source := []string{"allocator", event.AllSources}[sequence%2]
		data, err := event.EncodeBatch(&event.Batch{Schema: event.Schema, Host: &event.Host{Cluster: "prod", Name: name}, Source: source, Producer: "p", Lane: "samples", Sequence: sequence, Events: events})
		if err != nil {
			t.Error(err)
		}
		if _, err := conn.Request(event.SubjectFor("prod", name, source), data, 20*time.Second); err != nil { // the stream acknowledges
			t.Error(err)
		}
	}
}

// A person asks, the collector takes its time, and what it finds is printed; or the reason why there is nothing, and what would help.
func TestTakeSnapshot(t *testing.T) {
	_, conn, js := brokertest.Start(t)
	now := timestamppb.Now()
	who := &event.Worker{Pid: 41, StartTicks: event.Ptr(uint64(77)), Unit: "vllm.service", Rank: event.Ptr(int64(1))}
	send := sender(t, conn, "gpu-1")
	send(&event.Event{Time: now, Worker: who, Allocator: &event.Allocator{AllocatedBytes: event.Ptr(uint64(1))}})
	accepted := event.AskReply{Status: event.AskAccepted, ID: "token"}
	snapshot := &event.Snapshot{GpuUuid: "GPU-7", Reason: "asked", ReservedBytes: event.Ptr(uint64(3 << 30)), LiveBytes: event.Ptr(uint64(2 << 30)), Fragmentation: event.Ptr(0.25),
		File: "gpu-1-41-20261130T120000Z-asked.pickle", FileBytes: event.Ptr(uint64(1 << 20)), TookSeconds: event.Ptr(0.5), Lacking: []string{"stacks: history was off"},
		GrowthSeconds: event.Ptr(600.0), Stacks: []*event.SnapshotStack{{Frames: []string{"serve.py:7 keep"}, LiveBytes: event.Ptr(uint64(1 << 30)), Blocks: event.Ptr(uint64(12)), GrowthBytes: event.Ptr(int64(5 << 20))}}}
	other := &event.Event{Time: now, Worker: &event.Worker{Pid: 42}, Snapshot: &event.Snapshot{Reason: "asked", LiveBytes: event.Ptr(uint64(1))}}
	failed := &event.Event{Time: now, Source: &event.SourceStatus{Name: "evidence", Status: "timeout", Error: "snapshot token of pid 41 (asked): the probe has not answered; hint: it may be older"}}
	for _, c := range []struct {
		name    string
		command TakeCommand
		reply   event.AskReply
		result  []*event.Event
		want    event.AskRequest // what the collector heard; zero for nothing
		says    []string         // of the output, or the error
		hint    string
		refuses bool
	}{
		{name: "by pid", command: TakeCommand{Worker: "41", History: time.Millisecond, Census: true}, reply: accepted,
			result: []*event.Event{other, {Time: now, Worker: who, Snapshot: snapshot}}, want: event.AskRequest{Ask: "snapshot", PID: 41, Reason: "asked", HistorySeconds: 0.001, Census: true},
			says: []string{"prod/gpu-1 pid 41 GPU-7", "reserved       3 GiB", "live           2 GiB", "fragmentation  25 %", "1 GiB in 12 blocks (+5 MiB in 600 s)", "serve.py:7 keep", "not known: stacks: history was off",
				"held up for 0.5 s", "gpu-1-41-20261130T120000Z-asked.pickle (1 MiB) on prod/gpu-1"}},
		{name: "by slot", command: TakeCommand{Worker: "prod/gpu-1/vllm.service/0/1"}, reply: accepted, result: []*event.Event{{Time: now, Worker: who, Snapshot: snapshot}},
			want: event.AskRequest{Ask: "snapshot", PID: 41, StartTicks: event.Ptr(uint64(77)), Reason: "asked"}, says: []string{"prod/gpu-1 pid 41"}},
		{name: "an unknown slot", command: TakeCommand{Worker: "prod/gpu-1/vllm.service/0/2"}, refuses: true, says: []string{"prod/gpu-1/vllm.service/0/2", "have: prod/gpu-1/vllm.service/0/1"}, hint: "the probe"},
		{name: "an unknown host", command: TakeCommand{Worker: "41", Host: "prod/gpu-9"}, refuses: true, says: []string{"prod/gpu-9 is not heard"}, hint: "lowtide status"},
		{name: "no such process", command: TakeCommand{Worker: "43"}, reply: event.AskReply{Status: event.AskUnknown, Error: "no such process: pid 43; hint: look"}, refuses: true,
			want: event.AskRequest{Ask: "snapshot", PID: 43, Reason: "asked"}, says: []string{"prod/gpu-1: no such process: pid 43"}, hint: "look"},
		{name: "no answer of the probe", command: TakeCommand{Worker: "41"}, reply: accepted, result: []*event.Event{failed}, refuses: true, want: event.AskRequest{Ask: "snapshot", PID: 41, Reason: "asked"},
			says: []string{"has not answered"}, hint: "it may be older"},
		{name: "nothing comes", command: TakeCommand{Worker: "41", Wait: 100 * time.Millisecond}, reply: accepted, result: []*event.Event{other}, refuses: true,
			want: event.AskRequest{Ask: "snapshot", PID: 41, Reason: "asked"}, says: []string{"has not come"}, hint: "--wait"},
	} {
		t.Run(c.name, func(t *testing.T) {
			heard := make(chan event.AskRequest, 1)
			subscription, err := conn.Subscribe("lowtide.ask.prod.gpu-1", func(m *nats.Msg) {
				var r event.AskRequest
				if err := json.Unmarshal(m.Data, &r); err != nil {
					t.Error(err)
				}
				text, err := json.Marshal(c.reply)
				if err != nil {
					t.Error(err)
				}
				if err := m.Respond(text); err != nil {
					t.Error(err)
				}
				if c.result != nil {
					send(c.result...)
				}
				heard <- r
			})
			if err != nil {
				t.Fatal(err)
			}
			defer subscription.Unsubscribe()
			var out, messages bytes.Buffer
			c.command.Stdout, c.command.Stderr = &out, &messages
			if c.command.Wait == 0 {
				c.command.Wait = 20 * time.Second
			}
			err = c.command.take(t.Context(), conn, js)
			text := out.String()
			if c.refuses {
				var hinted interface{ Hint() string }
				if err == nil || !errors.As(err, &hinted) || !strings.Contains(hinted.Hint(), c.hint) {
					t.Fatalf("error %v, hint %v", err, hinted)
				}
				text = err.Error()
			} else if err != nil {
				t.Fatal(err)
			}
			for _, want := range c.says {
				if !strings.Contains(text, want) {
					t.Errorf("%q is not in\n%s", want, text)
				}
			}
			var got event.AskRequest
			if c.want.Ask != "" {
				got = <-heard
			}
			if !reflect.DeepEqual(got, c.want) || len(heard) != 0 {
				t.Errorf("heard %+v, want %+v", got, c.want)
			}
		})
	}
	// A host without evidence has nobody who listens.
	sender(t, conn, "gpu-2")(&event.Event{Time: now, Worker: who, Allocator: &event.Allocator{AllocatedBytes: event.Ptr(uint64(1))}})
	for host, says := range map[string]string{"gpu-2": "evidence is off there", "": "which host?"} {
		err := (&TakeCommand{Worker: "41", Host: host, Wait: time.Second, Stderr: new(bytes.Buffer)}).take(t.Context(), conn, js)
		var hinted interface{ Hint() string }
		if err == nil || !strings.Contains(err.Error(), says) || !errors.As(err, &hinted) || hinted.Hint() == "" {
			t.Errorf("--host %q: %v", host, err)
		}
	}
}
