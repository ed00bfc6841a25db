package engine

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

//go:embed tables.yaml
var embedded []byte

const maxTableFile = 1 << 20

// Table says how one engine's metrics become fields of the vocabulary. tables.yaml explains the keys and is the example.
type Table struct {
	Name       string                 `yaml:"name"`
	Prefixes   []string               `yaml:"prefixes"`   // put before every family name, in this order; none: names are whole
	Recognise  []Mark                 `yaml:"recognise"`  // any one of them
	Ports      []int                  `yaml:"ports"`      // where it listens unless told otherwise
	Paths      []string               `yaml:"paths"`      // where its metrics are
	Index      []string               `yaml:"index"`      // labels that number the engines behind one endpoint; the first that is there
	Model      []string               `yaml:"model"`      // labels that name the model
	Views      []string               `yaml:"views"`      // labels that tell several readings of one number apart: the highest is taken
	Fields     map[string][]Row       `yaml:"fields"`     // a field of the `engine` body ← the first row that has a value
	Histograms map[string][]Histogram `yaml:"histograms"` // ttft, itl, tpot, e2e, prompt_tokens, output_tokens
	Config     map[string][]Row       `yaml:"config"`     // a field of the `config` body
	Requests   []Request              `yaml:"requests"`   // JSON documents that say more about the configuration
}

// Mark is a family that only this engine has.
type Mark struct {
	Family string `yaml:"family"`
	Label  string `yaml:"label"` // which it must carry, for names that others could use too
}

// Row is a number, or with `label` a text, of an exposition. Exactly one of gauge, counter, info, histogram and of is given.
type Row struct {
	Gauge     string              `yaml:"gauge"`
	Counter   string              `yaml:"counter"`   // with or without _total
	Info      string              `yaml:"info"`      // a family whose labels are the values: `label` or `names` says which
	Histogram string              `yaml:"histogram"` // its `part`
	Label     string              `yaml:"label"`
	Names     string              `yaml:"names"`     // a label that lists names with commas: how many, in the newest series (its value is a time)
	Part      string              `yaml:"part"`      // sum or count
	Match     map[string][]string `yaml:"match"`     // label → values, one of which it has; "" is a label that is not there
	Except    map[string][]string `yaml:"except"`    // label → values, none of which it has
	OfModel   bool                `yaml:"of_model"`  // only series of the model that the recognised families name
	Aggregate string              `yaml:"aggregate"` // over what is left: sum (the default), max, min or first
	Scale     float64             `yaml:"scale"`     // into the field's unit; 1 when absent

	Of    []Row `yaml:"of"`    // a sum,
	Times []Row `yaml:"times"` // multiplied by each of these,
	Over  []Row `yaml:"over"`  // divided by the sum of these; all must be there
	Delta bool  `yaml:"delta"` // of what `of` and `over` grew by since the last reading
}

// Histogram is a family of cumulative buckets.
type Histogram struct {
	Family  string              `yaml:"family"`
	Match   map[string][]string `yaml:"match"`
	Except  map[string][]string `yaml:"except"`
	OfModel bool                `yaml:"of_model"`
	Scale   float64             `yaml:"scale"` // of the edges, into seconds or tokens; 1 when absent
}

// Request is a JSON document of an engine.
type Request struct {
	Path   string            `yaml:"path"`
	Fields map[string]string `yaml:"fields"` // a field of the `config` body ← keys and list positions joined by dots; ! before it negates
}

// tableFile is the form of a table file.
type tableFile struct {
	Engines []Table `yaml:"engines"`
}

// LoadTables returns the built-in tables with those of the files laid over them by the engine's name: a list replaces the list
// below, of fields, histograms and config each entry replaces the entry of its name. Engines that are new come before the
// built-in ones, so that they are recognised first. The error names file and line of every mistake.
func LoadTables(paths ...string) ([]Table, error) {
	tables, err := readTables("tables.yaml", embedded)
	if err != nil {
		return nil, err
	}
	if err := check("tables.yaml", embedded, tables, nil); err != nil {
		return nil, err
	}
	var problems []error
	for _, path := range paths {
		content, err := readFile(path)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		above, err := readTables(path, content)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if err := check(path, content, above, tables); err != nil {
			problems = append(problems, err)
			continue
		}
		tables = merge(tables, above)
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return tables, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read engine tables: %w", err)
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxTableFile+1))
	if err != nil {
		return nil, fmt.Errorf("read engine tables: %w", err)
	}
	if len(content) > maxTableFile {
		return nil, fmt.Errorf("%s: more than %d bytes; hint: split it over several files", path, maxTableFile)
	}
	return content, nil
}

func readTables(name string, content []byte) ([]Table, error) {
	var f tableFile
	err := decode(content, &f)
	if errors.Is(err, io.EOF) || err == nil && len(f.Engines) == 0 {
		return nil, fmt.Errorf("%s:1: no engines; hint: begin the file with `engines:`", name)
	}
	if err == nil {
		return f.Engines, nil
	}
	var placed yaml.Error
	if errors.As(err, &placed) && placed.GetToken() != nil && placed.GetToken().Position != nil {
		return nil, fmt.Errorf("%s:%d: %s", name, placed.GetToken().Position.Line, placed.GetMessage())
	}
	return nil, fmt.Errorf("%s: %s", name, strings.SplitN(err.Error(), "\n", 2)[0])
}

// decode turns a panic of goccy/go-yaml 1.19.2 into an error: it dereferences nil where a tag stands for a list, `paths: !!seq`.
func decode(content []byte, f *tableFile) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the YAML cannot be read (%v); hint: write lists out, without tags", p)
		}
	}()
	return yaml.NewDecoder(bytes.NewReader(content), yaml.Strict()).Decode(f)
}

// merge lays tables over others.
func merge(below, above []Table) []Table {
	merged := slices.Clone(below)
	var added []Table
	for _, a := range above {
		i := slices.IndexFunc(merged, func(t Table) bool { return t.Name == a.Name })
		if i < 0 {
			added = append(added, a)
			continue
		}
		b := &merged[i]
		replace(&b.Prefixes, a.Prefixes)
		replace(&b.Recognise, a.Recognise)
		replace(&b.Ports, a.Ports)
		replace(&b.Paths, a.Paths)
		replace(&b.Index, a.Index)
		replace(&b.Model, a.Model)
		replace(&b.Views, a.Views)
		replace(&b.Requests, a.Requests)
		b.Fields = lay(b.Fields, a.Fields)
		b.Histograms = lay(b.Histograms, a.Histograms)
		b.Config = lay(b.Config, a.Config)
	}
	return append(added, merged...)
}

func replace[T any](below *[]T, above []T) {
	if above != nil {
		*below = above
	}
}

func lay[T any](below, above map[string][]T) map[string][]T {
	out := make(map[string][]T, len(below)+len(above))
	for name, rows := range below {
		out[name] = rows
	}
	for name, rows := range above {
		out[name] = rows
	}
	return out
}

// checker finds mistakes that are not the YAML's.
type checker struct {
	name     string
	file     *ast.File
	problems []error
}

// check says what is wrong with tables, at their lines. below are those that they are laid over.
func check(name string, content []byte, tables, below []Table) error {
	file, err := parser.ParseBytes(content, 0)
	if err != nil {
		return fmt.Errorf("%s: %s", name, strings.SplitN(err.Error(), "\n", 2)[0])
	}
	c := &checker{name: name, file: file}
	seen := make(map[string]bool)
	for i := range tables {
		t, at := &tables[i], fmt.Sprintf("$.engines[%d]", i)
		known := slices.ContainsFunc(below, func(b Table) bool { return b.Name == t.Name })
		switch {
		case t.Name == "":
			c.report(at, "engine without a name")
		case seen[t.Name]:
			c.report(at, "engine %s is there twice", t.Name)
		case !known && len(t.Recognise) == 0:
			c.report(at, "engine %s: nothing to recognise it by; hint: recognise: [{family: its_own_metric}]", t.Name)
		case !known && len(t.Paths) == 0:
			c.report(at, "engine %s: no path; hint: paths: [/metrics]", t.Name)
		}
		seen[t.Name] = true
		c.table(at, t)
	}
	return errors.Join(c.problems...)
}

func (c *checker) report(at, format string, args ...any) {
	line := 0
	// The path is only known to exist where the node is; a place further up is still the right neighbourhood.
	for at != "" && line == 0 {
		if path, err := yaml.PathString(at); err == nil {
			if node, err := path.FilterFile(c.file); err == nil && node != nil {
				if m, ok := node.(*ast.MappingNode); ok && len(m.Values) > 0 {
					node = m.Values[0].Key
				}
				if token := node.GetToken(); token != nil && token.Position != nil {
					line = token.Position.Line
				}
			}
		}
		at = at[:max(0, strings.LastIndexAny(at, ".["))]
	}
	c.problems = append(c.problems, fmt.Errorf("%s:%d: %s", c.name, line, fmt.Sprintf(format, args...)))
}

func (c *checker) table(at string, t *Table) {
	for i, m := range t.Recognise {
		if m.Family == "" {
			c.report(fmt.Sprintf("%s.recognise[%d]", at, i), "engine %s: recognise: no family", t.Name)
		}
	}
	for i, p := range t.Paths {
		if !strings.HasPrefix(p, "/") {
			c.report(fmt.Sprintf("%s.paths[%d]", at, i), "engine %s: path %q does not begin with /", t.Name, p)
		}
	}
	for _, field := range sortedKeys(t.Fields) {
		place := at + ".fields." + field
		if !isField(engineBody, field) {
			c.report(place, "engine %s: the vocabulary has no engine field %q", t.Name, field)
		}
		for i, row := range t.Fields[field] {
			c.row(fmt.Sprintf("%s[%d]", place, i), t.Name+": "+field, row)
		}
	}
	for _, field := range sortedKeys(t.Config) {
		place := at + ".config." + field
		if !isField(configBody, field) || field == "origin" || field == "config_hash" {
			c.report(place, "engine %s: there is no config field %q to fill", t.Name, field)
		}
		for i, row := range t.Config[field] {
			c.row(fmt.Sprintf("%s[%d]", place, i), t.Name+": "+field, row)
		}
	}
	for _, name := range sortedKeys(t.Histograms) {
		place := at + ".histograms." + name
		if !slices.Contains(measureNames(), name) {
			c.report(place, "engine %s: no histogram is called %q; hint: one of %s", t.Name, name, strings.Join(measureNames(), ", "))
		}
		for i, h := range t.Histograms[name] {
			if h.Family == "" || h.Scale < 0 {
				c.report(fmt.Sprintf("%s[%d]", place, i), "engine %s: %s: needs a family, and a scale above zero", t.Name, name)
			}
		}
	}
	for i, r := range t.Requests {
		place := fmt.Sprintf("%s.requests[%d]", at, i)
		if !strings.HasPrefix(r.Path, "/") {
			c.report(place, "engine %s: request path %q does not begin with /", t.Name, r.Path)
		}
		for _, field := range sortedKeys(r.Fields) {
			if !isField(configBody, field) || field == "origin" || field == "config_hash" {
				c.report(place, "engine %s: there is no config field %q to fill", t.Name, field)
			}
		}
	}
}

func (c *checker) row(at, what string, r Row) {
	kinds := 0
	for _, given := range []bool{r.Gauge != "", r.Counter != "", r.Info != "", r.Histogram != "", len(r.Of) > 0} {
		if given {
			kinds++
		}
	}
	derived := len(r.Of) > 0
	switch {
	case kinds != 1:
		c.report(at, "engine %s: %d of gauge, counter, info, histogram and of; exactly one is needed", what, kinds)
	case (r.Info != "") != (r.Label != "" || r.Names != ""), r.Label != "" && r.Names != "":
		c.report(at, "engine %s: info needs label or names, and nothing else has them", what)
	case (r.Histogram != "") != (r.Part != ""), r.Part != "" && r.Part != "sum" && r.Part != "count":
		c.report(at, "engine %s: histogram needs part: sum or count, and nothing else has it", what)
	case !slices.Contains([]string{"", "sum", "max", "min", "first"}, r.Aggregate):
		c.report(at, "engine %s: aggregate %q; hint: sum, max, min or first", what, r.Aggregate)
	case r.Scale < 0:
		c.report(at, "engine %s: scale %v is below zero", what, r.Scale)
	case !derived && (len(r.Times) > 0 || len(r.Over) > 0 || r.Delta):
		c.report(at, "engine %s: times, over and delta belong to of", what)
	case derived && (len(r.Match) > 0 || len(r.Except) > 0 || r.OfModel || r.Aggregate != ""):
		c.report(at, "engine %s: match, except, of_model and aggregate belong to the rows of `of`", what)
	case r.Delta && (len(r.Over) == 0 || len(r.Times) > 0):
		c.report(at, "engine %s: delta needs over, and no times", what)
	}
	for _, part := range []struct {
		name string
		rows []Row
	}{{"of", r.Of}, {"times", r.Times}, {"over", r.Over}} {
		for i, inner := range part.rows {
			c.row(fmt.Sprintf("%s.%s[%d]", at, part.name, i), what, inner)
		}
	}
}

func sortedKeys[T any](m map[string]T) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
