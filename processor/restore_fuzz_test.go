package processor

import (
	"bytes"
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
)

// Whatever is behind the magic and the checksum: it is refused, or it is a judge that goes on, and is saved as it was restored.
func FuzzRestoreJudge(f *testing.F) {
	pack := probePack(f)
	for _, n := range []int{0, 3, 60} {
		r := newTrial(f, pack)
		r.play(newChaos(uint64(n), n), true)
		state := r.save()
		f.Add(state, false)
		parts, err := ownLayout().Open(state)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(parts, true)
	}
	next := newChaos(77, 40)
	f.Fuzz(func(t *testing.T, state []byte, bare bool) {
		if len(state) > 1<<18 {
			return
		}
		if bare {
			state = ownLayout().Seal(state)
		}
		r := newTrial(t, pack)
		j, err := RestoreJudge(pack, NewBoard(), func(*event.Finding) {}, state)
		if err != nil {
			if !errors.Is(err, ErrState) && !errors.Is(err, ErrStateVersion) {
				t.Fatal(err)
			}
			return
		}
		r.judge = j
		once, err := j.Save()
		if err != nil {
			t.Fatal(err)
		}
		j, err = RestoreJudge(pack, NewBoard(), func(*event.Finding) {}, once)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := j.Save(); err != nil || !bytes.Equal(again, once) {
			t.Fatalf("it is saved in another way once it was restored: %v", err)
		}
		for _, e := range next {
			r.judge.Apply(proto.CloneOf(e))
		}
		r.judge.Tick(next[len(next)-1].At())
		r.judge.Flush()
		r.judge.Reports()
	})
}
