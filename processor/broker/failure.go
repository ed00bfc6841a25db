package broker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Failure is an error with a remedy that a user can act on. Hint returns the remedy.
type Failure struct {
	What   string
	Remedy string
	Err    error // may be nil
	Code   int   // exit code of the command; 1 when zero, 2 for wrong usage
}

// ExitCode is what the command ends with.
func (f *Failure) ExitCode() int { return max(1, f.Code) }

func (f *Failure) Error() string { return f.What }

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

// Hint returns one line that says what to do.
func (f *Failure) Hint() string { return f.Remedy }

// the codes of the JetStream API that mean a full store
const (
	codeStorage  jetstream.ErrorCode = 10047 // insufficient storage resources available
	codeResource jetstream.ErrorCode = 10023 // insufficient resources
	codeStore    jetstream.ErrorCode = 10077 // message could not be stored
)

// Explain gives an error of NATS or of its files the remedy that goes with it; any other keeps its text after `what: `.
func Explain(what string, err error) error {
	if err == nil {
		return nil
	}
	return explain(what, err)
}

func explain(what string, err error) error {
	var known *Failure
	if errors.As(err, &known) {
		return fmt.Errorf("%s: %w", what, err)
	}
	if remedy := remedyFor(err); remedy != "" {
		return &Failure{What: what + ": " + err.Error(), Remedy: remedy, Err: err}
	}
	return fmt.Errorf("%s: %w", what, err)
}

func remedyFor(err error) string {
	var api *jetstream.APIError
	switch {
	case errors.Is(err, syscall.ENOSPC), strings.Contains(err.Error(), "no space left on device"):
		return "the disk of the broker is full: free some space, or choose another folder with --data"
	case errors.As(err, &api) && (api.ErrorCode == codeStorage || api.ErrorCode == codeResource || api.ErrorCode == codeStore):
		return "the broker may not store more: free disk space, or raise max_file_store of the server above the limits of the streams"
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return "the server runs without JetStream: start it with -js, or enable it for this account"
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrPermissionViolation):
		return "the broker refused the credentials: use the address in up.json, or ask who runs the broker"
	case errors.Is(err, nats.ErrNoServers), errors.Is(err, syscall.ECONNREFUSED):
		return "nothing answers there: is `lowtide up` running, and is the address of --nats right?"
	case errors.Is(err, context.DeadlineExceeded):
		return "the broker did not answer in time: it is overloaded, or its disk is full"
	case errors.Is(err, fs.ErrPermission):
		return "this user may not write there: choose another folder with --data"
	}
	return ""
}
