package process

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	mostWatches = 512 // descriptors; the others' ends are seen at the next tick
	// settle is how long the end of a process waits for what others have to say about it: the kernel's log that it killed it, the
	// process's own bye, its parent that reaps it, before which the kernel does not tell the status.
	settle = 250 * time.Millisecond
)

// watcher holds a pidfd of every watched process, and asks it how the process ended.
type watcher struct {
	reader *reader
	fire   func() // something waits in done

	epoll, bell int
	over        sync.WaitGroup

	mu      sync.Mutex
	watches map[int32]*watch
	byLife  map[*life]*watch
	done    []ending
	closed  bool
}

type watch struct {
	life   *life
	fd     int
	status *exitStatus
	due    time.Time // when it is told; zero while the process lives
}

// ending is a process that is over. Status is nil when the kernel does not tell it.
type ending struct {
	life   *life
	status *exitStatus
}

// newWatcher starts the goroutine that Close ends. The error says that this kernel has no pidfds (before Linux 5.3).
func newWatcher(r *reader, fire func()) (*watcher, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch processes: %w", err)
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch processes: %w", err), unix.Close(epoll))
	}
	w := &watcher{reader: r, fire: fire, epoll: epoll, bell: bell, watches: make(map[int32]*watch), byLife: make(map[*life]*watch)}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, bell, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(bell)}); err != nil {
		return nil, errors.Join(fmt.Errorf("watch processes: %w", err), unix.Close(bell), unix.Close(epoll))
	}
	w.over.Go(w.run)
	return w, nil
}

// add watches a process. It does nothing when there are too many already, or it is over.
func (w *watcher) add(l *life, current func(pid int) (stat, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.byLife[l] != nil || len(w.watches) >= mostWatches {
		return
	}
	fd, err := unix.PidfdOpen(l.pid, 0) // close-on-exec by itself
	if err != nil {
		return
	}
	// The pid may be another's by now. Once the descriptor is open, what has these start ticks is what it stands for.
	if s, err := current(l.pid); err != nil || s.ticks != l.ticks {
		unix.Close(fd)
		return
	}
	if err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
		unix.Close(fd)
		return
	}
	watch := &watch{life: l, fd: fd}
	w.watches[int32(fd)], w.byLife[l] = watch, watch
}

// watches says whether the end of a process will be told.
func (w *watcher) awaits(l *life) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.byLife[l] != nil
}

// take returns the processes that are over, each once.
func (w *watcher) take() []ending {
	w.mu.Lock()
	defer w.mu.Unlock()
	done := w.done
	w.done = nil
	return done
}

// drop ends the watch of a process whose pid is another's by now, and returns how it ended.
func (w *watcher) drop(l *life) *exitStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	watch := w.byLife[l]
	if watch == nil {
		return nil
	}
	w.ask(watch)
	w.remove(watch)
	return watch.status
}

// remove closes the descriptor, which takes it out of the epoll set too.
func (w *watcher) remove(watch *watch) {
	delete(w.watches, int32(watch.fd))
	delete(w.byLife, watch.life)
	unix.Close(watch.fd)
}

func (w *watcher) run() {
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(w.epoll, events, w.timeout())
		if err != nil && !errors.Is(err, unix.EINTR) {
			return // the set is closed: nothing but a broken process gets here
		}
		if w.step(events[:max(n, 0)], time.Now()) {
			return
		}
	}
}

// timeout is how long until the next end is told, in milliseconds; -1 is for ever.
func (w *watcher) timeout() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait := -1
	for _, watch := range w.watches {
		if !watch.due.IsZero() {
			if left := int(max(0, time.Until(watch.due)).Milliseconds()) + 1; wait < 0 || left < wait {
				wait = left
			}
		}
	}
	return wait
}

// step takes in what happened. True means that Close was called.
func (w *watcher) step(events []unix.EpollEvent, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return true
	}
	for _, e := range events {
		watch := w.watches[e.Fd]
		if watch == nil || !watch.due.IsZero() {
			continue
		}
		watch.due = now.Add(settle)
		// It would be ready for ever. Its parent may reap it at any moment, after which an older kernel tells nothing any more.
		if err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, watch.fd, nil); err != nil {
			watch.due = now
		}
		w.ask(watch)
	}
	told := false
	for _, watch := range w.watches {
		if watch.due.IsZero() || now.Before(watch.due) {
			continue
		}
		w.ask(watch)
		w.remove(watch)
		w.done = append(w.done, ending{watch.life, watch.status})
		told = true
	}
	if told {
		w.fire()
	}
	return false
}

// ask finds out how a process ended: from its pidfd once it is reaped (Linux 6.15), from its stat before that. There a zero may
// also mean that we may not see it, and so says nothing.
func (w *watcher) ask(watch *watch) {
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	if err := unix.IoctlPidfdInfo(watch.fd, &info); err == nil && info.Mask&unix.PIDFD_INFO_EXIT != 0 {
		status := exitStatus(info.Exit_code)
		watch.status = &status
		return
	}
	if s, err := w.reader.stat(watch.life.pid); err == nil && s.ticks == watch.life.ticks && s.dead() && s.status != 0 {
		status := exitStatus(s.status)
		watch.status = &status
	}
}

// Close ends the goroutine and waits for it.
func (w *watcher) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	w.mu.Unlock()
	if _, err := unix.Write(w.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		return fmt.Errorf("stop watching processes: %w", err)
	}
	w.over.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, watch := range w.watches {
		w.remove(watch)
	}
	return errors.Join(unix.Close(w.bell), unix.Close(w.epoll))
}
