package kernel

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	rereadAfter  = 10 * time.Second       // an address that is not known is looked up again no earlier
	readPatience = 250 * time.Millisecond // a driver that hangs must not hold up the log; the event then goes without its UUID
	maxGPUs      = 256
)

// gpus knows which UUID stands at which address. The driver's own lines tell it, and /proc/driver/nvidia/gpus.
type gpus struct {
	root    string // of /proc
	uuids   map[string]string
	asked   time.Time              // last reading of /proc
	reading chan map[string]string // of the reading under way; nil when none is
}

func newGPUs(root string) *gpus { return &gpus{root: root, uuids: make(map[string]string)} }

// learn takes what the driver's log says.
func (g *gpus) learn(pci, uuid string) {
	if _, known := g.uuids[pci]; known || len(g.uuids) < maxGPUs {
		g.uuids[pci] = uuid
	}
}

// uuid is empty where nobody knows it.
func (g *gpus) uuid(pci string) string {
	if uuid := g.uuids[pci]; uuid != "" {
		return uuid
	}
	patience := time.Duration(0)
	if g.reading == nil {
		if !g.asked.IsZero() && time.Since(g.asked) < rereadAfter {
			return ""
		}
		g.asked = time.Now()
		g.reading = make(chan map[string]string, 1)
		go func(into chan<- map[string]string) { into <- readGPUs(g.root) }(g.reading)
		patience = readPatience // once: a storm is read on, or the kernel overwrites it
	}
	g.await(patience)
	return g.uuids[pci]
}

// await takes in the reading under way, if it ends in time. The driver answers these files under its own lock, so that a hung
// one can hold a reading for ever; a second one is not started then.
func (g *gpus) await(patience time.Duration) {
	if g.reading == nil {
		return
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	var found map[string]string
	select {
	case found = <-g.reading:
	case <-timer.C:
		select {
		case found = <-g.reading:
		default:
			return
		}
	}
	g.reading = nil
	for pci, uuid := range found {
		g.learn(pci, uuid)
	}
}

// readGPUs reads /proc/driver/nvidia/gpus/ADDRESS/information.
func readGPUs(root string) map[string]string {
	found := make(map[string]string)
	directories, err := os.ReadDir(filepath.Join(root, "driver/nvidia/gpus"))
	if err != nil {
		return found // no driver: the log's own lines are all there is
	}
	for _, d := range directories[:min(len(directories), maxGPUs)] {
		if pci := addressed.FindString(d.Name()); pci != "" {
			if uuid := readUUID(filepath.Join(root, "driver/nvidia/gpus", d.Name(), "information")); uuid != "" {
				found[canonical(pci)] = uuid
			}
		}
	}
	return found
}

// readUUID finds the line "GPU UUID: GPU-…". A device that was not yet initialised has question marks there.
func readUUID(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close() // read only: nothing to lose
	for lines := bufio.NewScanner(io.LimitReader(file, 16<<10)); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && name == "GPU UUID" {
			if uuid := strings.TrimSpace(value); strings.HasPrefix(uuid, "GPU-") && !strings.Contains(uuid, "?") && len(uuid) <= 64 {
				return strings.ToValidUTF8(uuid, "")
			}
		}
	}
	return ""
}
