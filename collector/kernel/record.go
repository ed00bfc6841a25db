package kernel

import (
	"bytes"
	"strconv"
	"strings"
	"time"
)

// maxRecord bounds one record in bytes; the kernel's own bound with all escapes is 8 KiB.
const maxRecord = 16 << 10

// record is one entry of the kernel log, as Documentation/ABI/testing/dev-kmsg describes a read of it:
// "priority,sequence,microseconds,flags[,…];text\n", then lines " KEY=value" of a dictionary, which are of no use here.
type record struct {
	facility uint64 // 0 is the kernel itself
	sequence uint64
	uptime   time.Duration // since boot, by the clock of printk
	fragment bool          // continues the record before
	text     string        // unescaped; may have several lines
}

// parseRecord reads one record. False means that it is none.
func parseRecord(b []byte) (record, bool) {
	if len(b) > maxRecord {
		return record{}, false
	}
	head, rest, ok := bytes.Cut(b, []byte{';'})
	if !ok {
		return record{}, false
	}
	fields := strings.SplitN(string(head), ",", 5)
	if len(fields) < 4 {
		return record{}, false
	}
	priority, err1 := strconv.ParseUint(fields[0], 10, 32)
	sequence, err2 := strconv.ParseUint(fields[1], 10, 64)
	micros, err3 := strconv.ParseUint(fields[2], 10, 63)
	if err1 != nil || err2 != nil || err3 != nil || micros > uint64(1<<63-1)/1000 {
		return record{}, false
	}
	text, _, _ := bytes.Cut(rest, []byte{'\n'})
	return record{
		facility: priority >> 3, sequence: sequence, uptime: time.Duration(micros) * time.Microsecond,
		fragment: strings.HasPrefix(fields[3], "+"), text: unescape(text), // "c" is only the first of a line in pieces
	}, true
}

// unescape undoes \xHH, which stands for whatever is not printable ASCII, the line feeds inside a message among it.
func unescape(b []byte) string {
	if !bytes.Contains(b, []byte(`\x`)) {
		return strings.ToValidUTF8(string(b), "\uFFFD")
	}
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		if b[i] == '\\' && i+3 < len(b) && b[i+1] == 'x' {
			if n, err := strconv.ParseUint(string(b[i+2:i+4]), 16, 8); err == nil {
				out = append(out, byte(n))
				i += 3
				continue
			}
		}
		out = append(out, b[i])
	}
	return strings.ToValidUTF8(string(out), "\uFFFD")
}
