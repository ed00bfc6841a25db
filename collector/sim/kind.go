package sim

import (
	"fmt"
	"time"
)

// Kind is what a worker of a Source has.
type Kind uint8

// The kinds of worker.
const (
	Healthy   Kind = iota // load in bursts that drain; memory comes back to where it was
	Leaking               // the same load; every aborted request keeps 24 MiB of tensors
	KVPressed             // more work than the KV pool holds: it never drains, queues and preempts
)

// String names the kind as the model of its workers does.
func (k Kind) String() string {
	return [...]string{"healthy", "leaking", "kv-pressed"}[k]
}

// demo adds a worker of a kind, in the middle of its life, with a card of its own.
func (h *host) demo(kind Kind) {
	n := len(h.instances)
	i := h.serve(profile{host: h, cards: []*card{h.newCard(80 * gib)}, spare: 20, model: "sim-" + kind.String(), release: "sim-a"})
	i.unit = fmt.Sprintf("sim-%d", n)
	i.capture = 0
	e := &i.engine
	e.maxSeqs, e.prompt, e.output, e.itl, e.itlPerSeq, e.prefillRate, e.abortShare, e.slo = 48, 512, 500, 0.02, 0.0004, 20_000, 0.04, 0
	e.tokens = 4096 * 16
	i.ranks[0].allocator.noise.sigma = 0 // so that quiet levels come back to the byte
	rate := 10 / e.service(10)
	i.arrivals = arrivals{rate: rate, burst: 7 * time.Minute, pause: 3 * time.Minute, factor: 1}
	switch kind {
	case Leaking:
		i.grow(growth{into: inLive, perAbort: 24 * mib, lump: 24 * mib})
	case KVPressed:
		e.prompt, e.preempt, e.patience = 2500, 0.4, 60
		i.arrivals = arrivals{rate: 1.3 * e.capacity() / e.service(e.capacity()), factor: 1}
	}
	h.at(h.since.Hours(), func() { i.middle(2 * time.Hour) })
}
