package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"

	"lowtide/collector/status"
)

// acceptText asks for the text format 0.0.4: OpenMetrics would bring exemplars, and protobuf is not read.
const acceptText = "text/plain;version=0.0.4;q=1, */*;q=0.1"

// errReached marks a failure of something that did answer as HTTP.
var errReached = errors.New("answered")

// get reads one document into a buffer. The error wraps the status that it means; a server that answered at all is errReached.
func (s *Source) get(ctx context.Context, u *url.URL, accept string, limit int64, into *bytes.Buffer) error {
	into.Reset()
	ctx, cancel := context.WithTimeout(ctx, s.o.Deadline)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fmt.Errorf("%w: not a request", status.ErrUnsupported)
	}
	request.Header.Set("Accept", accept)
	request.Header.Set("User-Agent", "lowtide")
	response, err := s.client.Do(request)
	if err != nil {
		return s.unreachable(ctx, err)
	}
	defer response.Body.Close()
	if err := refuse(response, limit); err != nil {
		if response.StatusCode != http.StatusOK && response.ContentLength < 16<<10 {
			// A short answer is read to its end, so that the connection can be used again. Whether that works is of no interest.
			_, _ = io.CopyN(io.Discard, response.Body, 16<<10)
		}
		return fmt.Errorf("%w: %w", errReached, err)
	}
	// The transport unpacks gzip on the way, so the bound is on what comes out of it.
	n, err := io.Copy(into, io.LimitReader(response.Body, limit+1))
	switch {
	case n > limit:
		return fmt.Errorf("%w: %w: answer is longer than %d bytes", errReached, status.ErrUnsupported, limit)
	case err != nil:
		return fmt.Errorf("%w: %w", errReached, s.unreachable(ctx, err))
	}
	return nil
}

// refuse says why an answer is not read.
func refuse(r *http.Response, limit int64) error {
	switch code := r.StatusCode; {
	case code >= 300 && code < 400:
		return fmt.Errorf("%w: HTTP %d, redirects are not followed; hint: configure the address it leads to", status.ErrUnsupported, code)
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return fmt.Errorf("%w: HTTP %d", status.ErrDenied, code)
	case code >= 500 || code == http.StatusTooManyRequests:
		return fmt.Errorf("%w: HTTP %d", status.ErrLost, code)
	case code != http.StatusOK:
		return fmt.Errorf("%w: HTTP %d", status.ErrUnsupported, code)
	case r.ContentLength > limit:
		return fmt.Errorf("%w: answer of %d bytes, more than %d", status.ErrUnsupported, r.ContentLength, limit)
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return fmt.Errorf("%w: content encoding %.20q", status.ErrUnsupported, coding)
	}
	return nil
}

// unreachable gives the failure of a connection its status. The error of net/http quotes the whole URL, so only its cause is kept.
func (s *Source) unreachable(ctx context.Context, err error) error {
	var named *url.Error
	if errors.As(err, &named) {
		err = named.Err
	}
	var resolve *net.DNSError
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("no whole answer within %v: %w", s.o.Deadline, context.DeadlineExceeded)
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: connection refused", status.ErrAbsent)
	case errors.As(err, &resolve):
		return fmt.Errorf("%w: no such host", status.ErrAbsent)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w: %v", status.ErrDenied, err)
	case strings.Contains(err.Error(), "malformed HTTP"):
		return fmt.Errorf("%w: does not speak HTTP", status.ErrUnsupported)
	}
	return fmt.Errorf("%w: %v", status.ErrLost, err)
}
