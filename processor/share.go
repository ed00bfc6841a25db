package processor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"lowtide/processor/layout"
)

const (
	maxShare   = 512 << 10 // bytes of a share, packed: less than a message of a broker may have
	maxShared  = 1 << 26   // bytes, not packed
	maxPeersOf = 1 << 12   // entries of a share
	maxWord    = 64 << 10  // bytes of a name in it: a key is made of several of 4 KiB
)

// posted is one entry of a board as it travels and is saved.
type posted struct {
	Group peerGroup
	Life  string
	Word  peer
}

// Parts leaves out whose word it is: that is who wrote the share, or the state.
func (p *peer) Parts() []any {
	return []any{&p.release, &p.rate, &p.rated, &p.points, &p.called, &p.level, &p.at}
}

var shareLayout = sync.OnceValue(func() *layout.Layout {
	return layout.New(layout.Options{Magic: "LTP", Version: 1, Most: maxShared}, new([]posted))
})

// own returns what one judge has reported, sorted.
func (b *Board) own(seat uint64) (all []posted) {
	b.mu.Lock()
	for of, group := range b.groups {
		for life, p := range group {
			if p.from == seat {
				all = append(all, posted{of, life, p})
			}
		}
	}
	b.mu.Unlock()
	slices.SortFunc(all, func(a, b posted) int {
		return cmp.Or(strings.Compare(a.Life, b.Life), strings.Compare(a.Group.cluster, b.Group.cluster), strings.Compare(a.Group.model, b.Group.model), strings.Compare(a.Group.role, b.Group.role))
	})
	return all
}

// restore puts back what a judge had reported, under its new number.
func (b *Board) restore(seat uint64, all []posted) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, one := range all {
		one.Word.from = seat
		b.put(one.Group, one.Life, one.Word)
	}
}

// Share returns what the workers of this judge have told the board, for the boards of other processes: the newest entries of a week, at most
// 512 KiB. Take reads it.
func (j *Judge) Share() ([]byte, error) {
	all := j.board.own(j.seat)
	slices.SortStableFunc(all, func(a, b posted) int { return b.Word.at.Compare(a.Word.at) })
	if len(all) > 0 {
		newest := all[0].Word.at
		old := slices.IndexFunc(all, func(one posted) bool { return newest.Sub(one.Word.at) > peerKept }) // who says nothing to anybody any more
		if old >= 0 {
			all = all[:old]
		}
	}
	for all = all[:min(len(all), maxPeersOf)]; ; all = all[:len(all)/2] {
		parts, err := shareLayout().Write(&all)
		if err != nil {
			return nil, fmt.Errorf("share peers: %w", err)
		}
		if sealed := shareLayout().Seal(parts); len(sealed) <= maxShare {
			return sealed, nil
		}
	}
}

// Take puts what judges of other processes have shared on the board. The word of a judge of this process about its own workers stands, and of
// two others the newer one. An error is an ErrState or an ErrStateVersion, and changes nothing: a share of another build is waited out, since
// peers are one of several proofs.
func (b *Board) Take(share []byte) error {
	all, err := readShare(share)
	if err != nil {
		return fmt.Errorf("take peers: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, one := range all {
		if was, known := b.groups[one.Group][one.Life]; known && (was.from != 0 || was.at.After(one.Word.at)) {
			continue
		}
		b.put(one.Group, one.Life, one.Word)
	}
	return nil
}

func readShare(share []byte) (all []posted, err error) {
	if len(share) > maxShare {
		return nil, fmt.Errorf("%w: %d bytes, %d at most", ErrState, len(share), maxShare)
	}
	parts, err := shareLayout().Open(share)
	if err != nil {
		return nil, err
	}
	if _, err := shareLayout().Read(parts, &all); err != nil {
		return nil, err
	}
	if len(all) > maxPeersOf {
		return nil, fmt.Errorf("%w: %d peers, %d at most", ErrState, len(all), maxPeersOf)
	}
	for i := range all {
		if what := all[i].broken(); what != "" {
			return nil, fmt.Errorf("%w: a peer with a wrong %s", ErrState, what)
		}
	}
	return all, nil
}

// broken names what no board can have written.
func (p *posted) broken() string {
	switch g, w := &p.Group, &p.Word; {
	case p.Life == "" || max(len(p.Life), len(g.cluster), len(g.model), len(g.role), len(w.release)) > maxWord:
		return "name"
	case g.model == "":
		return "model"
	case w.points < peerPoints:
		return "number of points"
	case w.called>>len(growers) != 0 || w.level>>len(growers) != 0:
		return "series"
	case w.rate != w.rate || w.rate < 0:
		return "rate"
	}
	return ""
}

// Leave says that nobody judges for this judge any more: what it told the board stays, until others have newer words about the same workers.
// Its partition may be judged by another process now, whose shares count from then on.
func (j *Judge) Leave() {
	j.board.mu.Lock()
	defer j.board.mu.Unlock()
	for _, group := range j.board.groups {
		for life, p := range group {
			if p.from == j.seat {
				p.from = 0
				group[life] = p
			}
		}
	}
}
