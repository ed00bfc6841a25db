package sink

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"lowtide/event"
)

// The codes of ClickHouse that have a remedy.
const (
	codeUnknownFunction = 46 // also a view with parameters that does not exist
	codeUnknownColumn   = 47
	codeUnknownTable    = 60
	codeSyntax          = 62
	codeUnknownDatabase = 81
	codeTimeout         = 159
	codeReadonly        = 164
	codeMemory          = 241
	codeRows            = 396
	codeNoColumns       = 51  // a view that needs parameters was read without
	codeBadParameter    = 456 // a parameter of a view was not given
	codeParameterValue  = 457
	codeDenied          = 497
	codePassword        = 516
)

// refusal is what the store said.
type refusal struct {
	code int
	text string
}

func newRefusal(code, text string) *refusal {
	r := &refusal{text: text}
	r.code, _ = strconv.Atoi(code) // 0 where a proxy answered
	return r
}

func (r *refusal) Error() string { return fmt.Sprintf("%v: %s", ErrRefused, r.text) }
func (r *refusal) Unwrap() error { return ErrRefused }

// refusedWithHint is a refusal and what to do about it.
type refusedWithHint struct {
	what string
	hint string
	*refusal
}

func (e *refusedWithHint) Error() string { return e.what }
func (e *refusedWithHint) Hint() string  { return e.hint }
func (e *refusedWithHint) Unwrap() error { return e.refusal }

var (
	missingName = regexp.MustCompile("(?:identifier|function|Table|Database|database) [`'\"]?([A-Za-z0-9_.]+)")
	firstWord   = regexp.MustCompile(`^[\s(]*([A-Za-z_][A-Za-z0-9_]*)`)
	tokens      = regexp.MustCompile(`\b(?i:from|join)\s+([A-Za-z0-9_.]+)`)
)

// instead puts into plain words what was refused, and says what there is. A name that does not exist is never "denied".
func (a Access) instead(ctx context.Context, address, password, query string, r *refusal) error {
	with := func(what, hint string) error { return &refusedWithHint{what: what, hint: hint, refusal: r} }
	word := ""
	if m := firstWord.FindStringSubmatch(query); m != nil {
		word = m[1]
	}
	switch r.code {
	case codeUnknownTable, codeUnknownFunction:
		name := ""
		if m := missingName.FindStringSubmatch(r.text); m != nil {
			name = strings.TrimPrefix(strings.TrimSuffix(m[1], "."), "lowtide.")
		}
		tables, views := a.names(ctx, address, password)
		isTable := r.code == codeUnknownTable || slices.ContainsFunc(tokens.FindAllStringSubmatch(query, -1), func(m []string) bool { return strings.TrimPrefix(m[1], "lowtide.") == name })
		if name == "" || !isTable || len(tables) == 0 {
			return with(r.Error(), "")
		}
		what := fmt.Sprintf("there is no table or view %s in the store", name)
		if slices.Contains(views, name) {
			return with("view "+name+" needs its parameters", "SELECT * FROM "+name+"(…); `DESCRIBE` does not list them, docs/investigations.md does, and `lowtide investigate` fills them in")
		}
		if near := event.Nearest(name, slices.Concat(tables, views)); near != "" {
			what += "; did you mean " + near + "?"
		}
		if slices.ContainsFunc(investigations, func(i investigation) bool { return i.view == name }) {
			return with(what, "the schema of this store is older than this program: `lowtide up` and `lowtide process` bring it up to date when they start")
		}
		return with(what, "tables: "+strings.Join(tables, ", ")+". Views with parameters: "+strings.Join(views, ", "))
	case codeUnknownColumn:
		return with(r.Error(), "DESCRIBE TABLE and a name, such as `lowtide sql \"DESCRIBE TABLE workers\"`, lists the columns")
	case codeDenied, codeSyntax:
		if word == "" || slices.Contains(readingWords, strings.ToLower(word)) || slices.Contains(otherWords, strings.ToLower(word)) {
			return with(r.Error(), "")
		}
		tables, views := a.names(ctx, address, password)
		if slices.Contains(tables, word) {
			return with(word+" is a table, not a query", "SELECT * FROM "+word+" LIMIT 10")
		}
		if slices.Contains(views, word) {
			return with(word+" is a view, not a query", "SELECT * FROM "+word+"(…), or see `lowtide investigate`")
		}
		what := word + " begins no query"
		if near := event.Nearest(strings.ToLower(word), readingWords); near != "" {
			what += "; did you mean " + strings.ToUpper(near) + "?"
		}
		return with(what, "a query begins with "+strings.ToUpper(strings.Join(readingWords, ", ")))
	case codeReadonly:
		return with(r.Error(), "this account only reads; what changes the store is done by `lowtide up` and `lowtide process`")
	case codeUnknownDatabase:
		return with("the store has no database lowtide yet", "`lowtide up` and `lowtide process` create it when they start")
	case codeTimeout:
		return with(r.Error(), "a reader's query has 30 seconds: ask for less time (--since, or WHERE time > now() - INTERVAL 1 HOUR), a host, or a worker")
	case codeMemory:
		return with(r.Error(), "a reader's query has half of the engine's memory: ask for less time or fewer workers, or aggregate before sorting")
	case codeRows:
		return with(r.Error(), "an answer has at most 1,000,000 rows and 256 MiB: aggregate, or add LIMIT")
	case codeNoColumns, codeBadParameter, codeParameterValue:
		return with(r.Error(), "a view is called with all its parameters, NAME(since = '2026-11-01 00:00:00', …); `lowtide investigate` fills them in")
	case codePassword:
		return with(r.Error(), "with --url the password is taken from LOWTIDE_CLICKHOUSE_PASSWORD and the account from --user")
	}
	return r
}

var (
	readingWords = []string{"select", "with", "show", "describe", "desc", "explain", "exists"}
	otherWords   = []string{"insert", "create", "drop", "alter", "rename", "truncate", "optimize", "delete", "update", "check", "exchange", "set", "use",
		"attach", "detach", "system", "kill", "backup", "restore", "grant", "revoke", "undrop", "watch"}
)

// names are the tables, and the views that take parameters; both empty where the store does not tell.
func (a Access) names(ctx context.Context, address, password string) (tables, views []string) {
	var out strings.Builder
	if err := a.send(ctx, address, password, question{format: "JSONCompactEachRow",
		query: `SELECT name, engine = 'View' AND create_table_query LIKE '%{since:%' OR create_table_query LIKE '%{incident:%' FROM system.tables
			WHERE database = 'lowtide' AND name NOT LIKE '.%' AND name NOT IN ('schema_version', 'rollup_progress') AND engine != 'MaterializedView' ORDER BY name`}, &out); err != nil {
		return nil, nil // the refusal that is being explained is the error to show
	}
	for line := range strings.Lines(out.String()) {
		var name string
		var takes any
		if json.Unmarshal([]byte(line), &[]any{&name, &takes}) != nil {
			continue
		}
		if takes == true || takes == 1.0 {
			views = append(views, name)
		} else {
			tables = append(tables, name)
		}
	}
	return tables, views
}
