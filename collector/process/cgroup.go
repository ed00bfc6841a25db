package process

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// place is where a process stands in the cgroup tree, and what follows from it. Strings are empty where it says nothing.
type place struct {
	container string // 64 hex digits
	pod       string // uid, with dashes
	unit      string // systemd service that is no container
	memory    string // path in the hierarchy that accounts for memory; empty when it cannot be known
	version   int    // of that hierarchy: 1 or 2
}

var (
	containerPattern = regexp.MustCompile(`(?:^|[-:/])([0-9a-f]{64})(?:\.scope)?$`)
	podPattern       = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})(?:\.slice)?(?:$|:)`)
)

// group is a line of /proc/PID/cgroup: number:controllers:path.
type group struct {
	number, path string
	controllers  []string
}

func parseGroups(text string) []group {
	var groups []group
	for line := range strings.Lines(text) {
		number, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, path, ok := strings.Cut(rest, ":")
		if !ok {
			continue
		}
		g := group{number: number, path: path}
		if controllers != "" {
			g.controllers = strings.Split(controllers, ",")
		}
		groups = append(groups, g)
	}
	return groups
}

// parsePlace reads the lines of /proc/PID/cgroup. It knows the paths of containerd, cri-o and docker, under the systemd driver
// (…-pod<uid>.slice/cri-containerd-<id>.scope) and under cgroupfs (/kubepods/<qos>/pod<uid>/<id>), v1 and v2.
func parsePlace(groups []group) place {
	var p place
	// v1's memory hierarchy accounts for memory wherever it is mounted; else it is v2's single one.
	for _, g := range groups {
		switch {
		case slices.Contains(g.controllers, "memory"):
			p.memory, p.version = g.path, 1
		case g.number == "0" && len(g.controllers) == 0 && p.version == 0:
			p.memory, p.version = g.path, 2
		}
	}
	paths := []string{p.memory}
	for _, g := range groups {
		paths = append(paths, g.path)
	}
	for _, at := range paths {
		parts := strings.Split(at, "/")
		for i := len(parts) - 1; i >= 0; i-- {
			if m := containerPattern.FindStringSubmatch(parts[i]); m != nil && p.container == "" {
				p.container = m[1]
			}
			if m := podPattern.FindStringSubmatch(parts[i]); m != nil && p.pod == "" {
				p.pod = strings.ReplaceAll(m[1], "_", "-")
			}
			if p.unit == "" && strings.HasSuffix(parts[i], ".service") && !strings.HasPrefix(parts[i], "user@") {
				p.unit = parts[i]
			}
		}
	}
	if p.container != "" || p.pod != "" {
		p.unit = "" // the service would be the container runtime, shared by all
	}
	// A private cgroup namespace shows a path relative to a root that is not ours: no file can be told from it.
	if slices.Contains(strings.Split(p.memory, "/"), "..") {
		p.memory, p.version = "", 0
	}
	return p
}

// memoryOf returns what the process's cgroup uses and may use, in bytes. A limit often stands on the pod rather than on the
// container: then use and limit are both those of the nearest ancestor that has one, since they only mean something together.
// Without any limit it is the use of the process's own cgroup. Nil is unknown or none.
func memoryOf(root string, p place) (used, limit *uint64) {
	if p.memory == "" {
		return nil, nil
	}
	bases, current, most := []string{root, filepath.Join(root, "unified")}, "memory.current", "memory.max"
	if p.version == 1 {
		bases, current, most = []string{filepath.Join(root, "memory")}, "memory.usage_in_bytes", "memory.limit_in_bytes"
	}
	for _, base := range bases {
		var own *uint64
		for at := path.Clean("/" + p.memory); ; at = path.Dir(at) {
			dir := filepath.Join(base, at)
			used, limit := number(filepath.Join(dir, current)), number(filepath.Join(dir, most))
			if own == nil {
				own = used
			}
			if used != nil && limit != nil {
				return used, limit
			}
			if at == "/" {
				break
			}
		}
		if own != nil {
			return own, nil
		}
	}
	return nil, nil
}

// number reads a cgroup file. "max", and the huge number by which v1 says the same, are none.
func number(file string) *uint64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n >= 1<<62 {
		return nil
	}
	return &n
}
