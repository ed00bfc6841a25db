package processor

import (
	"sync"
	"testing"

	"lowtide/processor/broker/brokertest"
)

// Partitions come back while the end of the last one is waited for, as when all seats were lost and are got again at once.
func TestPartitionsComeBackWhileTheLastOneLeaves(t *testing.T) {
	_, _, js := brokertest.Start(t)
	all := judges(t, js)
	var running sync.WaitGroup
	for number := range 8 {
		running.Go(func() {
			for range 200 {
				p := &partition{number: number}
				if err := all.enter(t.Context(), p); err != nil {
					t.Error(err)
					return
				}
				all.leave(p)
			}
		})
	}
	running.Wait()
}
