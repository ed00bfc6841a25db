package notifier

import "testing"

func TestRunbook(t *testing.T) {
	for _, c := range []struct{ base, class, want string }{
		{"https://wiki.example/oncall", "retention", "https://wiki.example/oncall#retention"},
		{" https://wiki.example/oncall#top ", "kv_block_leak", "https://wiki.example/oncall#kv_block_leak"},
		{"docs/oncall.md", "fd_leak", "docs/oncall.md#fd_leak"},
		{"", "retention", ""},
		{"https://wiki.example/oncall", "", ""},
		{"https://wiki.example/oncall", "x\">y", ""},
	} {
		if got := Runbook(c.base, c.class); got != c.want {
			t.Errorf("Runbook(%q, %q) = %q, want %q", c.base, c.class, got, c.want)
		}
	}
}
