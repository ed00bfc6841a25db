package kernel

import (
	"time"

	"golang.org/x/sys/unix"
)

// drift bounds how fast printk's clock may fall behind CLOCK_MONOTONIC: the one is a raw counter, the other is disciplined by
// NTP, which corrects at most 500 parts in a million. After a hundred days that is up to an hour, which is why `dmesg -T` errs.
const drift = 500e-6

// clock turns the log's time since boot into the wall's. A log that is followed is read within milliseconds, so the smallest lag
// between a record's stamp and its reading is the offset of the two clocks, and what exceeds it is how late a record was read.
type clock struct {
	now    func() (wall time.Time, uptime time.Duration)
	offset time.Duration // smallest lag
	uptime time.Duration // when it was taken
	known  bool
	last   time.Time
}

// at returns when a record was written, never later than now and never before the record that went before it.
func (c *clock) at(stamp time.Duration) time.Time {
	wall, uptime := c.now()
	lag := uptime - stamp
	if c.known {
		c.offset += time.Duration(float64(uptime-c.uptime) * drift)
	}
	if !c.known || lag < c.offset {
		c.offset, c.known = lag, true
	}
	c.uptime = uptime
	at := wall.Add(c.offset - lag)
	if at.Before(c.last) {
		at = c.last
	}
	if at.After(wall) {
		at = wall // the wall clock was set back
	}
	c.last = at
	return at
}

// systemClock reads the two clocks. They are asked one after the other, nanoseconds apart.
func systemClock() (time.Time, time.Duration) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return time.Now(), 0 // there is no Linux without it; the lag is then nought throughout
	}
	return time.Now(), time.Duration(t.Nano())
}
