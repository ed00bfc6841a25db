package notifier

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"lowtide/event"
)

// The limits of what a courier reads and waits.
const (
	courierTime  = 10 * time.Second // of one call, unless the context ends sooner
	maxAnswer    = 64 << 10         // bytes of an answer that are read
	answerShown  = 200              // bytes of a refusal that an error quotes
	maxWait      = time.Hour        // that an answer may ask for
	maxSecretLen = 4096             // bytes of a secret in a file
	minPart      = 6                // bytes of a part of an address that may be a secret by itself: "api" and "v2" are none
)

// courier posts JSON to one address. The address and the secrets that it carries stand in no error.
type courier struct {
	what    string // for errors: "webhook hook"
	address string
	secrets []string // what is taken out of errors, beside the address
	client  http.Client
	now     func() time.Time
}

// errand is where a courier goes, and with what.
type errand struct {
	kind, name   string // of the output, which has the name of its kind when it has no other
	url, urlFile string // one of them
	path         string // which is added to the url unless it ends so; empty for none
	secret       string // what the secret is called
	secretFile   string // empty for none
	client       *http.Client
	now          func() time.Time
}

// openCourier finds the address and the secret of an errand, and checks them. It calls nobody.
func openCourier(e errand) (c *courier, name, secret string, err error) {
	name = cmp.Or(e.name, e.kind)
	what := strings.ReplaceAll(e.kind, "_", " ")
	if name != e.kind {
		what += " " + name
	}
	address, err := addressOf(what, e.url, e.urlFile)
	if err != nil {
		return nil, "", "", err
	}
	if address != "" && e.path != "" {
		if strings.ContainsAny(address, "?#") {
			return nil, "", "", fmt.Errorf("open %s: its url has a query or an anchor\nhint: give the address of the server alone", what)
		}
		address = strings.TrimSuffix(strings.TrimSuffix(address, "/"), e.path) + e.path
	}
	if e.secretFile != "" {
		if secret, err = ReadSecret(e.secret+" of "+what, e.secretFile); err != nil {
			return nil, "", "", err
		}
	}
	c, err = newCourier(what, address, e.client, e.now, secret)
	return c, name, secret, err
}

// newCourier checks an address. It does not call it.
func newCourier(what, address string, client *http.Client, now func() time.Time, secrets ...string) (*courier, error) {
	c := &courier{what: what, address: address, now: now}
	u, err := url.Parse(address)
	switch {
	case address == "":
		return nil, fmt.Errorf("open %s: no address\nhint: give it a url, or a url_file", what)
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("open %s: what stands as its url is no address\nhint: it begins with https:// or http:// and has a host", what)
	}
	if client != nil {
		c.client = *client
	}
	// A redirect would carry the card, and what signs it, to whoever the answer names.
	c.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if c.now == nil {
		c.now = time.Now
	}
	password, _ := u.User.Password()
	parts := append([]string{address, u.RequestURI(), u.EscapedPath(), u.Path, u.RawQuery, u.User.String(), password}, strings.Split(u.Path, "/")...)
	for _, values := range u.Query() {
		parts = append(parts, values...)
	}
	for _, part := range parts {
		if len(part) >= minPart {
			secrets = append(secrets, part)
		}
	}
	for _, secret := range secrets {
		if secret != "" {
			c.secrets = append(c.secrets, secret)
		}
	}
	slices.SortFunc(c.secrets, func(a, b string) int { return len(b) - len(a) }) // the whole before its parts
	return c, nil
}

// post sends a body. A *Failure means that the other side did not take it; of any other error nobody knows.
func (c *courier) post(ctx context.Context, body []byte, header map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, courierTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.address, bytes.NewReader(body))
	if err != nil {
		return &Failure{Err: fmt.Errorf("post to %s: the request cannot be made", c.what)}
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "lowtide")
	for name, value := range header {
		request.Header.Set(name, value)
	}
	response, err := c.client.Do(request)
	if err != nil {
		return c.unsent(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if response.StatusCode >= 200 && response.StatusCode < 300 {
		return nil // it was taken, also when the rest of the answer is lost
	}
	if err != nil {
		text = nil
	}
	return c.refusal(response, text)
}

// unsent sorts an error of the client. The address stands in its outermost form and is left there.
func (c *courier) unsent(err error) error {
	var outer *url.Error
	if errors.As(err, &outer) {
		err = outer.Err
	}
	clean := fmt.Errorf("post to %s: %s", c.what, c.redact(err.Error()))
	if errors.Is(err, context.DeadlineExceeded) {
		clean = fmt.Errorf("post to %s: no answer in time", c.what)
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return &Failure{Err: clean}
	}
	return clean
}

// refusal is the error of an answer that is not 2xx.
func (c *courier) refusal(response *http.Response, text []byte) error {
	status := response.StatusCode
	said := ""
	if line := tidy(c.redact(string(text))); line != "" {
		said = ": " + event.Shorten(line, answerShown)
	}
	err := fmt.Errorf("post to %s: answered %d %s%s", c.what, status, http.StatusText(status), said)
	after := c.retryAfter(response.Header.Get("Retry-After"))
	switch {
	case status >= 300 && status < 400:
		return &Failure{Err: fmt.Errorf("post to %s: answered %d, a redirect\nhint: redirects are not followed; give the address that it leads to", c.what, status)}
	case status == http.StatusTooManyRequests:
		return &Failure{After: max(after, time.Second), Err: err}
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return &Failure{Err: fmt.Errorf("%w\nhint: the address, or the secret that goes with it, is not accepted there", err)}
	case status == http.StatusNotFound || status == http.StatusGone:
		return &Failure{Err: fmt.Errorf("%w\nhint: is the path of the address right?", err)}
	case status < 500 || after > 0:
		return &Failure{After: after, Err: err}
	}
	return err
}

// retryAfter reads how long to wait: a number of seconds or a date; zero when it says neither.
func (c *courier) retryAfter(text string) time.Duration {
	if seconds, err := strconv.ParseUint(strings.TrimSpace(text), 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, maxWait)
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(c.now()), 0), maxWait)
}

// redact takes the address, its parts and the secrets out of text.
func (c *courier) redact(text string) string {
	for _, secret := range c.secrets {
		for _, form := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret)} {
			text = strings.ReplaceAll(text, form, "[redacted]")
		}
	}
	return text
}

// ReadSecret reads a secret from a file that nobody but its owner can read; what names it in errors. The secret itself stands in none.
func ReadSecret(what, path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", what, err)
	}
	if info.IsDir() {
		return "", fmt.Errorf("read %s: %s is a folder", what, path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return "", fmt.Errorf("read %s: %s has mode %04o, others can read it\nhint: chmod 600 %s", what, path, mode, path)
	}
	if info.Size() > maxSecretLen {
		return "", fmt.Errorf("read %s: %s is %d bytes long, the limit is %d\nhint: put it alone into the file", what, path, info.Size(), maxSecretLen)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", what, err)
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" {
		return "", fmt.Errorf("read %s: %s is empty", what, path)
	}
	return secret, nil
}

// addressOf is the address itself, or what a file holds.
func addressOf(what, address, file string) (string, error) {
	if address != "" && file != "" {
		return "", fmt.Errorf("open %s: it has a url and a url_file\nhint: give one of them", what)
	}
	if file == "" {
		return address, nil
	}
	return ReadSecret("address of "+what, file)
}
