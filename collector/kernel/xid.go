package kernel

import (
	"regexp"
	"strconv"
	"strings"

	"lowtide/event"
)

// busLost is the code of a device that has fallen off the bus, which drivers also say without an Xid.
const busLost = 79

// The driver's lines. An address is domain:bus:device, in some with a function, and behind it a MIG instance ("GPU-I:03").
// Forms as in public kernel logs of drivers 340 to 615: "(0000:03:00)" without PCI:, pid=1234, pid='1234', pid='<unknown>',
// name=<unknown>, no pid at all.
var (
	xidLine   = regexp.MustCompile(`NVRM: Xid \((?:PCI:)?(` + address + `)(?:\.[0-9a-fA-F])?(?: [^)]{0,32})?\): ([0-9]{1,5})(?:[,.: ]|$)`)
	gpuLine   = regexp.MustCompile(`NVRM: GPU at (?:PCI:)?(` + address + `)(?:\.[0-9a-fA-F])?: (GPU-[0-9a-fA-F-]{36})`)
	lostLine  = regexp.MustCompile(`NVRM: (?:The NVIDIA GPU|GPU) (?:PCI:)?(` + address + `)(?:\.[0-9a-fA-F])?\b`)
	addressed = regexp.MustCompile(`\b(` + address + `)\b`)
	xidPid    = regexp.MustCompile(`\bpid=(?:'([^']{0,32})'|([0-9]{1,10}))`)
	xidName   = regexp.MustCompile(`\bname=(?:'([^']{0,64})'|([^,]{0,64}))`)
)

const address = `[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}`

// ParseXid reads a line of the kernel log about an Xid; nil where it is none.
func ParseXid(text string) *event.Xid {
	m := xidLine.FindStringSubmatch(text)
	if m == nil {
		return nil
	}
	code, err := strconv.ParseUint(m[2], 10, 32)
	if err != nil {
		return nil
	}
	x := &event.Xid{Source: "kmsg", Pci: canonical(m[1]), Code: &code}
	if m := xidPid.FindStringSubmatch(text); m != nil {
		if pid, err := strconv.ParseInt(m[1]+m[2], 10, 32); err == nil && pid > 0 {
			x.Pid = &pid
		}
	}
	if m := xidName.FindStringSubmatch(text); m != nil {
		if name := strings.TrimSpace(m[1] + m[2]); name != "<unknown>" {
			x.ProcessName = name
		}
	}
	return x
}

// parseLost reads the beginning of "The NVIDIA GPU 0000:b3:00.0 (…) has fallen off the bus", which may go on in further lines,
// and "GPU 0000:48:00.0: GPU has fallen off the bus". Whether the device was lost shows once the text is complete.
func parseLost(text string) *event.Xid {
	m := lostLine.FindStringSubmatch(text)
	if m == nil || !strings.Contains(text, "The NVIDIA GPU") && !saysLost(text) {
		return nil
	}
	return &event.Xid{Source: "kmsg", Pci: canonical(m[1]), Code: event.Ptr(uint64(busLost))}
}

func saysLost(text string) bool { return strings.Contains(text, "fallen off the bus") }

// canonical writes an address as the driver's own Xid lines do: four digits of domain unless it needs more, lower case.
func canonical(address string) string {
	address = strings.ToLower(address)
	for len(address) > len("0000:00:00") && address[0] == '0' {
		address = address[1:]
	}
	return address
}

// namesOther says whether the text names a device, and only others than this one.
func namesOther(text, pci string) bool {
	all := addressed.FindAllString(text, 8)
	for _, a := range all {
		if canonical(a) == pci {
			return false
		}
	}
	return len(all) > 0
}
