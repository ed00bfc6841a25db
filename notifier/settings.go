package notifier

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"lowtide/event"
)

// The limits of a settings file.
const (
	maxSettings = 1 << 20 // bytes
	maxOutputs  = 64
	maxRoutes   = 1000
	leastRemind = time.Minute
)

// Settings are the outputs, and which incidents go to which of them.
type Settings struct {
	Senders []Sender
	Hints   Hints
	routes  routing
}

// SettingsOptions are what a settings file does not hold.
type SettingsOptions struct {
	SlackToken    string // for outputs without a token_file
	SlackAppToken string // for outputs without an app_token_file
	SlackURL      string // of Slack's API, for tests; empty for Slack's own
	Out           io.Writer
}

// ReadSettings reads a settings file and opens its outputs, none of which is called. Everything that is wrong with the file comes in one
// error, each fault with file:line:column and a hint. Files that it names are found from its own folder.
func ReadSettings(path string, o SettingsOptions) (*Settings, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read settings of outputs: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxSettings+1))
	if err != nil {
		return nil, fmt.Errorf("read settings of outputs: %w", err)
	}
	r := &settingsReader{file: path, folder: filepath.Dir(path), o: o, names: map[string]bool{}}
	s := r.read(text)
	if len(r.faults) > 0 {
		return nil, r.wrong()
	}
	return s, nil
}

// settingsReader walks the tree of a file and collects what is wrong.
type settingsReader struct {
	file, folder string
	o            SettingsOptions
	names        map[string]bool // of outputs
	faults       []fault
}

// fault is what is wrong at one place.
type fault struct {
	line, column int
	error
}

func (r *settingsReader) fail(at ast.Node, hint, format string, values ...any) {
	if all, ok := keys(at); ok && len(all) > 0 {
		at = all[0].Key // a mapping calls its first colon its place
	}
	position := at.GetToken().Position
	text := fmt.Sprintf("%s:%d:%d: %s", r.file, position.Line, position.Column, fmt.Sprintf(format, values...))
	if hint != "" {
		text += "\nhint: " + hint
	}
	r.faults = append(r.faults, fault{position.Line, position.Column, errors.New(text)})
}

// wrong joins the faults in the order of the file.
func (r *settingsReader) wrong() error {
	slices.SortStableFunc(r.faults, func(a, b fault) int { return cmp.Or(a.line-b.line, a.column-b.column) })
	var all []error
	for _, one := range r.faults {
		all = append(all, one.error)
	}
	return errors.Join(all...)
}

func (r *settingsReader) read(text []byte) *Settings {
	s := new(Settings)
	if len(text) > maxSettings {
		r.faults = append(r.faults, fault{error: fmt.Errorf("%s: more than %d bytes", r.file, maxSettings)})
		return s
	}
	parsed, err := parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		r.faults = append(r.faults, fault{error: fmt.Errorf("%s: %s", r.file, yaml.FormatError(err, false, false))})
		return s
	}
	if len(parsed.Docs) != 1 || parsed.Docs[0].Body == nil {
		r.faults = append(r.faults, fault{error: fmt.Errorf("%s: want one YAML document with outputs, routes and default", r.file)})
		return s
	}
	top := r.fields(parsed.Docs[0].Body, "outputs", "routes", "default", "runbooks", "flags")
	if at := top["outputs"]; at != nil {
		s.Senders = r.outputs(at)
	} else {
		r.fail(parsed.Docs[0].Body, "for example\noutputs:\n  oncall: {slack: {channel: C012345, token_file: slack-token}}\ndefault: [oncall]", "it has no outputs")
	}
	if at := top["routes"]; at != nil {
		s.routes.routes = r.routes(at)
	}
	if at := top["default"]; at != nil {
		s.routes.otherwise = r.targets(at)
	} else if top["outputs"] != nil {
		r.fail(parsed.Docs[0].Body, "name the outputs that are told of everything else, such as default: [oncall], or default: [] for nobody", "it has no default")
	}
	if at := top["flags"]; at != nil {
		if s.Hints.Flags = r.text(at, "flags"); strings.ContainsAny(s.Hints.Flags, "\n\r`") || !strings.HasPrefix(s.Hints.Flags, "--") {
			r.fail(at, "what the commands on a card need to find the store, such as flags: --url http://clickhouse:8123", "flags are none")
		}
	}
	if at := top["runbooks"]; at != nil {
		s.Hints.Runbooks = r.text(at, "runbooks")
		if !strings.HasPrefix(s.Hints.Runbooks, "https://") && !strings.HasPrefix(s.Hints.Runbooks, "http://") {
			r.fail(at, "for example runbooks: https://wiki.example/oncall, to which #retention is added", "runbooks is no address")
		}
	}
	return s
}

// keys are those of a mapping in their order; a mapping of one key is a node of another type.
func keys(at ast.Node) ([]*ast.MappingValueNode, bool) {
	switch n := at.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	case *ast.NullNode:
		return nil, true
	}
	return nil, false
}

// fields are the values of a mapping that may have only these keys.
func (r *settingsReader) fields(at ast.Node, known ...string) map[string]ast.Node {
	found := map[string]ast.Node{}
	all, ok := keys(at)
	if !ok {
		r.fail(at, "it may have "+strings.Join(known, ", "), "want lines of 'key: value'")
		return found
	}
	for _, pair := range all {
		key := pair.Key.GetToken().Value
		switch {
		case !slices.Contains(known, key):
			hint := "known are " + strings.Join(known, ", ")
			if near := event.Nearest(key, known); near != "" {
				hint = "did you mean " + near + "?"
			}
			r.fail(pair.Key, hint, "key %q is unknown", event.Shorten(key, 64))
		case found[key] != nil:
			r.fail(pair.Key, "keep one of them", "%s stands twice", key)
		default:
			found[key] = pair.Value
		}
	}
	return found
}

func (r *settingsReader) text(at ast.Node, name string) string {
	switch n := at.(type) {
	case *ast.StringNode:
		return n.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return at.GetToken().Value
	}
	r.fail(at, "", "%s is no text", name)
	return ""
}

var outputName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// kinds are the kinds of outputs with their settings.
var kinds = map[string][]string{
	"slack":         {"channel", "token_file", "app_token_file"},
	"slack_webhook": {"url", "url_file"},
	"webhook":       {"url", "url_file", "secret_file"},
	"alertmanager":  {"url", "url_file", "token_file"},
	"terminal":      {},
}

func (r *settingsReader) outputs(at ast.Node) (senders []Sender) {
	all, ok := keys(at)
	if !ok || len(all) == 0 {
		r.fail(at, "for example oncall: {slack: {channel: C012345, token_file: slack-token}}", "outputs are lines of 'name: {kind: {…}}'")
		return nil
	}
	if len(all) > maxOutputs {
		r.fail(at, "", "%d outputs, the limit is %d", len(all), maxOutputs)
		return nil
	}
	channels := map[string]string{}
	for _, pair := range all {
		name := pair.Key.GetToken().Value
		if !outputName.MatchString(name) {
			r.fail(pair.Key, "letters, digits, - and _, at most 64", "%q is no name of an output", event.Shorten(name, 64))
			continue
		}
		if r.names[name] {
			r.fail(pair.Key, "give it another name", "output %s stands twice", name)
			continue
		}
		r.names[name] = true
		kind, ok := keys(pair.Value)
		if !ok || len(kind) != 1 {
			r.fail(pair.Value, "slack, slack_webhook, webhook, alertmanager or terminal", "output %s needs one kind", name)
			continue
		}
		word := kind[0].Key.GetToken().Value
		known, ok := kinds[word]
		if !ok {
			r.fail(kind[0].Key, "known are alertmanager, slack, slack_webhook, terminal and webhook", "output %s: kind %q is unknown", name, event.Shorten(word, 64))
			continue
		}
		values := map[string]string{}
		before := len(r.faults)
		for key, node := range r.fields(kind[0].Value, known...) {
			if values[key] = r.text(node, key); strings.HasSuffix(key, "_file") && values[key] != "" && !filepath.IsAbs(values[key]) {
				values[key] = filepath.Join(r.folder, values[key])
			}
		}
		if len(r.faults) > before {
			continue
		}
		sender, err := r.open(name, word, values)
		if err != nil {
			r.fail(kind[0].Key, "", "output %s: %v", name, err)
			continue
		}
		if place := values["channel"]; place != "" {
			if other := channels[place]; other != "" {
				r.fail(pair.Key, "let both routes lead to one output", "output %s has the channel of %s: everything would stand there twice", name, other)
			}
			channels[place] = name
		}
		senders = append(senders, sender)
	}
	return senders
}

// open makes the sender of an output.
func (r *settingsReader) open(name, kind string, v map[string]string) (Sender, error) {
	switch kind {
	case "slack":
		o := SlackOptions{Name: name, Channel: v["channel"], Token: r.o.SlackToken, AppToken: r.o.SlackAppToken, URL: r.o.SlackURL}
		for _, one := range []struct {
			what, path string
			into       *string
		}{{"slack token", v["token_file"], &o.Token}, {"slack app token", v["app_token_file"], &o.AppToken}} {
			if one.path == "" {
				continue
			}
			var err error
			if *one.into, err = ReadSecret(one.what, one.path); err != nil {
				return nil, err
			}
		}
		return NewSlack(o)
	case "slack_webhook":
		return NewSlackWebhook(SlackWebhookOptions{Name: name, URL: v["url"], URLFile: v["url_file"]})
	case "webhook":
		return NewWebhook(WebhookOptions{Name: name, URL: v["url"], URLFile: v["url_file"], SecretFile: v["secret_file"]})
	case "alertmanager":
		return NewAlertmanager(AlertmanagerOptions{Name: name, URL: v["url"], URLFile: v["url_file"], TokenFile: v["token_file"]})
	}
	out := r.o.Out
	if out == nil {
		out = io.Discard
	}
	t := NewTerminal(out)
	t.name = name
	return t, nil
}

var mentioned = regexp.MustCompile(`^[UWS][A-Z0-9]{2,20}$`)

func (r *settingsReader) routes(at ast.Node) (routes []route) {
	list, ok := at.(*ast.SequenceNode)
	if !ok {
		if _, none := at.(*ast.NullNode); !none {
			r.fail(at, "for example\nroutes:\n  - match: {severity: page}\n    to: [oncall]", "routes are a list")
		}
		return nil
	}
	if len(list.Values) > maxRoutes {
		r.fail(at, "", "%d routes, the limit is %d", len(list.Values), maxRoutes)
		return nil
	}
	ended := false
	for _, node := range list.Values {
		if ended {
			r.fail(node, "the one before matches everything; move it to the end, or give it continue: true", "this route is never reached")
			break
		}
		one := route{}
		before := len(r.faults)
		values := r.fields(node, "match", "to", "continue", "remind", "mention")
		if n := values["match"]; n != nil {
			one.match = r.match(n)
		}
		if n := values["to"]; n != nil {
			one.to = r.targets(n)
		} else {
			r.fail(node, "name outputs, such as to: [oncall]", "this route leads nowhere")
		}
		if n := values["continue"]; n != nil {
			word := r.text(n, "continue")
			if word != "true" && word != "false" {
				r.fail(n, "true or false", "continue is neither yes nor no")
			}
			one.proceed = word == "true"
		}
		if n := values["remind"]; n != nil {
			d, err := time.ParseDuration(r.text(n, "remind"))
			if err != nil || d < leastRemind {
				r.fail(n, "for example remind: 30m; at least "+leastRemind.String(), "remind is no time to wait")
			}
			one.remind = d
		}
		if n := values["mention"]; n != nil {
			if one.mention = r.text(n, "mention"); !mentioned.MatchString(one.mention) {
				r.fail(n, "the ID of a user (U…) or of a user group (S…), from its profile in Slack", "mention is no ID")
			}
		}
		ended = len(one.match) == 0 && !one.proceed && len(r.faults) == before
		routes = append(routes, one)
	}
	return routes
}

func (r *settingsReader) match(at ast.Node) map[string]string {
	match := map[string]string{}
	for key, node := range r.fields(at, MatchKeys()...) {
		value := r.text(node, key)
		switch plain, _ := strings.CutSuffix(value, "*"); {
		case value == "":
			r.fail(node, "leave the key out, or write \"*\" for any value", "%s is empty", key)
		case strings.Contains(plain, "*"):
			r.fail(node, "it matches all that begins so", "a * may stand only at the end")
		case key == "severity" && severityRank(value) < 0 && plain == value:
			r.fail(node, "info, ticket or page", "severity %s is unknown", strconv.Quote(event.Shorten(value, 64)))
		}
		match[key] = value
	}
	return match
}

// targets are names of outputs: a list, or one.
func (r *settingsReader) targets(at ast.Node) (names []string) {
	list := []ast.Node{at}
	switch n := at.(type) {
	case *ast.SequenceNode:
		list = n.Values
	case *ast.NullNode:
		return nil
	}
	for _, node := range list {
		name := r.text(node, "an output")
		if name != "" && !r.names[name] {
			hint := "it stands nowhere under outputs"
			var known []string
			for one := range r.names {
				known = append(known, one)
			}
			slices.Sort(known)
			if near := event.Nearest(name, known); near != "" {
				hint = "did you mean " + near + "?"
			}
			r.fail(node, hint, "output %s is unknown", strconv.Quote(event.Shorten(name, 64)))
			continue
		}
		names = append(names, name)
	}
	return names
}
