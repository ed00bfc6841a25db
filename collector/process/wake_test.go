package process

import "testing"

// Whoever is called knows by then what for: a call that was taken for a tick would move the tick's samples to a moment of their own.
func TestACallIsOwedBeforeItIsHeard(t *testing.T) {
	s := &Source{wake: make(chan struct{}, 1)}
	const calls = 200_000
	done := make(chan int)
	go func() {
		early := 0
		for range calls {
			<-s.wake
			if s.owed.Swap(0) == 0 {
				early++
			}
			done <- 0
		}
		done <- early
	}()
	for range calls {
		s.call()
		<-done
		s.owed.Store(0)
	}
	if early := <-done; early > 0 {
		t.Errorf("%d of %d calls were heard before they were owed", early, calls)
	}
}
