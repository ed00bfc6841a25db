package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// proxy stands between a client and a server and can cut, slow and strand their connections.
type proxy struct {
	target   string
	listener net.Listener
	tap      *tap // nil: nobody listens to what is said

	mu     sync.Mutex
	links  map[*link]bool
	refuse bool
	delay  time.Duration // of every chunk
	work   sync.WaitGroup
}

// link is one connection through the proxy.
type link struct {
	client, server net.Conn
	closed         chan struct{}
	once           sync.Once
	stranded       chan struct{} // closed when nothing passes any more
	strand         sync.Once
}

func newProxy(target string, listen *tap) (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for %s: %w", target, err)
	}
	p := &proxy{target: target, listener: listener, tap: listen, links: map[*link]bool{}}
	p.work.Go(p.accept)
	return p, nil
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.work.Go(func() { p.connect(client) })
	}
}

func (p *proxy) connect(client net.Conn) {
	p.mu.Lock()
	refuse := p.refuse
	p.mu.Unlock()
	if refuse {
		reset(client)
		return
	}
	server, err := net.DialTimeout("tcp", p.target, 2*time.Second)
	if err != nil {
		reset(client)
		return
	}
	l := &link{client: client, server: server, closed: make(chan struct{}), stranded: make(chan struct{})}
	p.mu.Lock()
	p.links[l] = true
	p.mu.Unlock()
	var up, down io.Writer
	if p.tap != nil {
		up, down = p.tap.link()
	}
	var both sync.WaitGroup
	both.Go(func() { p.pump(l, server, client, up) })
	both.Go(func() { p.pump(l, client, server, down) })
	both.Wait()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// pump moves one direction. What the tap hears was received from the sender, whether or not the receiver gets it.
func (p *proxy) pump(l *link, to, from net.Conn, hear io.Writer) {
	defer l.cut()
	chunk := make([]byte, 32<<10)
	for {
		n, err := from.Read(chunk)
		select {
		case <-l.stranded: // as if the path between them were gone: no data, no end
			<-l.closed
			return
		default:
		}
		if n > 0 {
			if hear != nil {
				_, _ = hear.Write(chunk[:n])
			}
			p.mu.Lock()
			delay := p.delay
			p.mu.Unlock()
			if delay > 0 {
				select {
				case <-l.closed:
					return
				case <-time.After(delay):
				}
			}
			if _, err := to.Write(chunk[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (l *link) cut() {
	l.once.Do(func() {
		close(l.closed)
		reset(l.client)
		reset(l.server)
	})
}

// reset closes with RST, as a host does that knows nothing of the connection.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// cut ends every connection; with refuse, new ones are reset too until heal.
func (p *proxy) cut(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
	for l := range p.links {
		l.cut()
	}
}

// strand leaves the present connections half open for good; new ones work.
func (p *proxy) strand() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.strand.Do(func() { close(l.stranded) })
	}
}

func (p *proxy) slow(by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = by
}

// heal takes connections again, at full speed. What is stranded stays so: nobody tells a half-open connection that it is.
func (p *proxy) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse, p.delay = false, 0
}

func (p *proxy) close() error {
	err := p.listener.Close()
	p.cut(true)
	p.work.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// paths are the proxies of one client, one to each server that it may use.
type paths []*proxy

func newPaths(targets []string, listen *tap) (all paths, err error) {
	for _, target := range targets {
		p, err := newProxy(target, listen)
		if err != nil {
			return all, err
		}
		all = append(all, p)
	}
	return all, nil
}

// url is what a client of NATS is given.
func (all paths) url(user string) string {
	var out []string
	for _, p := range all {
		out = append(out, "nats://"+user+":"+password+"@"+p.address())
	}
	return strings.Join(out, ",")
}

func (all paths) cut(refuse bool) {
	for _, p := range all {
		p.cut(refuse)
	}
}

func (all paths) strand() {
	for _, p := range all {
		p.strand()
	}
}

func (all paths) slow(by time.Duration) {
	for _, p := range all {
		p.slow(by)
	}
}

func (all paths) heal() {
	for _, p := range all {
		p.heal()
	}
}

func (all paths) close() error {
	var errs []error
	for _, p := range all {
		errs = append(errs, p.close())
	}
	return errors.Join(errs...)
}
