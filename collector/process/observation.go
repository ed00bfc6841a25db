package process

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// observation is what /proc tells about a process beside its numbers.
type observation struct {
	pid       int
	stat      stat
	raw       string // command line as it was read
	words     words
	matches   bool
	place     place
	top       bool   // first process of its pid namespace
	network   string // namespace, empty where it may not be seen
	rank      *int64 // of its environment
	ancestors []int  // nearest first, when it was first seen: an orphan's are lost
}

// mostAncestors is how far up a tree is looked.
const mostAncestors = 16

// reader reads processes below one /proc. It is not safe for concurrent use: everyone who reads has their own.
type reader struct {
	root  string
	match *regexp.Regexp
	self  int // the collector, 0 when it is not below this /proc
	files files
}

func (r *reader) path(pid int, name string) string {
	return r.root + "/" + strconv.Itoa(pid) + "/" + name
}

func (r *reader) stat(pid int) (stat, error) {
	text, err := r.files.read(r.path(pid, "stat"), mostStat)
	if err != nil {
		return stat{}, fmt.Errorf("read stat: %w", err)
	}
	return parseStat(text)
}

func (r *reader) line(pid int) (string, error) {
	text, err := r.files.read(r.path(pid, "cmdline"), mostLine)
	if err != nil {
		return "", fmt.Errorf("read command line: %w", err)
	}
	return string(text), nil
}

// glance reads what decides whether a process matters: its stat and its command line.
func (r *reader) glance(pid int) (*observation, error) {
	s, err := r.stat(pid)
	if err != nil {
		return nil, err
	}
	o := &observation{pid: pid, stat: s}
	if s.kernel || s.dead() {
		return o, nil
	}
	raw, err := r.line(pid)
	if err != nil {
		return nil, err
	}
	r.name(o, raw)
	return o, nil
}

// name takes in a command line, new or changed.
func (r *reader) name(o *observation, raw string) {
	o.raw = raw
	line := parseLine(strings.ToValidUTF8(raw, "\uFFFD")) // it is bytes, and an event's strings are not
	o.words = parseWords(line)
	o.matches = len(line) > 0 && r.match.MatchString(joined(line))
}

func joined(line []string) string {
	n := len(line)
	for _, word := range line {
		n += len(word)
	}
	text := make([]byte, 0, n)
	for i, word := range line {
		if i > 0 {
			text = append(text, ' ')
		}
		text = append(text, word...)
	}
	return string(text)
}

// detail reads the rest about a process that matters.
func (r *reader) detail(o *observation) {
	if text, err := r.files.read(r.path(o.pid, "cgroup"), mostCgroup); err == nil {
		o.place = parsePlace(parseGroups(strings.ToValidUTF8(string(text), "\uFFFD")))
	}
	if text, err := r.files.read(r.path(o.pid, "status"), mostStatus); err == nil {
		o.top = firstOfNamespace(text)
	}
	o.network, _ = os.Readlink(r.path(o.pid, "ns/net"))
	r.environ(o)
}

// environ reads the rank of a process whose title does not tell it.
func (r *reader) environ(o *observation) {
	w := o.words
	o.rank = nil
	if w.tp != nil || w.pp != nil || w.role != "" && w.role != "worker" && !w.combined {
		return
	}
	if text, err := r.files.read(r.path(o.pid, "environ"), mostEnviron); err == nil {
		o.rank = rankOf(text)
	}
}

// climb reads the ancestors of a process and notes them in it. It stops at the collector, at the border of a container and below
// programs that run other people's. Own is true when the collector started the process.
func (r *reader) climb(o *observation) (ancestors []*observation, own bool) {
	at := o
	for range mostAncestors {
		parent := at.stat.parent
		if parent <= 0 || at.top || slices.Contains(o.ancestors, parent) {
			break
		}
		if parent == r.self {
			return nil, true
		}
		p, err := r.glance(parent)
		if err != nil || p.stat.kernel || p.words.host || p.stat.ticks > at.stat.ticks {
			break // a parent that is younger than its child is another process under its pid
		}
		r.detail(p)
		if p.place.container != o.place.container {
			break
		}
		o.ancestors = append(o.ancestors, parent)
		ancestors = append(ancestors, p)
		at = p
	}
	// Everybody's ancestors are the tail of this list.
	for i, p := range ancestors {
		p.ancestors = o.ancestors[i+1:]
	}
	return ancestors, own
}

// uptime is the time since boot in ticks: unlike the wall clock it never steps.
func (r *reader) uptime(boot, tick time.Time) uint64 {
	if text, err := r.files.read(filepath.Join(r.root, "uptime"), 64); err == nil {
		end := 0
		for end < len(text) && text[end] != ' ' {
			end++
		}
		if seconds, err := strconv.ParseFloat(string(text[:end]), 64); err == nil && seconds >= 0 && seconds < 1e10 {
			return uint64(seconds * ticksPerSecond)
		}
	}
	return uint64(max(0, tick.Sub(boot).Seconds()) * ticksPerSecond)
}
