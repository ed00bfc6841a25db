package snapshot

import (
	"fmt"

	"lowtide/event"
)

// Known is what others know of a card or of the process; nil is not known. All are bytes.
type Known struct {
	WeightsBytes     *uint64 // of the model on this card
	KVPoolBytes      *uint64 // that the engine took for its KV cache on this card
	DeviceTotalBytes *uint64
	DeviceUsedBytes  *uint64 // by all processes
	ProcessUsedBytes *uint64 // by this process, as the driver tells
}

// budget divides the card among what it is used for. The five parts are weights, kv_pool, activations, runtime and cached; with free
// and what other processes use they are the whole card. A part that does not follow from what is known is absent, and a sentence says so.
//
//	activations  live outside of private pools − weights − kv_pool
//	graphs       reserved in private pools
//	outside      used by the process − reserved
//	runtime      graphs + outside
//	cached       free and pending in the other pools
//	free         of the card − used by all processes
func (c *card) budget(k Known) (*event.SnapshotBudget, []string) {
	b := &event.SnapshotBudget{Weights: k.WeightsBytes, KvPool: k.KVPoolBytes}
	var lacking []string
	cached := minus(plus(c.free, c.pending), plus(c.private.free, c.private.pending))
	graphs := c.private.reserved
	b.Cached, b.Graphs = &cached, &graphs
	live := minus(c.live, c.private.live)
	switch {
	case k.WeightsBytes == nil && k.KVPoolBytes == nil:
		lacking = append(lacking, "Which blocks are weights, KV pool or activations is not known: a snapshot has no names for them.")
	case k.WeightsBytes == nil:
		lacking = append(lacking, "Which blocks are weights and which activations is not known.")
	case k.KVPoolBytes == nil:
		lacking = append(lacking, "Which blocks are the KV pool and which activations is not known.")
	default:
		if fixed := plus(*k.WeightsBytes, *k.KVPoolBytes); fixed <= live {
			rest := live - fixed
			b.Activations = &rest
			break
		}
		lacking = append(lacking, fmt.Sprintf("Activations are not known: weights and KV pool are said to be %s, and %s are live outside of private pools.",
			quantity(plus(*k.WeightsBytes, *k.KVPoolBytes)), quantity(live)))
		if c.private.live > 0 {
			b.Graphs = nil // they may lie in a MemPool, as with a sleep mode
		}
	}
	switch {
	case k.ProcessUsedBytes == nil:
		lacking = append(lacking, "What the process uses outside of PyTorch (CUDA context, NCCL, native allocations) is not in a snapshot.")
	case *k.ProcessUsedBytes < c.reserved:
		lacking = append(lacking, fmt.Sprintf("What the process uses outside of PyTorch does not follow: the driver gives it %s and PyTorch has reserved %s.",
			quantity(*k.ProcessUsedBytes), quantity(c.reserved)))
	default:
		outside := *k.ProcessUsedBytes - c.reserved
		b.Outside = &outside
		if b.Graphs != nil {
			runtime := plus(outside, graphs)
			b.Runtime = &runtime
		}
	}
	switch {
	case k.DeviceTotalBytes == nil || k.DeviceUsedBytes == nil:
		lacking = append(lacking, "What is free on the card, and what other processes use, is not in a snapshot.")
	case *k.DeviceUsedBytes <= *k.DeviceTotalBytes:
		free := *k.DeviceTotalBytes - *k.DeviceUsedBytes
		b.Free = &free
	default:
		lacking = append(lacking, fmt.Sprintf("What is free on the card does not follow: %s are used of %s.", quantity(*k.DeviceUsedBytes), quantity(*k.DeviceTotalBytes)))
	}
	return b, lacking
}
