package allocator

// Probes is how many workers have said hello and are still connected.
func (s *Source) Probes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := 0
	for p := range s.peers {
		if p.hello != nil {
			count++
		}
	}
	return count
}
