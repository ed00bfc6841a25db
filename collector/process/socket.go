package process

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
)

// The states of /proc/net/tcp that matter.
const (
	listening = "0A"
	closeWait = "08" // the other end has closed, this process has not
)

// mostSockets bounds the lines that are read of one table.
const mostSockets = 1 << 20

// listener is a socket that takes connections.
type listener struct {
	inode uint64
	at    netip.AddrPort
}

// table is what one network namespace's TCP tables say, by inode.
type table struct {
	listens map[uint64]netip.AddrPort
	waiting map[uint64]bool // to be closed
	round   uint32          // in which it was read
	err     error
}

// tables holds each network namespace's TCP tables, which are read once per tick at most, however many processes share them. The
// kernel walks its whole hash of connections for each read, several milliseconds on a large host whatever stands in it, so that
// only a young process, which may not listen yet, has them read at every tick; else they are read at each sixth.
type tables struct {
	root        string
	byNamespace map[string]*table
	round       uint32
}

// tableRounds is for how many ticks a table holds.
const tableRounds = 6

// next begins a tick, and forgets namespaces that nobody was in for long.
func (t *tables) next() {
	t.round++
	for namespace, known := range t.byNamespace {
		if t.round-known.round > 2*tableRounds {
			delete(t.byNamespace, namespace)
		}
	}
}

// of returns the table that a process sees.
func (t *tables) of(pid int, namespace string, young bool) *table {
	if namespace == "" {
		namespace = "of " + strconv.Itoa(pid) // may not be seen: its own table
	}
	known := t.byNamespace[namespace]
	if known != nil && (known.round == t.round || !young && t.round-known.round < tableRounds) {
		return known
	}
	fresh := &table{listens: make(map[uint64]netip.AddrPort), waiting: make(map[uint64]bool), round: t.round}
	t.byNamespace[namespace] = fresh
	fresh.err = fresh.read(t.root + "/" + strconv.Itoa(pid) + "/net/tcp")
	if err := fresh.read(t.root + "/" + strconv.Itoa(pid) + "/net/tcp6"); err != nil && !errors.Is(err, os.ErrNotExist) && fresh.err == nil {
		fresh.err = err // absent only means that IPv6 is off
	}
	return fresh
}

func (t *table) read(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read sockets: %w", err)
	}
	defer file.Close()
	if err := t.parse(file); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// parse reads lines such as "0: 0100007F:1F40 00000000:0000 0A … inode …". Lines of other states are skipped unread.
func (t *table) parse(from io.Reader) error {
	lines := bufio.NewReaderSize(from, 32<<10)
	for range mostSockets {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 {
			t.line(line)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, bufio.ErrBufferFull): // no table has such lines
		case err != nil:
			return err
		}
	}
	return nil
}

func (t *table) line(line []byte) {
	var fields [10][]byte
	n := 0
	for word := range bytes.FieldsSeq(line) {
		if n == len(fields) {
			break
		}
		fields[n] = word
		n++
	}
	if n < len(fields) || string(fields[3]) != listening && string(fields[3]) != closeWait {
		return
	}
	inode, err := strconv.ParseUint(string(fields[9]), 10, 64)
	if err != nil || inode == 0 {
		return
	}
	if string(fields[3]) == closeWait {
		t.waiting[inode] = true
	} else if at, ok := parseAddress(fields[1]); ok {
		t.listens[inode] = at
	}
}

// parseAddress reads 0100007F:1F40, whose address is in words of 32 bits in the host's order: little-endian on everything that
// GPUs are served from.
func parseAddress(text []byte) (netip.AddrPort, bool) {
	address, port, ok := bytes.Cut(text, []byte(":"))
	if !ok || len(address) != 8 && len(address) != 32 {
		return netip.AddrPort{}, false
	}
	number, err := strconv.ParseUint(string(port), 16, 16)
	if err != nil {
		return netip.AddrPort{}, false
	}
	raw := make([]byte, len(address)/2)
	if _, err := hex.Decode(raw, address); err != nil {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		binary.BigEndian.PutUint32(raw[i:], binary.LittleEndian.Uint32(raw[i:]))
	}
	at, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(at.Unmap(), uint16(number)), true
}

// ephemeral returns the first port that the kernel gives out by itself: a socket from there on has another one after a restart.
func ephemeral(root string) uint16 {
	const usual = 32768
	text, err := os.ReadFile(root + "/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return usual
	}
	fields := bytes.Fields(text)
	if len(fields) == 0 {
		return usual
	}
	first, err := strconv.ParseUint(string(fields[0]), 10, 16)
	if err != nil || first == 0 {
		return usual
	}
	return uint16(first)
}
