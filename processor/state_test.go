package processor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
	"lowtide/processor/worker"
)

// interrupted plays a recording; at each of the given events all workers are saved and restored before it goes on.
func interrupted(t *testing.T, path string, at ...int) (judge *Judge, found []string, events int) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	reader, err := event.NewReader(file, path)
	if err != nil {
		t.Fatal(err)
	}
	judge = NewJudge(builtin(t), func(f *event.Finding) {
		text, err := event.MarshalFinding(f)
		if err != nil {
			t.Error(err)
		}
		found = append(found, string(text))
	})
	for ; ; events++ {
		e, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(at, events) {
			for _, w := range judge.sorted() {
				state, err := w.Save()
				if err != nil {
					t.Fatal(err)
				}
				if w.Worker, err = worker.Restore(state); err != nil {
					t.Fatal(err)
				}
				if events == at[len(at)-1] {
					t.Logf("%s: %d bytes", w.Key, len(state))
				}
			}
		}
		judge.Apply(e)
	}
	judge.Flush()
	return judge, found, events
}

// written is a report as text, with messages instead of their addresses.
func written(r worker.Report) string {
	messages := fmt.Sprint(r.Who, r.Host, r.Config)
	r.Who, r.Host, r.Config = nil, nil, nil
	return messages + fmt.Sprintf("%+v", r)
}

// Each recording, interrupted in its half and at odd moments, ends as if it had not been: the same findings, values and reports.
func TestARestoredWorkerIsJudgedAsItWas(t *testing.T) {
	for name := range verdicts {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", name+".ndjson.gz")
			want, found, n := interrupted(t, path)
			got, again, _ := interrupted(t, path, 3, n/4, n/2, n/2+1, 3*n/4, n-1)
			if !slices.Equal(found, again) {
				t.Errorf("found %v, want %v", again, found)
			}
			if len(got.workers) != len(want.workers) {
				t.Errorf("%d workers, want %d", len(got.workers), len(want.workers))
			}
			for key, w := range want.workers {
				g := got.workers[key]
				if g == nil || g.Worker == w.Worker {
					t.Fatalf("no worker %s", key)
				}
				if !bytes.Equal(g.Sample().Save(), w.Sample().Save()) {
					t.Errorf("%s: the sample differs", key)
				}
				if a, b := g.Report(), w.Report(); written(a) != written(b) || !proto.Equal(a.Who, b.Who) {
					t.Errorf("%s reports\n%s\nwant\n%s", key, written(a), written(b))
				}
			}
		})
	}
}
