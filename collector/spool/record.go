package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"lowtide/event"
)

// Record is one message as it is first published: what is sent later is the same bytes under the same id.
type Record struct {
	At      time.Time // when it came here, by the wall clock
	Events  int       // in Data
	Subject string
	ID      string // Nats-Msg-Id: host, producer, lane and sequence of the first attempt
	Data    []byte
}

// A record in a file: length of the body and CRC-32C of length and body, four bytes each, then the body: time in nanoseconds, events,
// lengths of subject and id, subject, id, data. All numbers are little-endian.
const (
	frameBytes = 8
	fixedBytes = 8 + 4 + 2 + 2
	maxBody    = event.MaxBatch + 4<<10 // the largest message of the wire, with its names
)

var (
	// ErrTooLarge is wrapped where a record is larger than the wire takes or than the whole spool may be.
	ErrTooLarge = errors.New("message is too large for the spool")

	errTorn    = errors.New("torn record")    // it ends before its length says
	errDamaged = errors.New("damaged record") // it is there and is not what was written
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendRecord appends the frame and the body of a record. The error wraps ErrTooLarge.
func appendRecord(to []byte, r *Record) ([]byte, error) {
	body := fixedBytes + len(r.Subject) + len(r.ID) + len(r.Data)
	if len(r.Subject) > math.MaxUint16 || len(r.ID) > math.MaxUint16 || body > maxBody || r.Events < 0 || r.Events > math.MaxInt32 {
		return to, fmt.Errorf("%w: %d bytes, %d events, subject of %d bytes, id of %d", ErrTooLarge, len(r.Data), r.Events, len(r.Subject), len(r.ID))
	}
	start := len(to)
	to = binary.LittleEndian.AppendUint32(to, uint32(body))
	to = append(to, 0, 0, 0, 0)
	to = binary.LittleEndian.AppendUint64(to, uint64(r.At.UnixNano()))
	to = binary.LittleEndian.AppendUint32(to, uint32(r.Events))
	to = binary.LittleEndian.AppendUint16(to, uint16(len(r.Subject)))
	to = binary.LittleEndian.AppendUint16(to, uint16(len(r.ID)))
	to = append(to, r.Subject...)
	to = append(to, r.ID...)
	to = append(to, r.Data...)
	binary.LittleEndian.PutUint32(to[start+4:], checksum(to[start:start+4], to[start+frameBytes:]))
	return to, nil
}

// checksum covers the length, too: a file of zeros is no record.
func checksum(length, body []byte) uint32 {
	return crc32.Update(crc32.Checksum(length, castagnoli), castagnoli, body)
}

// bodyLength reads the length of the body that follows a frame. The error is errDamaged where no record has such a length.
func bodyLength(frame []byte) (int, error) {
	n := binary.LittleEndian.Uint32(frame)
	if n < fixedBytes || n > maxBody {
		return 0, errDamaged
	}
	return int(n), nil
}

// decodeRecord reads the record that begins with the first byte, and says how many bytes it takes. Data is part of the argument. The
// error is errTorn or errDamaged.
func decodeRecord(b []byte) (r Record, size int, err error) {
	if len(b) < frameBytes {
		return r, 0, errTorn
	}
	n, err := bodyLength(b)
	if err != nil {
		return r, 0, err
	}
	if len(b) < frameBytes+n {
		return r, 0, errTorn
	}
	body := b[frameBytes : frameBytes+n]
	if checksum(b[:4], body) != binary.LittleEndian.Uint32(b[4:]) {
		return r, 0, errDamaged
	}
	events := binary.LittleEndian.Uint32(body[8:])
	subject, id := int(binary.LittleEndian.Uint16(body[12:])), int(binary.LittleEndian.Uint16(body[14:]))
	if fixedBytes+subject+id > n || events > math.MaxInt32 {
		return r, 0, errDamaged
	}
	names := body[fixedBytes : fixedBytes+subject+id]
	return Record{
		At: time.Unix(0, int64(binary.LittleEndian.Uint64(body))), Events: int(events),
		Subject: string(names[:subject]), ID: string(names[subject:]), Data: body[fixedBytes+subject+id:],
	}, frameBytes + n, nil
}
