package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor"
	"lowtide/processor/broker"
)

// MarkCommand is `mark`: a person or a pipeline says what happens, such as a rollout, so that the ends of processes that belong to it are
// no kills and no crash loop.
type MarkCommand struct {
	Kind    string   `arg:"" enum:"deploy,start,end" help:"deploy: processes will be replaced within fifteen minutes; start, end: of an experiment, for the record."`
	Unit    string   `placeholder:"UNIT" help:"Only this unit (container and owner, systemd unit, port-N), as a finding writes it; a name that no process has marks nothing; default: all of the host."`
	Host    []string `placeholder:"NAME" help:"Hosts, by name or as CLUSTER/NAME; default: every host that the stream holds events of."`
	Cluster string   `placeholder:"NAME" help:"Only hosts of this cluster."`
	Note    string   `placeholder:"TEXT" help:"What for; kept with the event."`
	NATS    string   `name:"nats" env:"LOWTIDE_NATS" placeholder:"URL" help:"The broker; default: that of the running 'up'."`
	Data    string   `env:"LOWTIDE_DATA" type:"path" default:"~/.local/share/lowtide" placeholder:"DIR" help:"Folder of the running 'up'."`

	Stdout io.Writer `kong:"-"`
}

const (
	markWait = 30 * time.Second // for all hosts
	maxNote  = 1024             // bytes
)

// Run stores one mark a host and returns once the broker has them all. An error names the hosts that have none.
func (c *MarkCommand) Run(ctx context.Context) error {
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if len(c.Note) > maxNote {
		return &broker.Failure{What: fmt.Sprintf("--note: %d bytes, more than %d", len(c.Note), maxNote), Remedy: "shorten it", Code: 2}
	}
	if c.Unit == c.Kind || len(c.Unit) > maxNote {
		return &broker.Failure{What: fmt.Sprintf("--unit: %q is no unit", event.Shorten(c.Unit, 64)), Remedy: "write it as it stands in a finding, or leave --unit out to mark the whole host", Code: 2}
	}
	conn, js, err := processor.Connect(c.NATS, c.Data, "mark")
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, markWait)
	defer cancel()
	return c.mark(ctx, js, time.Now())
}

func (c *MarkCommand) mark(ctx context.Context, js jetstream.JetStream, now time.Time) error {
	heard, err := heardHosts(ctx, js)
	if err != nil {
		return err
	}
	hosts, err := c.choose(heard)
	if err != nil {
		return err
	}
	var failed []error
	for _, host := range hosts {
		if err := c.publish(ctx, js, host, now); err != nil {
			failed = append(failed, fmt.Errorf("mark %s: %w", host, err))
			continue
		}
		fmt.Fprintf(c.Stdout, "%s  %s %s\n", now.UTC().Format(time.RFC3339), c.Kind, strings.TrimRight(host+" "+c.Unit, " "))
	}
	return errors.Join(failed...)
}

// heardHosts are the hosts, as cluster/name, that the stream holds events of.
func heardHosts(ctx context.Context, js jetstream.JetStream) ([]string, error) {
	stream, err := js.Stream(ctx, event.StreamEvents)
	if err != nil {
		return nil, broker.Explain("open stream "+event.StreamEvents, err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter("lowtide.p.>"))
	if err != nil {
		return nil, broker.Explain("list hosts", err)
	}
	var hosts []string
	for subject := range info.State.Subjects {
		if cluster, name, ok := event.SplitSubject(subject); ok {
			hosts = append(hosts, cluster+"/"+name)
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts), nil
}

// choose refuses a host that nobody has heard: a typo would leave the rollout unmarked.
func (c *MarkCommand) choose(heard []string) ([]string, error) {
	inCluster := slices.DeleteFunc(slices.Clone(heard), func(h string) bool { return c.Cluster != "" && !strings.HasPrefix(h, c.Cluster+"/") })
	if len(c.Host) == 0 {
		if len(inCluster) == 0 {
			return nil, &broker.Failure{What: "no host to mark: the stream holds events of " + listed(heard), Remedy: "start `lowtide collect` there, or check --cluster", Code: 1}
		}
		return inCluster, nil
	}
	var chosen []string
	for _, want := range c.Host {
		found := slices.DeleteFunc(slices.Clone(inCluster), func(h string) bool { return h != want && !strings.HasSuffix(h, "/"+want) })
		switch len(found) {
		case 0:
			return nil, &broker.Failure{What: "--host: " + want + " is not heard; the stream holds events of " + listed(inCluster), Remedy: "check the name with `lowtide status`", Code: 2}
		case 1:
			chosen = append(chosen, found[0])
		default:
			return nil, &broker.Failure{What: "--host: " + want + " is " + listed(found), Remedy: "write it as CLUSTER/NAME", Code: 2}
		}
	}
	return chosen, nil
}

func listed(hosts []string) string {
	const most = 8
	switch {
	case len(hosts) == 0:
		return "no host"
	case len(hosts) > most:
		return strings.Join(hosts[:most], ", ") + fmt.Sprintf(" and %d more", len(hosts)-most)
	}
	return strings.Join(hosts, ", ")
}

func (c *MarkCommand) publish(ctx context.Context, js jetstream.JetStream, host string, now time.Time) error {
	cluster, name, _ := strings.Cut(host, "/")
	mark := c.Unit
	if mark == "" {
		mark = c.Kind
	}
	batch := &event.Batch{Schema: event.Schema, Host: &event.Host{Cluster: cluster, Name: name}, Source: "mark", Producer: rand.Text(), Lane: "urgent", Sequence: 1,
		Events: []*event.Event{{Time: timestamppb.New(now), Mark: &event.Mark{Name: mark, Kind: c.Kind, Note: c.Note}}}}
	data, err := event.EncodeBatch(batch)
	if err != nil {
		return err
	}
	message := &nats.Msg{Subject: event.SubjectFor(cluster, name, "mark"), Data: data}
	if _, err := js.PublishMsg(ctx, message, jetstream.WithMsgID(event.MessageID(name, batch.Producer, batch.Lane, 1))); err != nil {
		return broker.Explain("publish", err)
	}
	return nil
}
