package allocator

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"lowtide/collector/snapshot"
)

// What is done about files whose descriptors were given to workers, which are not to be trusted with them.

const (
	overRoom = 1 << 20 // bytes that a file may be over the bound before its writer counts as hostile
	maxLoose = 256     // files that somebody may still write to; beyond them the oldest is let go
)

// hostile says whether the file is over its bound, and empties it: a descriptor that was given away cannot be taken back, so that it is
// done at every tick as long as the process lives.
func (d *desk) hostile(a *sent) bool {
	size, err := a.raw.Size()
	taken, takenErr := a.raw.Taken()
	// A file system may reserve as much again for a file that grows.
	if err = errors.Join(err, takenErr); !a.hostile && (err != nil || size <= d.Bytes+overRoom && taken <= 2*d.Bytes+16*overRoom) {
		return false
	}
	if size > 0 || taken > 0 {
		if err := a.raw.Empty(); err != nil {
			d.Log.Warn("raw snapshot is not emptied", "pid", a.life.pid, "error", err)
		}
	}
	if !a.hostile {
		a.hostile = true
		d.arms[a.life] = arming{never: true}
		d.failed(a, "oversize", fmt.Errorf("the probe wrote %d bytes, more than %d: it is not asked again", max(size, taken), d.Bytes), 0, time.Now())
	}
	return true
}

// drop lets go of a file that is of no use. As long as anybody has it open for writing, which a worker may arrange for ever, it is kept
// to be emptied: without a descriptor of ours nobody could see what it takes of the disk. The lock is held.
func (d *desk) drop(raw *snapshot.Raw) {
	if raw.Sealed() {
		raw.Close()
		return
	}
	if err := raw.Empty(); err != nil {
		d.Log.Warn("raw snapshot is not emptied", "error", err)
	}
	if len(d.loose) >= maxLoose {
		d.loose[0].Close()
		d.loose = slices.Delete(d.loose, 0, 1)
	}
	d.loose = append(d.loose, raw)
}

// dropLoose empties what is written to although nobody waits for it. The lock is held.
func (d *desk) dropLoose() {
	d.loose = slices.DeleteFunc(d.loose, func(raw *snapshot.Raw) bool {
		if raw.Sealed() {
			raw.Close()
			return true
		}
		if taken, err := raw.Taken(); err != nil || taken > 0 {
			if err := raw.Empty(); err != nil {
				d.Log.Warn("raw snapshot is not emptied", "error", err)
			}
		}
		return false
	})
}
