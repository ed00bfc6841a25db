package process

import (
	"regexp"
	"strconv"
	"time"
)

// A unit names the place that a restart comes back to, so that growth and crashes are told across process lives. It is the pod's
// owner and the container's name ("vllm-decode/engine"), else the systemd service, else "port-8000", else empty, for which events
// stand by their sorted GPUs. What may change it:
//
//   - A young process (two minutes) may still become another program, or take a title that puts it into another instance.
//   - An instance without a base gets one once: when it first listens below the kernel's own range of ports and no command line
//     named a port. A port that a command line names, or an engine's usual one, holds from the start.
//   - A pod's name comes late, where only the kubelet tells it and by the GPU: then the unit goes once from the port to the pod.
//     With the container's log in /var/log/containers it is there at first sight.
//   - The second instance of one base on a host is "…#2": replicas of one deployment, containers that all listen on 8000 in their
//     own network. Whoever comes back takes the seat that its pod, container or service had, else the lowest that is free, so that
//     two that are down at once may change seats, and a collector that starts again seats them by age.
//   - A process that first holds a GPU makes its instance take a seat.
//
// Otherwise it stays for the process's life, whatever happens to the front end.
func (i *instance) unit() string {
	if i.base == "" || i.seat < 2 {
		return i.base
	}
	return i.base + "#" + strconv.Itoa(i.seat)
}

// base finds the instance's unit before its number.
func (r *Roster) base(i *instance, members []*life) {
	if i.strong || !i.root.alive() {
		return
	}
	at := i.root.seen.place
	pod, ok := r.names.of(at)
	for _, l := range members {
		// The root may be a launcher outside of what has a name.
		if !ok && l.seen.place.pod == at.pod {
			pod, ok = r.names.of(l.seen.place)
		}
	}
	switch {
	case ok && pod.container != "":
		i.base, i.strong = ownerOf(pod.name)+"/"+pod.container, true
	case i.base != "" && i.root.read:
	case at.unit != "":
		i.base = at.unit
	case i.port != "":
		i.base = "port-" + i.port
	default:
		for _, l := range members {
			if l != i.root && !l.seen.words.serves {
				continue
			}
			if ports := r.ports(l); len(ports) > 0 {
				i.base = "port-" + portName(ports[0].at.Port())
				return
			}
		}
	}
}

var (
	// Names that Kubernetes makes are of these letters and digits, which spell no words.
	replicaPattern  = regexp.MustCompile(`-[bcdfghjklmnpqrstvwxz2456789]{6,10}-[bcdfghjklmnpqrstvwxz2456789]{5}$`)
	randomPattern   = regexp.MustCompile(`-[bcdfghjklmnpqrstvwxz2456789]{5}$`)
	ordinalPatterns = regexp.MustCompile(`(-\d{1,4})+$`)
)

// ownerOf takes from a pod's name what its successor has not: the hash of a ReplicaSet and the random suffix, the suffix of a
// DaemonSet or Job, the ordinals of a StatefulSet or LeaderWorkerSet. A pod that somebody named so by hand loses a word too, which
// harms nobody: its successor loses the same.
func ownerOf(pod string) string {
	owner := replicaPattern.ReplaceAllString(pod, "")
	if owner == pod {
		owner = randomPattern.ReplaceAllString(pod, "")
	}
	owner = ordinalPatterns.ReplaceAllString(owner, "")
	if owner == "" {
		return pod
	}
	return owner
}

// seat is one instance of a base, and stays for the one that comes after it.
type seat struct {
	holder *instance
	place  place
	since  time.Time // the holder was last seen
}

// Bounds of what is remembered of instances that are gone.
const (
	mostSeats  = 64
	seatMemory = 24 * time.Hour
)

// seat numbers the instances that share a base, in the order in which they started.
func (r *Roster) seat(instances []*instance) {
	for base, seats := range r.seats {
		free := 0
		for n := range seats {
			s := &seats[n]
			if s.holder != nil && s.holder.root.alive() && s.holder.base == base {
				s.since = r.now
			} else {
				s.holder = nil // an orphan keeps its number, but its place is free for the successor
				if r.now.Sub(s.since) > seatMemory {
					free++
				}
			}
		}
		if free == len(seats) {
			delete(r.seats, base)
		}
	}
	for _, i := range instances {
		if !i.serving || i.base == "" || !i.root.alive() || r.sits(i) {
			continue
		}
		seats := r.seats[i.base]
		best, at := -1, i.root.seen.place
		for n, s := range seats {
			if s.holder != nil {
				continue
			}
			same := at.pod != "" && s.place.pod == at.pod || at.container != "" && s.place.container == at.container
			if same {
				best = n
				break
			}
			if best < 0 {
				best = n
			}
		}
		if best < 0 {
			if len(seats) >= mostSeats {
				continue
			}
			best = len(seats)
			seats = append(seats, seat{})
		}
		seats[best] = seat{holder: i, place: at, since: r.now}
		r.seats[i.base] = seats
		i.seat = best + 1
	}
}

func (r *Roster) sits(i *instance) bool {
	seats := r.seats[i.base]
	return i.seat > 0 && i.seat <= len(seats) && seats[i.seat-1].holder == i
}
