package rulebook

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lowtide/rules"
)

const mine = `rules:
  - id: mine
    class: retention
    scope: worker
    thresholds: {most: 5 * MiB}
    when: live.growth > t.most
    severity: {alone: ticket}
    summary: It grows
`

func TestSetGoesRound(t *testing.T) {
	set := Set{Generation: 7, Author: "ann@x", Message: "why", Time: time.Unix(1_790_000_000, 0).UTC(),
		Files: []File{{Name: "mine.yaml", Content: mine, Advice: map[string]string{"look": "- Look\n"}}, {Name: "b.yml", Content: "rules: []\n"}}}
	text, err := set.encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := Decode(text)
	if err != nil || back.Generation != 7 || !sameFiles(back.Files, set.Files) || back.Author != "ann@x" || !back.Time.Equal(set.Time) {
		t.Errorf("read back %+v, %v", back, err)
	}
}

func TestWhatIsNoSet(t *testing.T) {
	file := func(name string) string { return `{"generation":1,"files":[{"name":"` + name + `","content":"x"}]}` }
	for name, text := range map[string]string{
		"nothing": "", "no object": "[]", "no generation": `{"files":[]}`, "a negative one": `{"generation":-1}`, "a folder": file("a/b.yaml"),
		"one above": file("../b.yaml"), "hidden": file(".b.yaml"), "an option": file("-b.yaml"), "a test": file("b_test.yaml"), "no rule file": file("b.txt"),
		"twice":    `{"generation":1,"files":[{"name":"a.yaml","content":"x"},{"name":"a.yaml","content":"x"}]}`,
		"advice":   `{"generation":1,"files":[{"name":"a.yaml","content":"x","advice":{"../x":"y"}}]}`,
		"no UTF-8": "{\"generation\":1,\"files\":[{\"name\":\"a.yaml\",\"content\":\"\xff\"}]}",
		"author":   `{"generation":1,"author":"` + strings.Repeat("a", maxAuthor+1) + `"}`,
		"message":  `{"generation":1,"message":"` + strings.Repeat("a", maxMessage+1) + `"}`,
		"too many": `{"generation":1,"files":[` + strings.Repeat(`{"name":"a.yaml","content":""},`, maxFiles) + `{"name":"b.yaml","content":""}]}`,
		"too much": `{"generation":1,"files":[{"name":"a.yaml","content":"` + strings.Repeat("a", MaxSet) + `"}]}`,
	} {
		if _, err := Decode([]byte(text)); !errors.Is(err, ErrSet) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestASetThatIsTooLargeIsNotWritten(t *testing.T) {
	set := Set{Generation: 1, Files: []File{{Name: "a.yaml", Content: strings.Repeat("a", MaxSet)}}}
	if _, err := set.encode(); err == nil || !strings.Contains(err.Error(), "the most are 1048576") {
		t.Errorf("%v", err)
	}
}

// The advice of a folder is stored once, and found beside each of its files.
func TestGatherPutsFoldersTogether(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a", "advice", "look.md"), "- Look here\n")
	write(t, filepath.Join(dir, "a", "one.yaml"), strings.ReplaceAll(mine, "mine", "one"))
	write(t, filepath.Join(dir, "a", "two.yaml"), strings.ReplaceAll(mine, "mine", "two")+"    advice: look\n")
	write(t, filepath.Join(dir, "a", "two_test.yaml"), "no rules")
	files, pack, err := local([]string{filepath.Join(dir, "a")})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 2 || files[1].Name != "two.yaml" || len(files[0].Advice) != 1 || files[1].Advice != nil {
		t.Errorf("gathered %+v", files)
	}
	set := Set{Generation: 3, Files: files}
	again, err := set.Pack()
	if err != nil || len(changes(pack, again)) != 0 || again.Rule("two").Advice[0] != "Look here" {
		t.Errorf("pushed they are others: %v, %v", changes(pack, again), err)
	}
	write(t, filepath.Join(dir, "b", "one.yaml"), strings.ReplaceAll(mine, "mine", "three"))
	if _, _, err := local([]string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}); err == nil || err.Error() != "two of the files are called one.yaml" {
		t.Errorf("two of a name: %v", err)
	}
	write(t, filepath.Join(dir, "c", "other.yaml"), strings.ReplaceAll(mine, "mine", "four"))
	write(t, filepath.Join(dir, "c", "advice", "look.md"), "- Look there\n")
	if _, _, err := local([]string{filepath.Join(dir, "a"), filepath.Join(dir, "c")}); err == nil || !strings.Contains(err.Error(), "have different advice look") {
		t.Errorf("two advices of a name: %v", err)
	}
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := replace(path, []byte(content)); err != nil {
		t.Fatal(err)
	}
}

func TestForeignTextsSteerNoTerminal(t *testing.T) {
	if got := plain("a\x1b[31m b\n\u202ec\x00"); got != "a [31m b c" {
		t.Errorf("%q", got)
	}
	if got := printable("a\x1b[31m\tb\u009bc"); got != "a\ufffd[31m\tb\ufffdc" {
		t.Errorf("%q", got)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"generation":1,"files":[{"name":"a.yaml","content":"rules: []","advice":{"x":"y"}}],"author":"a","message":"m","time":"2026-01-02T03:04:05Z"}`))
	f.Add([]byte(`{"generation":18446744073709551615}`))
	f.Add([]byte(`{"generation":1,"files":[{"name":"../a.yaml"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		set, err := Decode(text)
		if err != nil {
			return
		}
		for name := range texts(&set) {
			if dir := filepath.Clean(filepath.Join("folder", name)); !strings.HasPrefix(dir, "folder/") {
				t.Errorf("%q leaves the folder", name)
			}
		}
		again, err := set.encode()
		if len(again) > MaxSet {
			t.Errorf("%d bytes", len(again))
		}
		if err != nil {
			return // escapes may take more room than they did
		}
		back, err := Decode(again)
		if err != nil || !sameFiles(back.Files, set.Files) || back.Generation != set.Generation {
			t.Errorf("read back %+v, %v", back, err)
		}
		if _, err := set.Pack(); err != nil {
			var problems rules.Problems
			if !errors.As(err, &problems) {
				t.Errorf("%v", err)
			}
		}
	})
}

func FuzzDecodeOutcome(f *testing.F) {
	f.Add([]byte(`{"generation":1,"ok":true,"running":1,"rules":20,"problems":["x"],"local":["y"],"version":"v","time":"2026-01-02T03:04:05Z"}`))
	f.Add([]byte(`{"problems":["` + strings.Repeat("é", 9000) + `","b"]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		o, err := decodeOutcome(text)
		if err != nil {
			return
		}
		if again, err := o.encode(); err != nil && len(again) > maxOutcome && len(o.Problems) > 0 {
			t.Errorf("%d bytes, %v", len(again), err)
		}
	})
}
