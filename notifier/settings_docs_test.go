package notifier

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// The settings that docs/notify.md shows are read, with the files beside them that it names.
func TestDocumentedSettingsAreRead(t *testing.T) {
	page, err := os.ReadFile("../docs/notify.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1)
	if len(blocks) != 1 {
		t.Fatalf("%d examples", len(blocks))
	}
	folder := t.TempDir()
	for name, text := range map[string]string{
		"slack.token": "xoxb-1", "slack-app.token": "xapp-1", "hook.url": "https://hook.example/a", "hook.secret": "0123456789abcdef0123456789abcdef", "papers.url": "https://hooks.slack.com/services/T/B/x",
		"notify.yaml": string(blocks[0][1]),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := ReadSettings(filepath.Join(folder, "notify.yaml"), SettingsOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Senders) != 5 || len(s.routes.routes) != 2 {
		t.Errorf("%d outputs and %d routes", len(s.Senders), len(s.routes.routes))
	}
}
