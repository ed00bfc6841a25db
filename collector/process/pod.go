package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// podName is what people call a container's pod. The container is empty where only the pod is known.
type podName struct{ namespace, name, container string }

// names keeps what was found out about pods, whose uid and container id the cgroup tells.
type names struct {
	byContainer map[string]podName
	byPod       map[string]podName
}

// mostNames is where they are forgotten and found again: far above the pods of a host, also of one on which they come and go.
const mostNames = 4096

func newNames() names {
	return names{byContainer: make(map[string]podName), byPod: make(map[string]podName)}
}

func (n *names) of(p place) (podName, bool) {
	if name, ok := n.byContainer[p.container]; ok && p.container != "" {
		return name, true
	}
	name, ok := n.byPod[p.pod]
	return name, ok && p.pod != ""
}

func (n *names) note(p place, name podName) {
	if len(n.byContainer)+len(n.byPod) > mostNames {
		clear(n.byContainer)
		clear(n.byPod)
	}
	if name.container != "" && p.container != "" {
		n.byContainer[p.container] = name
	}
	if p.pod != "" {
		n.byPod[p.pod] = podName{namespace: name.namespace, name: name.name}
	}
}

// unnamed is a container whose pod's name is not known, and the GPUs its processes hold.
type unnamed struct {
	place place
	gpus  []string
}

// naming finds pod names in two places: in the names of the links that the kubelet makes in /var/log/containers, which say it at
// once and for certain; else by asking the kubelet who holds a GPU.
type naming struct {
	logs    string
	kubelet *kubelet
	next    time.Time // when the kubelet may be asked again
	err     error     // of the last time it was asked, nil when all was well
}

const (
	kubeletEvery    = 10 * time.Second
	kubeletDeadline = time.Second
)

// find returns the names of the containers that it could find out. The error wraps status.ErrDenied or a deadline; a kubelet that
// is not there is none.
func (n *naming) find(ctx context.Context, tick time.Time, missing []unnamed, gpus map[int64]string) (map[place]podName, error) {
	found := make(map[place]podName)
	if len(missing) == 0 {
		return nil, nil // and whatever was wrong with the kubelet does no harm
	}
	if !tick.Before(n.next) || n.next.Sub(tick) > kubeletEvery { // the second: the clock went back
		n.next = tick.Add(kubeletEvery)
		logs := n.links()
		asking := false
		for _, m := range missing {
			if name, ok := logs[m.place.container]; ok {
				found[m.place] = name
			} else {
				asking = asking || len(m.gpus) > 0
			}
		}
		n.err = nil
		if asking {
			n.err = n.ask(ctx, missing, gpus, found)
		}
	}
	return found, n.err
}

func (n *naming) ask(ctx context.Context, missing []unnamed, gpus map[int64]string, found map[place]podName) error {
	limited, cancel := context.WithTimeout(ctx, kubeletDeadline)
	defer cancel()
	assigned, err := n.kubelet.list(limited)
	if errors.Is(err, os.ErrNotExist) {
		return nil // no Kubernetes here, or its folder is not mounted: processes go by their pod's uid
	}
	if err != nil {
		return fmt.Errorf("ask kubelet for pod names: %w", err)
	}
	holders := holders(assigned, gpus)
	for _, m := range missing {
		if _, ok := found[m.place]; ok {
			continue
		}
		if name, ok := join(holders, m.gpus); ok {
			found[m.place] = name
		}
	}
	return nil
}

// assignment is a device that the kubelet gave to a container.
type assignment struct {
	pod    podName
	device string
}

// holders lists by GPU who holds it. A device id is a GPU's UUID, a MIG device's, "nvidia0" by index, or one of these with "::n"
// or "/vgpu0" where several share a GPU; "nvidia0/gi0" is a part of a GPU that only its driver can name.
func holders(assigned []assignment, gpus map[int64]string) map[string][]podName {
	by := make(map[string][]podName)
	for _, a := range assigned {
		device, _, _ := strings.Cut(a.device, "::")
		if number, ok := strings.CutPrefix(device, "nvidia"); ok {
			number, part, _ := strings.Cut(number, "/")
			index, err := strconv.ParseInt(number, 10, 32)
			if err != nil || strings.HasPrefix(part, "gi") {
				continue
			}
			device = gpus[index]
		}
		if device != "" && !slices.Contains(by[device], a.pod) {
			by[device] = append(by[device], a.pod)
		}
	}
	return by
}

// join names the pod of a container by the GPUs its processes hold: only where each is held by one pod, and all by the same.
func join(holders map[string][]podName, gpus []string) (podName, bool) {
	var name podName
	for _, gpu := range gpus {
		for _, holder := range holders[gpu] {
			switch {
			case name.name == "":
				name = holder
			case name.namespace != holder.namespace || name.name != holder.name:
				return podName{}, false
			case name.container != holder.container:
				name.container = "" // the pod is certain, the container is not
			}
		}
	}
	return name, name.name != ""
}

// linkPattern is <pod>_<namespace>_<container>-<id>.log.
var linkPattern = regexp.MustCompile(`^([^_]{1,253})_([^_]{1,63})_([^_]{1,63})-([0-9a-f]{64})\.log$`)

// links returns the containers that have a log on this host, by id. Only names are read, no logs.
func (n *naming) links() map[string]podName {
	dir, err := os.Open(filepath.Join(n.logs, "containers"))
	if err != nil {
		return nil
	}
	defer dir.Close()
	files, err := dir.Readdirnames(mostNames)
	if err != nil {
		return nil
	}
	found := make(map[string]podName, len(files))
	for _, file := range files {
		if m := linkPattern.FindStringSubmatch(file); m != nil {
			found[m[4]] = podName{namespace: m[2], name: m[1], container: m[3]}
		}
	}
	return found
}
