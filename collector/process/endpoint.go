package process

import (
	"bufio"
	"cmp"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Endpoint is a socket on which an engine may serve its metrics.
type Endpoint struct {
	PID      int            // who listens, as this host sees it
	AddrPort netip.AddrPort // as the collector reaches it
	Engine   string         // empty where it is not known
	Model    string
	Unit     string
}

// mostPorts is how many sockets of one process are worth asking.
const mostPorts = 4

// Endpoints returns where engines listen, in the order of units and addresses. Only front ends and engines of one process are
// named: what listens in a core or rank talks to its siblings, and must not be asked. Nil means that the roster has not looked
// yet. The caller owns the answer.
func (r *Roster) Endpoints() []Endpoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.endpoints)
}

// candidates are the sockets of the living that may be an endpoint, with who has them. Under the roster's lock.
func (r *Roster) candidates() []candidate {
	var found []candidate
	for _, l := range r.living {
		i := l.inst
		if i == nil || !i.serving || !l.seen.words.serves && (l != i.root || l.seen.words.engine != "" || !l.seen.matches || l.seen.words.launcher) {
			continue
		}
		ports := r.ports(l)
		named := slices.DeleteFunc(slices.Clone(ports), func(s listener) bool {
			at := portName(s.at.Port())
			return at != first(l.seen.words.port, i.port) && !(i.engine == "triton" && at == metricsPort)
		})
		if i.engine == "triton" { // the API's port has no metrics
			named = slices.DeleteFunc(named, func(s listener) bool { return portName(s.at.Port()) != metricsPort })
		}
		if len(named) > 0 {
			ports = named
		}
		for _, s := range ports[:min(len(ports), mostPorts)] {
			// A child inherits the socket of the front end that opened it: the root speaks for both.
			if at := slices.IndexFunc(found, func(c candidate) bool { return c.socket.inode == s.inode }); at >= 0 {
				if l == i.root {
					found[at].life = l
				}
				continue
			}
			found = append(found, candidate{l, s, Endpoint{Engine: i.engine, Model: i.model(), Unit: i.unit()}})
		}
	}
	return found
}

type candidate struct {
	life   *life
	socket listener
	Endpoint
}

// reach finds the address of each socket as the collector sees it. Sockets that cannot be reached are left out.
func (s *Source) reach(found []candidate) []Endpoint {
	var ends []Endpoint
	for _, c := range found {
		at := c.socket.at.Addr()
		namespace := c.life.seen.network
		switch ours := namespace == "" || s.network == "" || namespace == s.network; {
		case ours && at.IsUnspecified():
			at = netip.AddrFrom4([4]byte{127, 0, 0, 1}) // an IPv6 wildcard takes IPv4 as well, but where somebody forbids it
		case ours:
		case at.IsLoopback():
			continue
		case at.IsUnspecified():
			if at = s.addressOf(c.life.pid, namespace); !at.IsValid() {
				continue
			}
		}
		e := c.Endpoint
		e.PID, e.AddrPort = c.life.pid, netip.AddrPortFrom(at, c.socket.at.Port())
		ends = append(ends, e)
	}
	slices.SortFunc(ends, func(a, b Endpoint) int {
		return cmp.Or(cmp.Compare(a.Unit, b.Unit), a.AddrPort.Compare(b.AddrPort), cmp.Compare(a.PID, b.PID))
	})
	return ends
}

// addressOf finds the address that a network namespace has for the outside. It is asked once per namespace: a pod keeps its own.
func (s *Source) addressOf(pid int, namespace string) netip.Addr {
	if at, ok := s.addresses[namespace]; ok {
		return at
	}
	root := s.o.ProcRoot + "/" + strconv.Itoa(pid) + "/net/"
	var at netip.Addr
	if file, err := os.Open(root + "fib_trie"); err == nil {
		at = parseTrie(file)
		file.Close()
	}
	if !at.IsValid() {
		if file, err := os.Open(root + "if_inet6"); err == nil {
			at = parseInterfaces(file)
			file.Close()
		}
	}
	if at.IsValid() {
		if len(s.addresses) >= mostLives {
			clear(s.addresses)
		}
		s.addresses[namespace] = at
	}
	return at
}

// mostTrie bounds what is read of a routing table: a node with many routes has a long one.
const mostTrie = 1 << 20

// parseTrie returns the first address of /proc/net/fib_trie's leaves that is local and no loopback: a line "|-- 10.1.2.3" followed
// by "/32 host LOCAL".
func parseTrie(from io.Reader) netip.Addr {
	var leaf netip.Addr
	lines := bufio.NewScanner(io.LimitReader(from, mostTrie))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if text, ok := strings.CutPrefix(line, "|-- "); ok {
			leaf, _ = netip.ParseAddr(text)
			continue
		}
		if line == "/32 host LOCAL" && leaf.Is4() && !leaf.IsLoopback() && !leaf.IsUnspecified() && !leaf.IsLinkLocalUnicast() {
			return leaf
		}
	}
	return netip.Addr{}
}

// parseInterfaces returns the first global address of /proc/net/if_inet6: 32 digits, then index, prefix length and, as 00, the
// global scope.
func parseInterfaces(from io.Reader) netip.Addr {
	lines := bufio.NewScanner(io.LimitReader(from, mostTrie))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || len(fields[0]) != 32 || fields[3] != "00" {
			continue
		}
		var text strings.Builder
		for i := 0; i < 32; i += 4 {
			if i > 0 {
				text.WriteByte(':')
			}
			text.WriteString(fields[0][i : i+4])
		}
		if at, err := netip.ParseAddr(text.String()); err == nil && at.Is6() && !at.IsLoopback() {
			return at
		}
	}
	return netip.Addr{}
}
