package event

// AskSnapshot is the one thing that may be asked of a host: an allocator snapshot of one of its workers.
const AskSnapshot = "snapshot"

// What a reply to an AskRequest says.
const (
	AskAccepted = "accepted"
	AskRefused  = "refused"
	AskUnknown  = "unknown_process"
)

// AskSubject is where the collector of a host hears what is asked of it, over NATS request and reply: lowtide.ask.<cluster>.<host>.
func AskSubject(cluster, host string) string { return "lowtide.ask." + cluster + "." + host }

// AskRequest is what may be asked of a host, in JSON.
type AskRequest struct {
	Ask            string  `json:"ask"` // AskSnapshot
	PID            int64   `json:"pid"`
	StartTicks     *uint64 `json:"start_ticks,omitzero"`
	Incident       string  `json:"incident,omitzero"`
	Reason         string  `json:"reason,omitzero"`
	HistorySeconds float64 `json:"history_seconds,omitzero"` // for how long allocations are recorded first
	Census         bool    `json:"census,omitzero"`          // also count live tensors that carry a grad_fn
}

// AskReply is the collector's answer, at once. The snapshot itself comes as an event.
type AskReply struct {
	Status string `json:"status"` // AskAccepted, AskRefused or AskUnknown
	Error  string `json:"error,omitzero"`
	ID     string `json:"id,omitzero"`
}
