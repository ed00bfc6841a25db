package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/processor/broker"
	"lowtide/sink/engine"
)

// judging is a processor with its own ways to the broker and to the store.
type judging struct {
	*child
	broker paths
	store  *storeProxy
	health string // where it answers /readyz
}

// node is one server of the broker.
type node struct {
	*child
	port, routes int
	disk         *disk // nil unless it has a file system of its own
}

func (n *node) address() string { return "127.0.0.1:" + strconv.Itoa(n.port) }

// world is everything that one run starts.
type world struct {
	plan   Plan
	folder string
	bins   binaries
	pace   time.Duration // between two ticks of a collector

	enginePort int
	nodes      []*node
	engine     *child
	slack      *slackStub
	processors []*judging
	collectors []*playing
	closers    []func() error
}

const (
	password  = "fault" // of every user of the broker, which listens on loopback for as long as a run lasts
	spoolDisk = 8 << 20
	storeDisk = 160 << 20
)

// newWorld starts the broker, the engine and the processors, and waits until they have made their streams. Whatever it returns, close
// ends.
func newWorld(ctx context.Context, plan Plan, folder string, bins binaries, all library) (*world, error) {
	w := &world{plan: plan, folder: folder, bins: bins}
	var err error
	if w.enginePort, err = freePort(); err != nil {
		return w, err
	}
	if w.slack, err = newSlackStub(); err != nil {
		return w, err
	}
	w.closers = append(w.closers, w.slack.close)
	if err := errors.Join(w.startBroker(), w.startEngine()); err != nil {
		return w, err
	}
	if err := w.ready(ctx); err != nil {
		return w, err
	}
	for i := range plan.Processors {
		if err := w.addProcessor(i); err != nil {
			return w, err
		}
	}
	if err := w.streams(ctx); err != nil {
		return w, err
	}
	for _, one := range all.parts(plan, time.Now().Add(-playedAgo)) {
		if err := w.addCollector(one); err != nil {
			return w, err
		}
	}
	return w, nil
}

// startBroker starts one server, or as many as the plan says as a cluster, with the configuration that deploy/ recommends.
func (w *world) startBroker() error {
	var routes []string
	for range w.plan.Nodes {
		n := new(node)
		var err error
		if n.port, err = freePort(); err == nil {
			n.routes, err = freePort()
		}
		if err != nil {
			return err
		}
		w.nodes = append(w.nodes, n)
		routes = append(routes, "nats://127.0.0.1:"+strconv.Itoa(n.routes))
	}
	for i, n := range w.nodes {
		name := "broker"
		if len(w.nodes) > 1 {
			name += strconv.Itoa(i)
		}
		data := filepath.Join(w.folder, name)
		var err error
		if w.plan.has(DiskBroker) {
			if n.disk, err = mountDisk(data, storeDisk); err != nil {
				return err
			}
			w.closers = append(w.closers, n.disk.close)
		}
		env := []string{"LOWTIDE_NATS_DIR=" + data}
		for _, user := range []string{"COLLECTOR", "PROCESSOR", "OPERATOR", "READER"} {
			env = append(env, "LOWTIDE_"+user+"_PASSWORD="+password)
		}
		args := []string{"-c", w.bins.config, "-a", "127.0.0.1", "-p", strconv.Itoa(n.port)}
		if len(w.nodes) > 1 {
			args = append(args, "--name", name, "--cluster_name", "fault", "--cluster", routes[i], "--routes", strings.Join(routes, ","), "--no_advertise")
		}
		if n.child, err = newChild(w.folder, name, w.bins.nats, env, func() []string { return args }); err != nil {
			return err
		}
		if err := n.start(); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) startEngine() error {
	args := []string{"engine", "--listen", w.engineAddress(), "--data", filepath.Join(w.folder, "engine"), "--memory", "1GiB", "--library", w.bins.library}
	c, err := newChild(w.folder, "engine", w.bins.lowtide, nil, func() []string { return args })
	if err != nil {
		return err
	}
	w.engine = c
	return c.start()
}

func (w *world) engineAddress() string { return "127.0.0.1:" + strconv.Itoa(w.enginePort) }

func (w *world) nodeAddresses() (all []string) {
	for _, n := range w.nodes {
		all = append(all, n.address())
	}
	return all
}

// ready waits for the broker and the engine to answer.
func (w *world) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 40*time.Second, errors.New("broker and engine do not answer"))
	defer cancel()
	return until(ctx, 50*time.Millisecond, func() (bool, error) {
		conn, js, err := w.dial()
		if err != nil {
			return false, err
		}
		defer conn.Close()
		once, cancel := context.WithTimeout(ctx, 2*time.Second) // a cluster without a leader answers nothing
		defer cancel()
		if _, err := js.AccountInfo(once); err != nil {
			return false, err
		}
		_, err = w.query(ctx, "SELECT 1")
		return err == nil, err
	})
}

func (w *world) addProcessor(i int) error {
	secret, err := w.secret()
	if err != nil {
		return err
	}
	p := new(judging)
	if p.broker, err = newPaths(w.nodeAddresses(), nil); err != nil {
		return err
	}
	w.closers = append(w.closers, p.broker.close)
	if p.store, err = newStoreProxy(w.engineAddress()); err != nil {
		return err
	}
	w.closers = append(w.closers, p.store.close)
	port, err := freePort()
	if err != nil {
		return err
	}
	p.health = "127.0.0.1:" + strconv.Itoa(port)
	args := []string{"process", "--metrics-listen", p.health, "--nats", p.broker.url("processor"), "--clickhouse", p.store.address(), "--user", engine.RoleWriter,
		"--slack-channel", "C1", "--slack-url", w.slack.address()}
	if len(w.nodes) > 1 {
		args = append(args, "--replicas", strconv.Itoa(min(len(w.nodes), 3)))
	}
	p.child, err = newChild(w.folder, fmt.Sprintf("processor%d", i), w.bins.lowtide, []string{"LOWTIDE_CLICKHOUSE_PASSWORD=" + secret, "LOWTIDE_SLACK_TOKEN=xoxb-fault"}, func() []string { return args })
	if err != nil {
		return err
	}
	w.processors = append(w.processors, p)
	return p.start()
}

// readied waits until a processor says that it does its work.
func (p *judging) readied(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 40*time.Second, errors.New(p.name+" does not become ready"))
	defer cancel()
	return until(ctx, 200*time.Millisecond, func() (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.health+"/readyz", nil)
		if err != nil {
			return false, err
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return false, err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
			return false, fmt.Errorf("%s: %s", answer.Status, strings.TrimSpace(string(text)))
		}
		return true, nil
	})
}

func (w *world) secret() (string, error) {
	return engine.ReadPassword(filepath.Join(w.folder, "engine", engine.RoleWriter+".password"))
}

// streams waits until a processor has made what the collectors publish to.
func (w *world) streams(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("the processors do not make the streams"))
	defer cancel()
	return until(ctx, 100*time.Millisecond, func() (bool, error) {
		conn, js, err := w.dial()
		if err != nil {
			return false, err
		}
		defer conn.Close()
		once, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		if _, err := js.KeyValue(once, broker.BucketOutbox); err != nil {
			return false, err
		}
		_, err = w.query(ctx, "SELECT count() FROM lowtide.events")
		return err == nil, err
	})
}

// dial connects to the broker itself, past every proxy.
func (w *world) dial() (*nats.Conn, jetstream.JetStream, error) {
	conn, err := w.dialAs("processor")
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("open jetstream: %w", err)
	}
	return conn, js, nil
}

func (w *world) dialAs(user string) (*nats.Conn, error) {
	conn, err := nats.Connect("nats://"+strings.Join(w.nodeAddresses(), ",nats://"), nats.UserInfo(user, password), nats.Name("fault"), nats.Timeout(2*time.Second), nats.MaxReconnects(5))
	if err != nil {
		return nil, fmt.Errorf("connect to broker: %w", err)
	}
	return conn, nil
}

// query asks the engine itself as its writer, and returns the answer as text.
func (w *world) query(ctx context.Context, text string) (string, error) {
	secret, err := w.secret()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+w.engineAddress()+"/", strings.NewReader(text))
	if err != nil {
		return "", err
	}
	request.SetBasicAuth(engine.RoleWriter, secret)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", fmt.Errorf("ask the store: %w", err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return "", fmt.Errorf("read the store's answer: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("ask the store: %s: %s", answer.Status, strings.TrimSpace(string(body[:min(len(body), 500)])))
	}
	return string(body), nil
}

// close ends all processes, then what stands between them.
func (w *world) close() error {
	for _, c := range w.collectors {
		c.close()
	}
	for _, p := range w.processors {
		if p.child != nil {
			p.close()
		}
	}
	for _, n := range w.nodes {
		if n.child != nil {
			n.close()
		}
	}
	if w.engine != nil {
		w.engine.close()
	}
	var errs []error
	for i := len(w.closers) - 1; i >= 0; i-- {
		errs = append(errs, w.closers[i]())
	}
	return errors.Join(errs...)
}

// freePort finds a port that nobody has, below those that the kernel gives to connections: one of these could take the place of a server
// that is dead for a moment. Somebody else may take it before it is used; the run then fails at its start.
func freePort() (int, error) {
	const first, last = 15000, 32000
	for range 100 {
		port := first + rand.IntN(last-first)
		if _, given := givenPorts.LoadOrStore(port, true); given {
			continue
		}
		listener, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		return port, listener.Close()
	}
	return 0, fmt.Errorf("find a port: none of a hundred between %d and %d is free", first, last)
}

// givenPorts are those that a run of this process has: a process that was killed wants its own again, which was free meanwhile.
var givenPorts sync.Map
