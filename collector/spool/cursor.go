package spool

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// cursor is how far a lane has been sent: everything before an offset of a segment. It is written over in place, 20 bytes at once, and
// not forced to disk: where a crash of the host takes it back, the records before it are sent again under their old ids, which the
// server or the processor's high-water marks drop.
type cursor struct {
	segment uint64
	offset  int64
}

const cursorBytes = 8 + 8 + 4

func (c cursor) encode() []byte {
	b := make([]byte, 0, cursorBytes)
	b = binary.LittleEndian.AppendUint64(b, c.segment)
	b = binary.LittleEndian.AppendUint64(b, uint64(c.offset))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeCursor(b []byte) (cursor, error) {
	if len(b) != cursorBytes || crc32.Checksum(b[:16], castagnoli) != binary.LittleEndian.Uint32(b[16:]) {
		return cursor{}, fmt.Errorf("read cursor: %w", errDamaged)
	}
	c := cursor{binary.LittleEndian.Uint64(b), int64(binary.LittleEndian.Uint64(b[8:]))}
	if c.segment > 1<<62 || c.offset < 0 {
		return cursor{}, fmt.Errorf("read cursor: %w", errDamaged)
	}
	return c, nil
}

// openCursor opens or makes the file. A damaged one is a new one: what it had counted as sent is sent again.
func openCursor(path string) (file *os.File, c cursor, damaged bool, err error) {
	file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, cursor{}, false, err
	}
	b, err := io.ReadAll(io.LimitReader(file, cursorBytes+1))
	if err != nil {
		_ = file.Close()
		return nil, cursor{}, false, err
	}
	if len(b) == 0 {
		return file, cursor{}, false, nil
	}
	c, err = decodeCursor(b)
	if err != nil {
		return file, cursor{}, true, file.Truncate(0)
	}
	return file, c, false, nil
}
