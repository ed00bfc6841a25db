package notifier

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Sender tells people on one medium. Post is called once per incident, Update for every later card of it; the desk makes one call of a
// Sender at a time, with a deadline, while it may be calling others. A nil error means that the medium has the message. An error that is no *Failure leaves open
// whether it was sent.
type Sender interface {
	Name() string // stable across restarts: receipts are kept under it
	Post(ctx context.Context, card Card) (Receipt, error)
	Update(ctx context.Context, receipt Receipt, card Card) error
}

// finder is a Sender whose medium can be asked whether an incident was posted. It heals a crash between sending and noting it.
type finder interface {
	Find(ctx context.Context, incident string, since time.Time) (receipt Receipt, found bool, err error)
}

// Receipt names a message on its medium, so that it can be updated in place.
type Receipt struct {
	Channel string `json:"channel,omitempty"`
	TS      string `json:"ts,omitempty"`
	Fires   string `json:"fires,omitempty"` // of an alert: the labels that it was sent with last, where they are others than the first
}

// noter is a Sender whose receipt changes with the cards that its medium took. Noted returns the receipt after an Update that succeeded.
type noter interface {
	Noted(receipt Receipt, card Card) Receipt
}

// ErrGone says that the message of a receipt can no longer be updated: somebody deleted it, or it was another bot's.
var ErrGone = errors.New("message is gone")

// ErrCannotLook says that the medium does not let this sender look for earlier messages.
var ErrCannotLook = errors.New("cannot look for earlier messages")

// Failure is an answer of the medium that proves that the message was not sent.
type Failure struct {
	After time.Duration // how long the medium asks to wait; zero when it does not say
	Err   error
}

func (f *Failure) Error() string {
	if f.After > 0 {
		return fmt.Sprintf("%v (retry after %s)", f.Err, f.After)
	}
	return f.Err.Error()
}

// Unwrap returns the reason.
func (f *Failure) Unwrap() error { return f.Err }
