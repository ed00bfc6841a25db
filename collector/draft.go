package collector

import (
	"time"

	"github.com/nats-io/nats.go"

	"lowtide/event"
)

// Bounds of one message. NATS refuses more than 1 MiB by default; a snapshot's summary alone may be a quarter of it. A single event is
// never cut.
const (
	maxMessageEvents = 1000
	maxMessageBytes  = 256 << 10
)

// keptRoom is the largest buffer that a lane keeps for what it writes next.
const keptRoom = 64 << 10

// hostName is what messages are counted by. The cluster too: a recording may hold two hosts of one name.
type hostName struct{ cluster, name string }

// draft is a message that is still being written: what the sources of a host have told within the linger. Its events are encoded as they
// come, so that one which cannot be costs no other.
type draft struct {
	name   hostName
	host   *event.Host
	source string
	head   []byte // encoded: what stands before the events
	body   []byte // encoded: the events
	events int
	due    time.Time // when it is sealed at the latest
}

// add writes an event into the draft of its host. The error says why it cannot be encoded. The caller holds the publisher's lock.
func (l *lane) add(source string, e *event.Event, now time.Time) error {
	host := e.GetHost()
	if err := event.ValidateHost(host); err != nil {
		return err
	}
	encoded, err := event.AppendEvent(l.room[:0], e)
	if err != nil {
		return err
	}
	if cap(encoded) <= keptRoom {
		l.room = encoded
	}
	name := hostName{host.Cluster, host.Name}
	d := l.drafts[name]
	if d != nil && (d.host.BootId != host.BootId || d.events >= maxMessageEvents || len(d.head)+len(d.body)+len(encoded) > maxMessageBytes) {
		l.seal(d)
		d = nil
	}
	if d == nil {
		d = &draft{name: name, host: host, due: now.Add(l.publisher.o.Linger), body: l.page}
		if err := l.entitle(d, source); err != nil {
			return err
		}
		l.page, l.drafts[name], l.lingering = nil, d, append(l.lingering, d)
		l.call() // run has to know when it is due
	} else if d.source != source && d.source != event.AllSources {
		if err := l.entitle(d, event.AllSources); err != nil {
			return err
		}
	}
	d.body = append(d.body, encoded...)
	d.events++
	l.bytes += len(encoded)
	return nil
}

// entitle encodes what stands before the events.
func (l *lane) entitle(d *draft, source string) error {
	head, err := event.EncodeBatch(&event.Batch{Schema: event.Schema, Host: d.host, Source: source, Producer: l.publisher.producer, Lane: l.name, Sequence: l.sequences[d.name] + 1})
	if err != nil {
		return err
	}
	l.bytes += len(head) - len(d.head)
	d.source, d.head = source, head
	return nil
}

// seal makes the message and queues it. The caller holds the publisher's lock.
func (l *lane) seal(d *draft) {
	delete(l.drafts, d.name)
	l.bytes -= len(d.head) + len(d.body) // the message's from now on
	l.sequences[d.name]++
	msg := nats.NewMsg(event.SubjectFor(d.name.cluster, d.name.name, d.source))
	msg.Header.Set(nats.MsgIdHdr, event.MessageID(event.HostKey(d.host), l.publisher.producer, l.name, l.sequences[d.name]))
	msg.Data = append(append(make([]byte, 0, len(d.head)+len(d.body)), d.head...), d.body...)
	if cap(d.body) <= keptRoom {
		l.page = d.body[:0]
	}
	d.body = nil // it stands in lingering until its time is over
	l.push(&message{host: d.host, events: d.events, msg: msg})
}

// ripen seals what has lingered long enough, and returns how long until the next has; zero where nothing lingers.
func (l *lane) ripen(now time.Time) time.Duration {
	l.publisher.mu.Lock()
	defer l.publisher.mu.Unlock()
	for len(l.lingering) > 0 {
		d := l.lingering[0]
		if l.drafts[d.name] == d {
			if wait := d.due.Sub(now); wait > 0 {
				return wait
			}
			l.seal(d)
		}
		l.lingering = l.lingering[1:]
	}
	l.lingering = nil
	return 0
}

// flush seals whatever lingers, in the order in which it began to. The caller holds the publisher's lock.
func (l *lane) flush() {
	for _, d := range l.lingering {
		if l.drafts[d.name] == d {
			l.seal(d)
		}
	}
	clear(l.lingering)
	l.lingering = l.lingering[:0]
}
