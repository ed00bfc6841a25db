//go:build cgo

package nvml

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

const (
	waitMilliseconds = 500 // bounds how long the library cannot be closed
	doubleBitXid     = 48
	doubleBitEcho    = 5 * time.Second // the driver tells a double-bit error both as an event of its own and as Xid 48
	waitPause        = time.Second     // after a wait that failed at once
)

// watcher waits for Xids in a goroutine of its own, as the driver allows beside other calls.
type watcher struct {
	set     nvml.EventSet
	emit    func(*event.Event)
	known   atomic.Pointer[[]*card] // cards and instances
	missing []failure               // cards whose events cannot be had
	trouble atomic.Pointer[failure] // of the wait
	stop    chan struct{}
	done    chan struct{}
}

// watch never fails: what cannot be watched is told by failures.
func watch(library nvml.Interface, cards []*card, emit func(*event.Event)) *watcher {
	w := &watcher{emit: emit, stop: make(chan struct{}), done: make(chan struct{})}
	w.learn(cards)
	set, ret := library.EventSetCreate()
	if ret != nvml.SUCCESS {
		w.missing = []failure{{kindOf(ret), "Xid events: " + words(ret)}}
		close(w.done)
		return w
	}
	w.set = set
	refused := make(map[nvml.Return][]string)
	registered := 0
	for _, c := range cards {
		ret := register(c, set)
		if ret == nvml.SUCCESS {
			registered++
			continue
		}
		refused[ret] = append(refused[ret], c.label)
		if ret == nvml.ERROR_UNKNOWN { // which leaves the set undefined, says nvml.h
			registered = 0
			break
		}
	}
	for ret, labels := range refused {
		w.missing = append(w.missing, failure{kindOf(ret), fmt.Sprintf("%s: Xid events: %s", strings.Join(labels, ", "), words(ret))})
	}
	slices.SortFunc(w.missing, func(a, b failure) int { return strings.Compare(a.text, b.text) })
	if registered == 0 {
		set.Free()
		close(w.done)
		return w
	}
	go w.run()
	return w
}

func register(c *card, set nvml.EventSet) nvml.Return {
	types, ret := c.handle.GetSupportedEventTypes()
	if ret != nvml.SUCCESS {
		return ret
	}
	if types&nvml.EventTypeXidCriticalError == 0 {
		return nvml.ERROR_NOT_SUPPORTED
	}
	return c.handle.RegisterEvents(types&(nvml.EventTypeXidCriticalError|nvml.EventTypeDoubleBitEccError), set)
}

// learn replaces what is known about cards; handles and ids of a card never change.
func (w *watcher) learn(cards []*card) {
	var all []*card
	for _, c := range cards {
		whole := *c
		whole.instances = nil // the session goes on changing them
		all = append(append(all, &whole), c.instances...)
	}
	w.known.Store(&all)
}

func (w *watcher) failures() []failure {
	if t := w.trouble.Load(); t != nil {
		return append(slices.Clone(w.missing), *t)
	}
	return slices.Clone(w.missing)
}

func (w *watcher) end() {
	close(w.stop)
	<-w.done
}

func (w *watcher) run() {
	defer close(w.done)
	defer w.set.Free()
	doubles := make(map[string]seen)
	for {
		select {
		case <-w.stop:
			return
		default:
		}
		data, ret := w.set.Wait(waitMilliseconds)
		switch ret {
		case nvml.SUCCESS:
			w.trouble.Store(nil)
			e := w.event(data)
			if !repeats(doubles, e, data.EventType) {
				w.emit(e)
			}
			continue
		case nvml.ERROR_TIMEOUT:
			w.trouble.Store(nil)
			continue
		}
		w.trouble.Store(&failure{kindOf(ret), "wait for Xid events: " + words(ret)})
		pause := time.NewTimer(waitPause)
		select {
		case <-w.stop:
		case <-pause.C:
		}
		pause.Stop()
	}
}

func (w *watcher) event(data nvml.EventData) *event.Event {
	x := &event.Xid{Code: event.Ptr(data.EventData), Source: "nvml"}
	if data.EventType == nvml.EventTypeDoubleBitEccError {
		x.Code, x.Text = event.Ptr(uint64(doubleBitXid)), "double-bit ECC error"
	}
	if c := w.find(data); c != nil {
		x.GpuUuid, x.Pci = c.uuid, c.pci
	}
	return &event.Event{Time: timestamppb.Now(), Xid: x}
}

// find returns the card that an event is about, or the instance where the event names one; nil for one that is not known.
func (w *watcher) find(data nvml.EventData) *card {
	var whole *card
	known := *w.known.Load()
	for _, c := range known {
		if c.mig == "" && c.handle == data.Device {
			whole = c
		}
	}
	if whole == nil && data.Device != nil {
		if uuid, ret := data.Device.GetUUID(); ret == nvml.SUCCESS {
			if i := slices.IndexFunc(known, func(c *card) bool { return c.uuid == uuid }); i >= 0 {
				whole = known[i]
			}
		}
	}
	if whole != nil && whole.divided {
		for _, c := range known {
			if c.mig != "" && c.index == whole.index && c.gi == data.GpuInstanceId && c.ci == data.ComputeInstanceId {
				return c
			}
		}
	}
	return whole
}

// seen is how and when a card's last double-bit error was told.
type seen struct {
	as uint64 // event type
	at time.Time
}

func repeats(doubles map[string]seen, e *event.Event, as uint64) bool {
	if e.Xid.GetCode() != doubleBitXid {
		return false
	}
	last, told := doubles[e.Xid.GpuUuid]
	if told && last.as != as && e.At().Sub(last.at) < doubleBitEcho {
		delete(doubles, e.Xid.GpuUuid) // each account stands for one of the other
		return true
	}
	doubles[e.Xid.GpuUuid] = seen{as, e.At()}
	return false
}
