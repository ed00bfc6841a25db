package event

import (
	"strconv"
	"strings"
)

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

// InformationalXid says whether an Xid code reports what the device has dealt with. 63: a row was remapped or a page retired, and the
// driver recorded it; what is left to do shows as remap_pending (NVIDIA, Dynamic Page Retirement). 92: many memory errors, all
// corrected. A remapping that failed is 64.
func InformationalXid(code uint64) bool { return code == 63 || code == 92 }

// CauseXid is the code that an Xid blames: its own, or the one that its text names as in "caused by previous Xid 149", which a clean-up
// (45) does. It is zero for an event without a code.
func CauseXid(x *Xid) uint64 {
	const before = "previous Xid "
	if _, after, found := strings.Cut(x.GetText(), before); found {
		digits := len(after) - len(strings.TrimLeft(after, "0123456789"))
		if code, err := strconv.ParseUint(after[:digits], 10, 16); err == nil {
			return code
		}
	}
	return x.GetCode()
}
