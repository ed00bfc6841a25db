package event

// ApplicationXid says whether an Xid code blames the program rather than the device: 13 (exception in a kernel), 31 (MMU fault),
// 43 (the channel was stopped because of a fault in it), 45 (a channel was torn down, mostly the clean-up after another error),
// 68 (video processor exception) and 109 (context switch timeout). It is the list of codes that NVIDIA's Kubernetes device plugin
// keeps a device healthy for. 94 is not among them: the program dies of it, but what failed is the memory.
func ApplicationXid(code uint64) bool {
	switch code {
	case 13, 31, 43, 45, 68, 109:
		return true
	}
	return false
}
