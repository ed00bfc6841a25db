package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

const (
	requestGap   = time.Minute      // between two extra requests to a target
	configPeriod = 10 * time.Minute // until a configuration is told again, and asked for again
	origin       = "info metric"
)

// configuration is what a target has said about how it was started.
type configuration struct {
	asked map[string]string // field → text, from the engine's JSON documents
	round time.Time         // when the first of the documents was asked for
	next  int               // the document whose turn it is
	last  time.Time         // the last extra request
	told  map[int64]told    // by index
}

// told is what was published last.
type told struct {
	text string
	at   time.Time
}

// ask fetches one more document, when its time has come. That one fails is no failure of the target: it answers its metrics, and
// what the document would have said stays absent.
func (s *Source) ask(ctx context.Context, t *target, tick time.Time, scratch *scratch) {
	c, requests := &t.config, t.mapping.table.Requests
	if len(requests) == 0 || !c.last.IsZero() && tick.Sub(c.last) < requestGap {
		return
	}
	if c.next == len(requests) {
		if tick.Sub(c.round) < configPeriod {
			return
		}
		c.next = 0
	}
	if c.next == 0 {
		c.round = tick
	}
	request := requests[c.next]
	c.next++
	c.last = tick
	at := *t.url
	at.Path, at.RawPath = request.Path, ""
	if s.get(ctx, &at, "application/json", maxExtraBody, &scratch.body) != nil {
		return
	}
	var document any
	if json.Unmarshal(scratch.body.Bytes(), &document) != nil {
		return
	}
	if c.asked == nil {
		c.asked = make(map[string]string)
	}
	for field, path := range request.Fields {
		if text, ok := dig(document, path); ok {
			c.asked[field] = text
		}
	}
}

// dig walks a path of keys and list positions to a plain value.
func dig(document any, path string) (string, bool) {
	path, negated := strings.CutPrefix(path, "!")
	for key := range strings.SplitSeq(path, ".") {
		switch at := document.(type) {
		case map[string]any:
			document = at[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(at) {
				return "", false
			}
			document = at[i]
		default:
			return "", false
		}
	}
	switch v := document.(type) {
	case string:
		return v, !negated && !unknown(v)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), !negated
	case bool:
		return strconv.FormatBool(v != negated), true
	}
	return "", false
}

// configure returns a `config` event when what the target says is new, has changed or was told long ago.
func (g *group) configure(c *configuration, tick time.Time) *event.Config {
	body := &event.Config{}
	m := body.ProtoReflect()
	var parts []string
	note := func(of protoreflect.FieldDescriptor, text string) {
		if putText(m, of, text) {
			parts = append(parts, string(of.Name())+"="+text)
		}
	}
	for _, f := range g.m.config {
		if text, ok := g.text(f.rows); ok {
			note(f.of, text)
		}
	}
	for _, name := range sortedKeys(c.asked) {
		if of := configBody().ByName(protoreflect.Name(name)); !m.Has(of) { // what the exposition says is of now
			note(of, c.asked[name])
		}
	}
	if len(parts) == 0 {
		return nil
	}
	slices.Sort(parts)
	text := strings.Join(parts, "\n")
	before := c.told[g.index]
	if since := tick.Sub(before.at); before.text == text && since >= 0 && since < configPeriod {
		return nil
	}
	if c.told == nil {
		c.told = make(map[int64]told)
	}
	c.told[g.index] = told{text: text, at: tick}
	sum := sha256.Sum256([]byte(text))
	body.Origin, body.ConfigHash = origin, hex.EncodeToString(sum[:8])
	return body
}

// putText sets a field from a text. False when the field cannot hold it.
func putText(body protoreflect.Message, of protoreflect.FieldDescriptor, text string) bool {
	const longest = 256 // no setting is longer; what is came from somewhere else
	if unknown(text) || len(text) > longest {
		return false
	}
	switch of.Kind() {
	case protoreflect.StringKind:
		body.Set(of, protoreflect.ValueOfString(strings.ToValidUTF8(text, "?")))
		return true
	case protoreflect.BoolKind:
		v, err := strconv.ParseBool(text)
		if err == nil {
			body.Set(of, protoreflect.ValueOfBool(v))
		}
		return err == nil
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return false
	}
	put(body, of, v)
	return body.Has(of)
}

// stamped is an event of a tick without its body.
func (t *target) stamped(g *group, tick time.Time) *event.Event {
	w := &event.Worker{}
	if t.worker != nil {
		w = proto.CloneOf(t.worker)
	} else {
		w.Unit = t.unit()
	}
	w.Engine = t.mapping.table.Name
	if len(g.models) == 1 {
		w.Model = cut(g.models[0], 256)
	}
	if g.index != noIndex {
		w.EngineIndex = proto.Int64(g.index)
	}
	return &event.Event{Time: timestamppb.New(tick), Worker: w}
}

// unit is what a target without a known process comes back to: its port, with the host where that is another.
func (t *target) unit() string {
	if local(t.url) {
		return t.url.Port()
	}
	return t.url.Host
}

func local(u *url.URL) bool {
	switch u.Hostname() {
	case "localhost", "127.0.0.1", "::1":
		return u.Port() != ""
	}
	return false
}
