package engine

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sort"
	"strings"
	"sync"
	"time"
)

const (
	sessionsPerAccount = 4
	queueLimit         = 64               // requests of an account that may wait for a session
	queueWait          = 15 * time.Second // until such a request is turned away
	graceAfterKill     = 30 * time.Second // for a query that was told to stop
)

// sessions are the library's sessions of one account: each runs one statement at a time.
type sessions struct {
	lib     *library
	args    []string
	who     account
	free    chan *session
	waiting chan struct{} // a place in the queue
	killer  *killer
	log     *slog.Logger
}

// session is one session of the library and what is set in it.
type session struct {
	connection *connection
	mark       string            // value of log_comment, by which the killer finds its query
	set        map[string]string // settings that differ from those of a fresh session
	database   string
	broken     bool // what is set is not known any more
}

func openSessions(lib *library, args []string, who account, k *killer, log *slog.Logger) (*sessions, error) {
	p := &sessions{lib: lib, args: args, who: who, killer: k, log: log,
		free: make(chan *session, sessionsPerAccount), waiting: make(chan struct{}, queueLimit)}
	for i := range sessionsPerAccount {
		s, err := p.open(fmt.Sprintf("%s-%d", who.role, i))
		if err != nil {
			return nil, err
		}
		p.free <- s
	}
	return p, nil
}

// open makes a session with the account's bounds. The reader's is put in readonly mode 2: it may set what the bounds allow,
// and the library refuses to write or to leave the mode.
func (p *sessions) open(mark string) (*session, error) {
	c, err := p.lib.open(p.args...)
	if err != nil {
		return nil, err
	}
	s := &session{connection: c, mark: mark, set: map[string]string{}, database: "default"}
	first := []string{"log_comment = '" + mark + "'"}
	for name, bound := range p.who.bounds {
		first = append(first, fmt.Sprintf("%s = %d", name, bound))
	}
	sort.Strings(first)
	if !p.who.writes {
		first = append(first, "readonly = 2")
	}
	if err := s.command("SET " + strings.Join(first, ", ")); err != nil {
		c.close()
		return nil, fmt.Errorf("prepare session %s: %w", mark, err)
	}
	return s, nil
}

// acquire waits for a free session until the queue's bound.
func (p *sessions) acquire(ctx context.Context) (*session, *queryError) {
	select {
	case s := <-p.free:
		return s, nil
	default:
	}
	select {
	case p.waiting <- struct{}{}:
		defer func() { <-p.waiting }()
	default:
		return nil, failure(codeBusy, "TOO_MANY_SIMULTANEOUS_QUERIES", "%d queries run and %d wait for the account %s", sessionsPerAccount, queueLimit, p.who.role)
	}
	timer := time.NewTimer(queueWait)
	defer timer.Stop()
	select {
	case s := <-p.free:
		return s, nil
	case <-ctx.Done():
		return nil, failure(codeCanceled, "QUERY_WAS_CANCELLED", "The client went away before the query ran")
	case <-timer.C:
		return nil, failure(codeBusy, "TOO_MANY_SIMULTANEOUS_QUERIES", "No session of the account %s became free within %s", p.who.role, queueWait)
	}
}

// release gives the session back; one whose settings are not known is replaced.
func (p *sessions) release(s *session) {
	if s.broken {
		if fresh, err := p.open(s.mark); err == nil {
			s.connection.close()
			s = fresh
		} else {
			p.log.Error("session cannot be replaced", "session", s.mark, "error", err)
		}
	}
	p.free <- s
}

// closeAll closes every session once it is free, until ctx ends; it says whether all were closed.
func (p *sessions) closeAll(ctx context.Context) bool {
	for range sessionsPerAccount {
		select {
		case s := <-p.free:
			s.connection.close()
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// run sets what the request asks for, runs the text and returns its result. When ctx ends first, the query is killed.
func (p *sessions) run(ctx context.Context, s *session, q *query) (*result, *queryError) {
	if err := s.prepare(q, p.who); err != nil {
		return nil, err
	}
	type outcome struct {
		result *result
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		var r *result
		var err error
		if q.insert {
			r, err = s.connection.insert(q.head, q.format, q.parameters, q.data, func() bool { return ctx.Err() != nil })
		} else {
			r, err = s.connection.run(q.head, q.format, q.parameters)
		}
		done <- outcome{r, err}
	}()
	var o outcome
	select {
	case o = <-done:
	case <-ctx.Done():
		// Every engine-side bound is shorter than this; a query that outlives it would hold a session for ever.
		timer := time.NewTimer(graceAfterKill)
		defer timer.Stop()
		for waiting := true; waiting; {
			p.killer.kill(s.mark)
			again := time.NewTimer(time.Second)
			select {
			case o = <-done:
				waiting = false
			case <-again.C:
			case <-timer.C:
				p.log.Error("query did not end after it was killed; the engine is started again", "session", s.mark)
				os.Exit(exitStuck)
			}
			again.Stop()
		}
	}
	if o.err != nil {
		// What a failed query had written already, the library puts before the result of the next one.
		if err := s.command("SELECT 1"); err != nil {
			s.broken = true
		}
		return nil, asQueryError(o.err)
	}
	return o.result, nil
}

// command runs a statement of the gate itself.
func (s *session) command(sql string) error {
	r, err := s.connection.run([]byte(sql), "Null", nil)
	if err != nil {
		return err
	}
	r.free()
	return nil
}

// prepare makes the session's database and settings those of the query, in as few statements as there are differences.
func (s *session) prepare(q *query, who account) *queryError {
	if q.database != s.database {
		if err := s.command("USE " + quoteName(q.database)); err != nil {
			return asQueryError(err)
		}
		s.database = q.database
	}
	var changes []string
	for name := range s.set {
		if _, ok := q.settings[name]; ok {
			continue
		}
		if bound, ok := who.bounds[name]; ok {
			changes = append(changes, fmt.Sprintf("%s = %d", name, bound))
		} else {
			changes = append(changes, name+" = DEFAULT")
		}
	}
	for name, value := range q.settings {
		if bound, ok := who.bounds[name]; ok {
			value = clampSetting(value, bound)
		}
		if old, ok := s.set[name]; !ok || old != value {
			changes = append(changes, name+" = "+quoteText(value))
		}
	}
	if len(changes) == 0 {
		return nil
	}
	sort.Strings(changes)
	if err := s.command("SET " + strings.Join(changes, ", ")); err != nil {
		s.broken = true
		return asQueryError(err)
	}
	s.set = make(map[string]string, len(q.settings))
	for name, value := range q.settings {
		if bound, ok := who.bounds[name]; ok {
			value = clampSetting(value, bound)
		}
		s.set[name] = value
	}
	return nil
}

// killer ends queries of other sessions; it has a session of its own.
type killer struct {
	mu         sync.Mutex
	connection *connection
}

// kill asks the library to end the query of the session with the mark; a query that has ended already is no error.
func (k *killer) kill(mark string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, err := k.connection.run([]byte("KILL QUERY WHERE Settings['log_comment'] = '"+mark+"' ASYNC"), "Null", nil)
	if err == nil {
		r.free()
	}
}

func asQueryError(err error) *queryError {
	if qe, ok := err.(*queryError); ok {
		return qe
	}
	return failure(codeLogical, "LOGICAL_ERROR", "%v", err)
}

var (
	nameEscapes = strings.NewReplacer("\\", "\\\\", "`", "\\`")
	textEscapes = strings.NewReplacer("\\", "\\\\", "'", "\\'")
)

func quoteName(name string) string { return "`" + nameEscapes.Replace(name) + "`" }
func quoteText(text string) string { return "'" + textEscapes.Replace(text) + "'" }
