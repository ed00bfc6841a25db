package event

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Token makes any text a token of a subject: letters, digits, - and _; anything else becomes _.
func Token(s string) string {
	return strings.Map(func(r rune) rune {
		if tokenRune(r) {
			return r
		}
		return '_'
	}, s)
}

func tokenRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_'
}

func isToken(s string) bool {
	return s != "" && len(s) <= 128 && !strings.ContainsFunc(s, func(r rune) bool { return !tokenRune(r) })
}

// ValidateHost says whether cluster and name can stand in a subject.
func ValidateHost(h *Host) error {
	switch {
	case h == nil:
		return errors.New("field host: missing")
	case !isToken(h.Name):
		return fmt.Errorf("field host.name: %q is not made of letters, digits, - and _", h.Name)
	case !isToken(h.Cluster):
		return fmt.Errorf("field host.cluster: %q is not made of letters, digits, - and _", h.Cluster)
	}
	return nil
}

// HostKey names a host in the fleet: cluster/name.
func HostKey(h *Host) string { return h.GetCluster() + "/" + h.GetName() }

// WorkerKey names one process life: boot id, pid and raw start ticks, since a clock step changes a computed start time. Without
// them it is pid@start_time, prefixed by the host as every key is.
func WorkerKey(h *Host, w *Worker) string {
	room := make([]byte, 0, 128) // on the stack: this is asked for every event
	key := appendHost(room, h)
	switch {
	case h.GetBootId() != "" && w.StartTicks != nil:
		key = append(append(key, h.BootId...), '/')
		key = append(strconv.AppendInt(key, w.Pid, 10), '/')
		key = strconv.AppendUint(key, *w.StartTicks, 10)
	case w.StartTime == nil:
		key = strconv.AppendInt(key, w.Pid, 10)
	default:
		key = append(strconv.AppendInt(key, w.Pid, 10), '@')
		key = w.StartTime.AsTime().AppendFormat(key, time.RFC3339Nano)
	}
	return string(key)
}

// InstanceKey names the process tree behind one endpoint: cluster/host/unit/engine_index.
func InstanceKey(h *Host, w *Worker) string {
	room := make([]byte, 0, 128)
	return string(appendInstance(room, h, w))
}

// SlotKey names what a restart comes back to: cluster/host/unit/engine_index/rank. A front end or a core without a rank stands
// beside rank 0, not in its place: its role takes the rank's.
func SlotKey(h *Host, w *Worker) string {
	room := make([]byte, 0, 128)
	key := append(appendInstance(room, h, w), '/')
	if role := w.GetRole(); w != nil && w.Rank == nil && role != "" && role != "worker" {
		return string(append(key, role...))
	}
	return string(strconv.AppendInt(key, w.GetRank(), 10))
}

func appendHost(key []byte, h *Host) []byte {
	key = append(append(key, h.GetCluster()...), '/')
	return append(append(key, h.GetName()...), '/')
}

func appendInstance(key []byte, h *Host, w *Worker) []byte {
	key = append(append(appendHost(key, h), unit(w)...), '/')
	return strconv.AppendInt(key, w.GetEngineIndex(), 10)
}

// unit falls back to what stays the same over a restart: the sorted GPUs, else engine and model.
func unit(w *Worker) string {
	if w.GetUnit() != "" {
		return strings.ReplaceAll(w.Unit, "/", "_")
	}
	if gpus := w.GetGpuUuids(); len(gpus) > 0 {
		if len(gpus) > 1 && !slices.IsSorted(gpus) {
			gpus = slices.Sorted(slices.Values(gpus))
		}
		return strings.Join(gpus, "+")
	}
	if w.GetEngine() != "" || w.GetModel() != "" {
		return strings.ReplaceAll(w.Engine+":"+w.Model, "/", "_")
	}
	return "pid" + strconv.FormatInt(w.GetPid(), 10)
}
