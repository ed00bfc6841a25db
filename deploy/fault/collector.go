package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"lowtide/collector/spool"
)

// playing is a collector and what it plays.
type playing struct {
	*child
	proxy  paths
	tap    *tap
	part   *part
	spool  string // its folder; "off" keeps events in memory
	disk   *disk  // nil unless the spool has a file system of its own
	next   int    // first event of the next life
	begun  time.Time
	life   int
	copies []string
	shift  func(time.Time) time.Duration
}

func (w *world) addCollector(one *part) error {
	c := &playing{part: one, spool: "off", tap: newTap()}
	i := len(w.collectors)
	var err error
	if c.proxy, err = newPaths(w.nodeAddresses(), c.tap); err != nil {
		return err
	}
	w.closers = append(w.closers, c.proxy.close)
	if i%3 != 2 { // two of three have a spool
		c.spool = filepath.Join(w.folder, one.name+"-spool")
	}
	if c.spool != "off" && w.plan.has(DiskSpool) {
		if c.disk, err = mountDisk(c.spool, spoolDisk); err != nil {
			return err
		}
		w.closers = append(w.closers, c.disk.close)
	}
	ticks := max(1, len(one.events)/playChunk)
	w.pace = max(100*time.Millisecond, (w.plan.Play / time.Duration(ticks)).Round(10*time.Millisecond))
	args := func() []string {
		return []string{"collect", "--nats", c.proxy.url("collector"), "--cluster", "lab", "--host", one.name, "--metrics-listen", "off",
			"--recording", w.feedPath(c), "--shift", c.shift(time.Now()).String(), "--interval", w.pace.String(), "--spool-dir", c.spool, "--spool-max", "16MiB"}
	}
	if c.child, err = newChild(w.folder, one.name, w.bins.lowtide, nil, args); err != nil {
		return err
	}
	c.onStart = func() { c.begun = time.Now() }
	w.collectors = append(w.collectors, c)
	return nil
}

func (w *world) feedPath(c *playing) string {
	return filepath.Join(w.folder, fmt.Sprintf("%s-life%d.ndjson", c.part.name, c.life))
}

// play begins a life of a collector at the event that comes next. What was being played when the one before was killed, and that no
// broker had and no spool, is lost with it: that is no fault, since nobody said that it was kept.
func (w *world) play(c *playing) error {
	c.life++
	var err error
	if c.shift, err = c.part.write(w.feedPath(c), c.next, c.life); err != nil {
		return err
	}
	return c.start()
}

// broken kills a collector, and notes how far it can have come.
func (w *world) broken(c *playing) {
	c.kill()
	ticks := int(time.Since(c.begun)/w.pace) + 2
	c.next = min(c.next+ticks*playChunk, len(c.part.events)-1)
}

// ownsUp says whether a collector ended with the word that messages were not acknowledged, which one without a spool has to do where its
// connection is half open to the end. Whether they arrived all the same is looked at like everything else.
func (c *playing) ownsUp() bool {
	return c.spool == "off" && strings.Contains(c.lastError(), "were not acknowledged")
}

// keepSpool copies what a killed collector left on disk: every message in it must reach the broker.
func (c *playing) keepSpool(folder string) error {
	if c.spool == "off" {
		return nil
	}
	to := filepath.Join(folder, fmt.Sprintf("%s-left%d", c.part.name, c.life))
	if err := os.CopyFS(to, os.DirFS(c.spool)); err != nil {
		return fmt.Errorf("copy the spool: %w", err)
	}
	_ = os.Remove(filepath.Join(to, filepath.Base((&disk{}).filler())))
	c.copies = append(c.copies, to)
	return nil
}

// left returns the ids of the messages in a copy of a spool.
func left(folder string) (ids []string, err error) {
	s, err := spool.Open(spool.Options{Folder: folder, MaxBytes: 64 << 20})
	if err != nil {
		return nil, fmt.Errorf("read the spool that was left: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for _, name := range []string{"samples", "urgent"} {
		lane := s.Lane(name)
		for {
			record, err := lane.Head()
			if err != nil {
				return ids, fmt.Errorf("read the spool that was left: %w", err)
			}
			if record == nil {
				break
			}
			ids = append(ids, record.ID)
			if err := lane.Pop(); err != nil {
				return ids, fmt.Errorf("read the spool that was left: %w", err)
			}
		}
	}
	return ids, nil
}
