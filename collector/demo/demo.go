// Package demo owns the recording that `lowtide up --demo` plays: seven hours of a worker that keeps the tensors of aborted requests,
// recorded on a real GPU. It refuses to change it: who plays it moves it in time.
package demo

import (
	"bytes"
	_ "embed"
	"io"
)

// Name is how errors and warnings call the recording.
const Name = "leak.ndjson.gz"

//go:embed leak.ndjson.gz
var leak []byte

// Leak opens the recording from its beginning, gzip as it was stored.
func Leak() io.Reader { return bytes.NewReader(leak) }
