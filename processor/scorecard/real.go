package scorecard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"lowtide/event"
	"lowtide/processor"
	"lowtide/rules"
)

// realVerdicts are what was planted in the recordings of a real GPU that lie in processor/testdata; "" is a healthy worker.
var realVerdicts = map[string]string{
	"healthy": "", "busy_healthy": "", "cache_plateau": "", "adapters": "", "graphs": "", "frag": "",
	"leak": "retention", "expandable": "retention", "malloc_async": "retention", "native_leak": "native_growth",
	"kv_pressure": "kv_pressure", "kv_leak": "kv_block_leak", "spike": "oversize_request", "host_leak": "host_memory",
}

// RealVerdict is what was said of one real recording.
type RealVerdict struct {
	Recording string   `json:"recording"`
	Want      string   `json:"want"`
	Got       []string `json:"got"` // the classes of its incidents, in the order of time
	Page      bool     `json:"page"`
	Right     bool     `json:"right"`
}

// playReal judges the real recordings of a folder that have a known verdict. A folder that does not exist has none.
func playReal(ctx context.Context, pack *rules.Pack, folder string) (out []RealVerdict, err error) {
	names, err := filepath.Glob(filepath.Join(folder, "*.ndjson.gz"))
	if err != nil {
		return nil, fmt.Errorf("list recordings: %w", err)
	}
	slices.Sort(names)
	for _, path := range names {
		want, known := realVerdicts[processor.RecordingName(path)]
		if !known {
			continue
		}
		one, err := judgeReal(ctx, pack, path, want)
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

func judgeReal(ctx context.Context, pack *rules.Pack, path, want string) (v RealVerdict, err error) {
	file, err := os.Open(path)
	if err != nil {
		return v, fmt.Errorf("open recording: %w", err)
	}
	defer func() {
		if closed := file.Close(); closed != nil && !errors.Is(closed, fs.ErrClosed) {
			err = errors.Join(err, closed)
		}
	}()
	var told []*event.Finding
	if _, _, err = processor.Replay(ctx, pack, file, path, func(f *event.Finding) { told = append(told, f) }); err != nil {
		return v, err
	}
	v = RealVerdict{Recording: processor.RecordingName(path), Want: want, Got: []string{}}
	for _, one := range incidents(told) {
		v.Got = append(v.Got, one.class)
		v.Page = v.Page || one.page
	}
	v.Right = strings.Join(v.Got, " ") == want
	return v, nil
}
