package engine

import (
	"encoding/binary"
	"strings"
)

// helloQuery is what clickhouse-go sends first on every connection.
const helloQuery = "SELECT displayName(), version(), revision(), timezone()"

// helloReply is the answer in the Native form of protocol revision 54460, which clickhouse-go takes this one reply to have.
// The revision given in it is 0: then the driver reads every later reply as plain Native, which is what the library writes.
func helloReply(version, timezone string) []byte {
	var b []byte
	b = append(b, 1, 0, 2, 0xff, 0xff, 0xff, 0xff, 0) // block info: is_overflows 0, bucket_num -1, end
	b = append(b, 4, 1)                               // columns, rows
	column := func(name, kind string) {
		b = appendText(b, name)
		b = appendText(b, kind)
		b = append(b, 0) // no custom serialization
	}
	column("displayName()", "String")
	b = appendText(b, "lowtide")
	column("version()", "String")
	b = appendText(b, version)
	column("revision()", "UInt32")
	b = binary.LittleEndian.AppendUint32(b, 0)
	column("timezone()", "String")
	return appendText(b, timezone)
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

func isHello(text []byte, format string) bool {
	return len(text) < 100 && format == "Native" && strings.TrimSpace(string(text)) == helloQuery
}
