package allocator

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	json "github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"
)

// maxAskLine is the longest line to a probe, bytes.
const maxAskLine = 4 << 10

// askLine is what the collector says to a probe after its greeting, together with one descriptor that the probe writes to.
type askLine struct {
	Lowtide        int     `json:"lowtide"`
	Ask            string  `json:"ask"` // snapshot or arm
	ID             string  `json:"id"`
	MaxBytes       int64   `json:"max_bytes"`
	BudgetSeconds  float64 `json:"budget_seconds"`
	HistorySeconds float64 `json:"history_seconds,omitzero"`
	MaxEntries     int     `json:"max_entries,omitzero"`
	Census         bool    `json:"census,omitzero"`
	CensusSeconds  float64 `json:"census_seconds,omitzero"`
}

// hand writes the ask and the file's descriptor to the probe. A line that was cut off closes the connection, since the next one could
// not be told from its end.
func (d *desk) hand(p *peer, a *sent, patience time.Duration) error {
	line := askLine{Lowtide: 1, Ask: "snapshot", ID: a.id, MaxBytes: d.Bytes, BudgetSeconds: d.Budget.Seconds(), HistorySeconds: a.History.Seconds()}
	switch {
	case a.armed:
		line.Ask, line.BudgetSeconds = "arm", min(d.Budget, armBudget).Seconds()
	case a.History > 0:
		line.MaxEntries = maxEntries
	}
	if a.Census {
		line.Census, line.CensusSeconds = true, censusBudget.Seconds()
	}
	text, err := json.Marshal(line)
	if err != nil {
		return fmt.Errorf("write ask: %w", err)
	}
	text = append(text, '\n')
	if len(text) > maxAskLine {
		return fmt.Errorf("write ask: %d bytes, at most %d", len(text), maxAskLine)
	}
	conn, ok := p.conn.(*net.UnixConn)
	if !ok {
		return errors.New("write ask: the connection takes no descriptor")
	}
	writer, err := a.raw.Writer()
	if err != nil {
		return err
	}
	defer writer.Close()
	if err := conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return fmt.Errorf("write ask: %w", err)
	}
	n, _, err := conn.WriteMsgUnix(text, unix.UnixRights(int(writer.Fd())), nil)
	if err == nil && n < len(text) {
		_, err = conn.Write(text[n:])
	}
	if err != nil {
		if n > 0 {
			conn.Close()
		}
		return fmt.Errorf("write ask: the probe of pid %d does not read: %w", p.pid, err)
	}
	return nil
}

// probe is what the desk has to know of a connection.
type probe struct {
	peer    *peer
	life    life
	backend string
	gpu     string
	reads   bool // it has reported: CUDA is initialised
}

// probes are the connections that have said hello, one a process.
func (s *Source) probes() []probe {
	s.mu.Lock()
	defer s.mu.Unlock()
	newest := make(map[life]*peer)
	for p := range s.peers {
		l := life{p.pid, p.ticks}
		if p.hello != nil && (newest[l] == nil || p.last.After(newest[l].last)) {
			newest[l] = p
		}
	}
	all := make([]probe, 0, len(newest))
	for l, p := range newest {
		all = append(all, probe{p, l, p.hello.backend, p.gpu, !p.last.IsZero()})
	}
	return all
}

// ended says whether a process is gone, or is kept by its parent as a name only.
func (s *Source) ended(l life) bool {
	text, err := os.ReadFile(filepath.Join(s.o.ProcRoot, strconv.Itoa(l.pid), "stat"))
	if err != nil {
		return true
	}
	ticks, err := parseStartTicks(string(text))
	if err != nil || ticks != l.ticks {
		return true
	}
	_, rest, _ := cutLast(string(text), ") ")
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}
