package sink

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor/broker/brokertest"
)

// engineTakes is what one request to the embedded engine may hold, in bytes.
const engineTakes = 64 << 20

// Rows that together are larger than a request may be go in pieces, the same ones each time, each row once; those that are refused too.
func TestNoInsertIsLargerThanTheEngineTakes(t *testing.T) {
	_, _, js := brokertest.Start(t)
	logs := tickBatch(1, tick)
	host := logs.Batch.Host
	logs.Batch.Events = nil
	for n := range 700 { // twice 64 KiB each, as text and in the body
		logs.Batch.Events = append(logs.Batch.Events, &event.Event{Time: timestamppb.New(tick), Host: host, Log: &event.Log{Signature: fmt.Sprint(n), Text: strings.Repeat("x", 64<<10)}})
	}
	all := table(t, Join(Block{Messages: []Message{logs}}), TableEvents)
	if all.nativeSize() <= engineTakes {
		t.Fatalf("%d bytes need no pieces", all.nativeSize())
	}
	r := newRun(NewStorer(js, nil, nil), eventsSeat, 0)
	r.ledger = &ledger{now: time.Now, confirmed: time.Now().Add(time.Hour), plan: plan{Block: &bounds{First: 1, Last: 1, Count: 1}}}
	for name, put := range map[string]func() error{
		"placed": func() error { return r.place(t.Context(), all, "b", 0, all.Count) },
		"kept":   func() error { return r.keep(t.Context(), all, "b", 0, all.Count, "no") },
	} {
		var runs [2][]string
		for i := range runs {
			rows := 0
			r.store = storeFunc(func(_ context.Context, token string, part Rows) error {
				size := len(part.appendNative(nil))
				if size > engineTakes || size > part.nativeSize() {
					t.Errorf("%s: %s has %d bytes, foreseen were %d", name, token, size, part.nativeSize())
				}
				rows += part.Count
				runs[i] = append(runs[i], token)
				return nil
			})
			if err := put(); err != nil {
				t.Fatal(err)
			}
			if rows != all.Count {
				t.Errorf("%s: %d rows, want %d", name, rows, all.Count)
			}
		}
		if len(runs[0]) < 2 || fmt.Sprint(runs[0]) != fmt.Sprint(runs[1]) {
			t.Errorf("%s: in %v, then in %v", name, runs[0], runs[1])
		}
	}
}

// The bound holds for dictionaries of every width, lists, and what is null.
func TestNativeSizeIsABound(t *testing.T) {
	for _, rows := range []int{1, 255, 257, 70_000} {
		name, list, number := newColumn(field{name: "n", kind: kindName}, rows), newColumn(field{name: "l", kind: kindNames}, rows), newColumn(field{name: "u", kind: kindUint, optional: true}, rows)
		for row := range rows {
			name.text[row], list.lists[row], number.absent[row] = fmt.Sprint(row), []string{fmt.Sprint(row % 300), "b"}, 1
		}
		r := Rows{Table: TableEvents, Count: rows, Columns: []Column{name, list, number}}
		if size := len(r.appendNative(nil)); size > r.nativeSize() {
			t.Errorf("%d rows: %d bytes, foreseen were %d", rows, size, r.nativeSize())
		}
	}
}
