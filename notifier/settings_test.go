package notifier

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/event"
)

// folderOf has a settings file with the files that it names.
func folderOf(t *testing.T, text string) string {
	t.Helper()
	folder := t.TempDir()
	for name, content := range map[string]string{"notify.yaml": text, "slack-token": secret + "\n", "app-token": appSecret, "hook-url": "https://hook.example/T/B/very-secret\n"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(folder, "notify.yaml")
}

const goodSettings = `
runbooks: https://wiki.example/oncall
flags: --url http://clickhouse:8123
outputs:
  oncall: {slack: {channel: C012, token_file: slack-token, app_token_file: app-token}}
  hook: {webhook: {url_file: hook-url}}
  am: {alertmanager: {url: http://alerts.example:9093}}
  papers: {slack_webhook: {url_file: hook-url}}
routes:
  - match: {severity: page, cluster: prod}
    to: [oncall, hook]
    remind: 30m
    mention: S0123
  - match: {class: "kv_*", team: ml}
    to: papers
    continue: true
  - match: {host: gpu-07}
    to: [am]
default: [oncall]
`

func TestReadSettings(t *testing.T) {
	s, err := ReadSettings(folderOf(t, goodSettings), SettingsOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, sender := range s.Senders {
		names = append(names, sender.Name())
	}
	if !slices.Equal(names, []string{"oncall", "hook", "am", "papers"}) || s.Hints != (Hints{"https://wiki.example/oncall", "--url http://clickhouse:8123"}) {
		t.Errorf("outputs %v, hints %v", names, s.Hints)
	}
	if slack := s.Senders[0].(*Slack); !slack.buttons || slack.channel != "C012" {
		t.Errorf("slack %v", slack)
	}
	page, ticket, kv, alone := paged(), leak(), leak(), leak()
	kv.Class, kv.Labels = "kv_block_leak", map[string]string{"team": "ml", "host": "gpu-07"}
	alone.Labels = map[string]string{"cluster": "lab", "host": "gpu-01"}
	alone.Severity = event.Page
	_ = ticket
	for name, c := range map[string]struct {
		f    *event.Finding
		want []string
	}{
		"a page of prod":             {page, []string{"hook", "oncall"}},
		"both, since one goes on":    {kv, []string{"am", "papers"}},
		"by its host, from its slot": {ticket, []string{"am"}},
		"nothing matches":            {alone, []string{"oncall"}},
	} {
		got := s.routes.of(c.f)
		if places := slices.Sorted(maps.Keys(got)); !slices.Equal(places, c.want) {
			t.Errorf("%s: goes to %v, want %v", name, places, c.want)
		}
		if name == "a page of prod" && got["oncall"] != (term{30 * time.Minute, "S0123"}) {
			t.Errorf("terms %v", got["oncall"])
		}
	}
}

// Everything that is wrong comes at once, with its place and what to do.
func TestBrokenSettings(t *testing.T) {
	text := `outputs:
  oncall: {slack: {channel: C012, token_fil: slack-token}}
  hook: {webhok: {url: https://hook.example}}
  oncall: {terminal: {}}
  "a b": {terminal: {}}
  other: {slack: {token_file: slack-token}}
  ok: {terminal: {}}
routes:
  - match: {severty: page}
    to: [okk]
  - match: {severity: loud}
    to: [ok]
    remind: 10s
    mention: anna
  - match: {class: "*kv"}
  - to: [ok]
  - to: [ok]
defalt: [ok]
runbooks: wiki
`
	_, err := ReadSettings(folderOf(t, text), SettingsOptions{})
	if err == nil {
		t.Fatal("taken")
	}
	for _, want := range []string{
		`notify.yaml:2:35: key "token_fil" is unknown` + "\nhint: did you mean token_file?",
		`notify.yaml:3:10: output hook: kind "webhok" is unknown`,
		`notify.yaml:4:3: output oncall stands twice`,
		`notify.yaml:5:3: "a b" is no name of an output`,
		`notify.yaml:6:11: output other: open slack: no channel`,
		`notify.yaml:9:13: key "severty" is unknown` + "\nhint: did you mean severity?",
		`notify.yaml:10:10: output "okk" is unknown` + "\nhint: did you mean ok?",
		`notify.yaml:11:23: severity "loud" is unknown` + "\nhint: info, ticket or page",
		`notify.yaml:13:13: remind is no time to wait`,
		`notify.yaml:14:14: mention is no ID`,
		`notify.yaml:15:20: a * may stand only at the end`,
		`notify.yaml:15:5: this route leads nowhere`,
		`notify.yaml:17:5: this route is never reached`,
		`notify.yaml:18:1: key "defalt" is unknown` + "\nhint: did you mean default?",
		`it has no default`,
		`notify.yaml:19:11: runbooks is no address`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(err)
	}
}

func TestSettingsThatAreNone(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "a list": "- a\n", "no outputs": "default: []\n", "two documents": "a: 1\n---\nb: 2\n", "not yaml": "a: [\n",
		"same channel": "outputs:\n  a: {slack: {channel: C1, token_file: slack-token}}\n  b: {slack: {channel: C1, token_file: slack-token}}\ndefault: []\n",
		"open token":   "outputs:\n  a: {slack: {channel: C1, token_file: notify.yaml.missing}}\ndefault: []\n"} {
		if _, err := ReadSettings(folderOf(t, text), SettingsOptions{}); err == nil || !strings.Contains(err.Error(), "notify.yaml") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzSettings(f *testing.F) {
	f.Add([]byte(goodSettings))
	f.Add([]byte("outputs: {a: {terminal: {}}}\nroutes: [{to: a}]\ndefault: a\n"))
	f.Add([]byte("outputs: &a {b: *a}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r := &settingsReader{file: "f", folder: t.TempDir(), names: map[string]bool{}}
		s := r.read(text)
		if len(r.faults) == 0 {
			s.routes.of(leak())
		}
	})
}
