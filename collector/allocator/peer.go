package allocator

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"lowtide/event"
)

const (
	// MaxLine is the longest line of the protocol, in bytes and with its newline.
	MaxLine = 64 << 10

	maxPeers  = 256
	maxPerPID = 16
	joinsEach = 64   // new connections of a process and tick: each has a burst of lines
	joinsAll  = 1024 // of all processes and tick
	lineRate  = 20   // lines a second and connection
	lineBurst = 60

	pause     = time.Second / lineRate // a peer over its rate is not read meanwhile: its flood fills its own buffer
	silence   = 3 * time.Minute        // three times the longest interval of a probe
	halfLine  = 10 * time.Second       // for the rest of a line that has begun
	greetFor  = time.Second            // for the first line to be taken
	textWait  = 50 * time.Millisecond  // for the exception's text after the observer's numbers
	textAfter = 10 * time.Second       // a text that comes later than textWait, but within this, is of the same failure
	firstRoom = 4 << 10                // of a connection's buffer, bytes; a line of eight devices takes 5 KiB
)

// peer is one connection. The fields below mu belong to Source.mu, the others to the connection's goroutine.
type peer struct {
	source *Source
	conn   net.Conn
	pid    int
	ticks  uint64
	limit  limiter
	held   *failure // the observer's numbers, waiting for the text
	told   *failure // the observer's numbers that went out without it

	// mu
	hello    *hello
	read     *sample // the newest that no Collect has taken
	gpu      string  // of its only card, by the newest read
	last     time.Time
	interval time.Duration // of the probe, which doubles it when a read is slow
	emitted  int64         // the slot in which a read was handed out
	missed   bool          // it was waited for in vain: no tick waits again until it reports
}

// hello is what a probe said about its process.
type hello struct {
	torch, cuda, backend, allocConf string
	told                            bool
	at                              time.Time // of the tick it was told at
}

// sample is one read of a probe.
type sample struct {
	at      time.Time
	devices []*event.Allocator
}

// worker names the peer, and only that: the loop completes it.
func (p *peer) worker() *event.Worker { return &event.Worker{Pid: int64(p.pid)} }

// due says whether the probe should have read in this slot and has not reported. Source.mu is held.
func (p *peer) due(slot int64, interval time.Duration) bool {
	if p.last.IsZero() || p.interval <= 0 {
		return false
	}
	next := (p.last.UnixNano()/int64(p.interval) + 1) * int64(p.interval)
	return next <= slot*int64(interval)
}

// limiter is a token bucket of lines.
type limiter struct {
	tokens float64
	at     time.Time
}

func (l *limiter) allow(now time.Time) bool {
	if l.at.IsZero() {
		l.tokens = lineBurst
	} else if d := now.Sub(l.at).Seconds(); d > 0 {
		l.tokens = min(lineBurst, l.tokens+d*lineRate)
	}
	l.at = now
	if l.tokens < 1 {
		return false
	}
	l.tokens--
	return true
}

// accept takes connections until the listener is closed. It never waits for a peer.
func (s *Source) accept() {
	defer s.serving.Done()
	for {
		conn, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, or a peer that went away at once
			if !errors.Is(err, syscall.ECONNABORTED) {
				s.count(0, unheard, 1, err.Error())
			}
			select {
			case <-s.done:
				return
			case <-time.After(pause):
			}
			continue
		}
		pid, err := peerPID(conn)
		if err != nil {
			s.count(0, bad, 1, err.Error())
			conn.Close()
			continue
		}
		if p := s.admit(conn, pid); p != nil {
			go func() {
				defer s.serving.Done()
				p.serve()
			}()
		}
	}
}

// admit makes a peer of a connection, or closes it: a pid that is not visible here, one that is gone, too many of them.
func (s *Source) admit(conn net.Conn, pid int) *peer {
	var ticks uint64
	var err error
	if pid > 0 {
		ticks, err = startTicks(s.o.ProcRoot, pid)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.done:
		conn.Close()
		return nil
	default:
	}
	switch {
	case pid <= 0, err != nil && exists(pid):
		s.denied = time.Now()
	case err != nil:
		// It ended right after it connected, as short programs do.
	case s.joins >= joinsAll, s.joined[pid] >= joinsEach:
		s.trouble.churned++
		s.trouble.pid = pid
	case len(s.peers) >= maxPeers, s.perPID[pid] >= maxPerPID:
		s.trouble.refused++
		s.trouble.pid = pid
	default:
		p := &peer{source: s, conn: conn, pid: pid, ticks: ticks, emitted: -1}
		s.peers[p] = struct{}{}
		s.perPID[pid]++
		s.joined[pid]++
		s.joins++
		s.serving.Add(1)
		return p
	}
	conn.Close()
	return nil
}

// exists tells a process that /proc does not show (hidepid) from one that is gone.
func exists(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// serve reads the peer until it goes away, breaks the protocol or says nothing for too long.
func (p *peer) serve() {
	defer p.leave()
	if !p.greet() {
		return
	}
	buffer := make([]byte, 0, firstRoom)
	scanned := 0 // bytes at the buffer's start that hold no newline
	heard := time.Now()
	for {
		if len(buffer) == cap(buffer) {
			if cap(buffer) >= MaxLine {
				p.source.count(p.pid, bad, 1, fmt.Sprintf("a line of more than %d bytes", MaxLine))
				return
			}
			buffer = append(make([]byte, 0, min(2*cap(buffer), MaxLine)), buffer...)
		}
		wait := heard.Add(silence)
		if len(buffer) > 0 {
			wait = heard.Add(halfLine)
		}
		if p.held != nil && p.held.until.Before(wait) {
			wait = p.held.until
		}
		p.conn.SetReadDeadline(wait) // what it could say, that the connection is closed, Read says too
		n, err := p.conn.Read(buffer[len(buffer):cap(buffer)])
		if n > 0 && len(buffer) == 0 {
			heard = time.Now()
		}
		buffer = buffer[:len(buffer)+n]
		now := time.Now()
		for {
			end := bytes.IndexByte(buffer[scanned:], '\n')
			if end < 0 {
				scanned = len(buffer)
				break
			}
			end += scanned
			if !p.limit.allow(now) {
				// Whatever else has come in belongs to the same excess. Dropping it costs one pass and no memory.
				last := bytes.LastIndexByte(buffer, '\n')
				p.source.count(p.pid, excess, bytes.Count(buffer[:last+1], newline), "")
				buffer, scanned, heard = shift(buffer, last+1), 0, now
				if !p.rest() {
					return
				}
				continue
			}
			p.line(buffer[:end], now)
			buffer, scanned, heard = shift(buffer, end+1), 0, now
		}
		if len(buffer) == 0 && cap(buffer) > 4*firstRoom {
			buffer = make([]byte, 0, firstRoom) // one long line does not cost its room for ever
		}
		if p.held != nil && !now.Before(p.held.until) {
			p.tell()
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded) && len(buffer) == 0 && now.Before(heard.Add(silence)),
			errors.Is(err, os.ErrDeadlineExceeded) && len(buffer) > 0 && now.Before(heard.Add(halfLine)):
		case len(buffer) > 0:
			p.source.count(p.pid, bad, 1, fmt.Sprintf("%d bytes of a line that was never ended", len(buffer)))
			return
		default:
			return
		}
	}
}

var newline = []byte{'\n'}

// shift drops the first n bytes in place.
func shift(buffer []byte, n int) []byte { return buffer[:copy(buffer, buffer[n:])] }

// rest leaves a peer that sends too much unread for the time of one line.
func (p *peer) rest() bool {
	select {
	case <-p.source.done:
		return false
	case <-time.After(pause):
		return true
	}
}

// greet sends the collector's first line.
func (p *peer) greet() bool {
	line := append(strconv.AppendFloat([]byte(`{"lowtide":1,"interval_seconds":`), p.source.o.Interval.Seconds(), 'f', -1, 64), "}\n"...)
	if p.conn.SetWriteDeadline(time.Now().Add(greetFor)) != nil {
		return false
	}
	_, err := p.conn.Write(line)
	return err == nil
}

// leave forgets the peer. What the observer said last goes out before.
func (p *peer) leave() {
	p.conn.Close()
	p.tell()
	s := p.source
	if s.desk != nil {
		defer s.desk.left(p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.peers, p)
	if s.perPID[p.pid]--; s.perPID[p.pid] <= 0 {
		delete(s.perPID, p.pid)
	}
	s.notify() // nobody waits for it any more
}
