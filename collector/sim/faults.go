package sim

import (
	"math"

	"lowtide/event"
)

func errorExit() *event.Lifecycle {
	return &event.Lifecycle{ExitCode: event.Ptr(int64(1)), By: "self"}
}

func bySignal(n int64, by string) *event.Lifecycle {
	return &event.Lifecycle{Signal: event.Ptr(n), By: by}
}

// faults plants errors of the device, and those that only look like them.
func faults() []script {
	return []script{
		{Scenario{Name: "device-bus", Class: "device_fault", Hours: 8, Planted: "Xid 79: the GPU falls off the bus and the engine aborts; hours later the host is back"}, func(w *world) {
			i := w.sick(profile{})
			c := i.ranks[0].card
			from := w.between(2, 5)
			w.at(from, func() {
				w.onset()
				c.xid(0.3, 79, nil, "GPU has fallen off the bus.")
				if w.happens(0.5) {
					c.xid(0.32, 154, nil, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
				}
				c.gone = true
				i.exit(0.4, bySignal(6, "self"))
				i.until = w.since + hours(w.between(1, 2))
				w.at(i.until.Hours()-0.05, func() { c.gone = false })
			})
		}},
		{Scenario{Name: "device-ecc", Class: "device_fault", Hours: 10, Planted: "uncorrectable ECC errors: Xid 48, then 94 or 95, the engine ends; a row waits to be remapped; it comes again"}, func(w *world) {
			i := w.sick(profile{})
			c := i.ranks[0].card
			strike := func() {
				if i.phase != up {
					return
				}
				w.onset()
				c.uncorrected += float64(w.whole(1, 3))
				c.pending = true
				c.xid(0.3, 48, nil, "DBE (Double Bit Error) ECC Error")
				if w.happens(0.6) {
					c.xid(0.31, 94, i.ranks[0], "Contained: SM (0x1). RST: No, D-RST: No")
				} else {
					c.xid(0.31, 95, i.ranks[0], "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No")
				}
				c.xid(0.32, 63, nil, "Row Remapper: New row (0x0000000000c5a2f1) marked for remapping, reset gpu to activate.")
				i.exit(0.36, errorExit())
			}
			from := w.between(2, 4)
			w.at(from, strike)
			w.at(from+w.between(1.5, 4), strike)
		}},
		{Scenario{Name: "device-nvlink", Class: "device_fault", Hours: 8, Planted: "a fatal link error of the switch, Xid 62 on one card, then Xid 45 for every rank: the clean-up"}, func(w *world) {
			i := w.serve(profile{ranks: w.whole(2, 4)})
			i.planted = true
			w.open(i)
			w.at(w.between(2, 5), func() {
				w.onset()
				i.host.tell(0.2, &event.Event{Log: &event.Log{Signature: "sxid", Text: "nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): 24007, Fatal, Link 32 sourcetrack timeout error"}})
				i.ranks[w.IntN(len(i.ranks))].card.xid(0.21, 62, nil, "3d0fd2f5 00007ff0 00000000")
				for n, r := range i.ranks {
					for k := range 3 {
						r.card.xid(0.3+0.02*float64(n)+0.004*float64(k), 45, r, "Ch 0000000"+string(rune('8'+k)))
					}
				}
				i.exit(0.5, bySignal(6, "self"))
				i.until = w.since + hours(w.between(0.5, 2))
			})
		}},
		{Scenario{Name: "software-mmu", Class: "software_fault", Hours: 12, Planted: "a race in a kernel: Xid 31, an orderly end with exit code 0; started again, it comes again"}, func(w *world) {
			i := w.sick(profile{})
			from := w.between(1, 4)
			for range w.whole(1, 3) {
				w.at(from, func() {
					if i.phase != up {
						return
					}
					w.onset()
					c := i.ranks[0].card
					c.xid(0.3, 31, i.ranks[0], "channel 0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC0 GPCCLIENT_T1_8 faulted @ 0x7f_dead0000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE")
					i.exit(0.5, &event.Lifecycle{ExitCode: event.Ptr(int64(0)), By: "self", SaidBye: event.Ptr(true)})
				})
				from += w.between(2, 4)
			}
		}},
		{Scenario{Name: "software-exception", Class: "software_fault", Hours: 8, Planted: "an illegal address in a kernel: Xid 13 and 43, the engine aborts, Xid 45 follows"}, func(w *world) {
			i := w.sick(profile{})
			w.at(w.between(2, 6), func() {
				w.onset()
				r := i.ranks[0]
				r.card.xid(0.3, 13, r, "Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): Out Of Range Address")
				r.card.xid(0.305, 43, r, "channel 0x0000000a")
				i.exit(0.4, bySignal(6, "self"))
				r.card.xid(math.Min(0.6, w.between(0.42, 0.6)), 45, r, "Ch 00000008")
			})
		}},
	}
}
