package main

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"testing"
	"time"
)

// echo is a server that says everything again.
func echo(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn); conn.Close() }()
		}
	}()
	return listener.Addr().String()
}

// dialed returns a client that says hello and hears the answer, or that none comes within its patience.
func dialed(t *testing.T, p *proxy, patience time.Duration) func() (string, error) {
	t.Helper()
	conn, err := net.Dial("tcp", p.address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	reader := bufio.NewReader(conn)
	return func() (string, error) {
		if _, err := conn.Write([]byte("hello\n")); err != nil {
			return "", err
		}
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		return reader.ReadString('\n')
	}
}

func TestProxyCutsStrandsAndHeals(t *testing.T) {
	p, err := newProxy(echo(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	const answered, silent = 10 * time.Second, 300 * time.Millisecond
	ask := dialed(t, p, silent)
	if got, err := dialed(t, p, answered)(); err != nil || got != "hello\n" {
		t.Fatalf("through the proxy: %q %v", got, err)
	}
	eventually(t, "both are connected", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.links) == 2 })
	p.strand()
	if _, err := ask(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("half open: %v, want silence without an end", err)
	}
	if got, err := dialed(t, p, answered)(); err != nil || got != "hello\n" {
		t.Errorf("a new connection beside a half-open one: %q %v", got, err)
	}
	p.heal()
	if _, err := ask(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("half open after it healed: %v, want that nobody tells", err)
	}
	ask = dialed(t, p, answered)
	if _, err := ask(); err != nil {
		t.Fatal(err)
	}
	p.cut(true)
	if _, err := ask(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("cut: %v, want an end", err)
	}
	if conn, err := net.Dial("tcp", p.address()); err == nil { // the reset may meet it while it dials, or after
		_ = conn.SetReadDeadline(time.Now().Add(answered))
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("refused: %v, want an end", err)
		}
		_ = conn.Close()
	}
	p.heal()
	ask = dialed(t, p, answered)
	if got, err := ask(); err != nil || got != "hello\n" {
		t.Errorf("healed: %q %v", got, err)
	}
}

func TestTapHearsWhatIsAcknowledged(t *testing.T) {
	tap := newTap()
	up, down := tap.link()
	say := func(to io.Writer, text string) {
		for i := range text { // as it may arrive: torn anywhere
			_, _ = to.Write([]byte(text[i : i+1]))
		}
	}
	message := func(reply, id string) string {
		header := "NATS/1.0\r\nNats-Msg-Id: " + id + "\r\n\r\n"
		return "HPUB lowtide.event.a.b.c " + reply + " " + strconv.Itoa(len(header)) + " " + strconv.Itoa(len(header)+8) + "\r\n" + header + "12\r\nMSG \r\n"
	}
	say(up, "CONNECT {\"verbose\":false}\r\nPING\r\nSUB _INBOX.a.* 1\r\n"+message("_INBOX.a.1", "one")+message("_INBOX.a.2", "two")+message("_INBOX.a.3", "three"))
	answer := func(reply, body string) string {
		return "MSG " + reply + " 1 " + strconv.Itoa(len(body)) + "\r\n" + body + "\r\n"
	}
	say(down, "INFO {\"max_payload\":1}\r\nPONG\r\n"+answer("_INBOX.a.1", `{"stream":"LOWTIDE_EVENTS","seq":7}`)+
		answer("_INBOX.a.2", `{"error":{"code":503,"description":"no room"},"stream":"LOWTIDE_EVENTS","seq":0}`)+answer("_INBOX.a.9", `{"stream":"S","seq":1}`))
	if got := tap.acknowledged(); len(got) != 1 || got["one"] != 7 {
		t.Errorf("acknowledged %v, want one at 7: two was refused, and three has no answer", got)
	}
}
