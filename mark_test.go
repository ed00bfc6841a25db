package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor/broker/brokertest"
)

// What the judge would take for the whole host, or refuse, is no unit.
func TestMarkRefusesWhatIsNoUnit(t *testing.T) {
	for _, unit := range []string{"deploy", strings.Repeat("u", maxNote+1)} {
		err := (&MarkCommand{Kind: "deploy", Unit: unit, NATS: "nats://127.0.0.1:1"}).Run(t.Context())
		var coded interface{ ExitCode() int }
		if !errors.As(err, &coded) || coded.ExitCode() != 2 || !strings.Contains(err.Error(), "--unit") {
			t.Errorf("%.20s: %v", unit, err)
		}
	}
}

// A rollout of one unit is marked on the hosts that are meant, and a host that nobody has heard is refused.
func TestMark(t *testing.T) {
	_, _, js := brokertest.Start(t)
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, host := range []string{"gpu-1", "gpu-2"} {
		batch := &event.Batch{Schema: event.Schema, Host: &event.Host{Cluster: "prod", Name: host}, Source: "machine", Producer: "p", Lane: "samples", Sequence: 1,
			Events: []*event.Event{{Time: timestamppb.New(now), Machine: &event.Machine{DriverVersion: "580"}}}}
		data, err := event.EncodeBatch(batch)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: event.SubjectFor("prod", host, "machine"), Data: data}); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name    string
		command MarkCommand
		want    []string // hosts; nil: refused
		says    string
	}{
		{"all", MarkCommand{Kind: "deploy"}, []string{"prod/gpu-1", "prod/gpu-2"}, ""},
		{"one unit of one host", MarkCommand{Kind: "deploy", Host: []string{"gpu-2"}, Unit: "vllm.service", Note: "v2"}, []string{"prod/gpu-2 vllm.service"}, ""},
		{"a typo", MarkCommand{Kind: "deploy", Host: []string{"gpu-3"}}, nil, "gpu-3 is not heard; the stream holds events of prod/gpu-1, prod/gpu-2"},
		{"another cluster", MarkCommand{Kind: "deploy", Cluster: "lab"}, nil, "no host to mark"},
	} {
		var out bytes.Buffer
		test.command.Stdout = &out
		err := test.command.mark(t.Context(), js, now)
		if test.want == nil {
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%s: %v", test.name, err)
			}
			var hinted interface{ Hint() string }
			if !errors.As(err, &hinted) || hinted.Hint() == "" {
				t.Errorf("%s: no remedy", test.name)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		for _, host := range test.want {
			if !strings.Contains(out.String(), "deploy "+host+"\n") {
				t.Errorf("%s: said %q", test.name, out.String())
			}
		}
	}
	stream, err := js.Stream(t.Context(), event.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	last, err := stream.GetLastMsgForSubject(t.Context(), "lowtide.p.*.prod.gpu-2.mark")
	if err != nil {
		t.Fatal(err)
	}
	batch, _, err := event.DecodeBatch("", last.Data)
	if err != nil || len(batch.Events) != 1 || batch.Events[0].Mark.GetName() != "vllm.service" || batch.Events[0].Mark.GetNote() != "v2" {
		t.Errorf("stored %v (%v)", batch, err)
	}
}
