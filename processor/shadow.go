package processor

import "lowtide/rules/variable"

// reads returns what any of them reads, those in shadow too.
func (q *questions) reads() variable.Set {
	read := q.readers.Read()
	if q.shadow != nil {
		read = read.With(q.shadow.readers.Read())
	}
	return read
}

// askInShadow asks the rules that are tried out, after those that count. Nothing that those see may depend on it: the proofs that were told for
// one series after the other stand in the sample afterwards as they did before.
func (j *Judge) askInShadow(q *questions, a *answers, v *view) {
	if a.shadow == nil {
		a.shadow = new(answers)
	}
	if v.w == nil || v.w.called == 0 {
		j.askThem(q, a.shadow, v)
		return
	}
	before := proofsOf(v.w.Sheet())
	j.askThem(q, a.shadow, v)
	before.tell(v.w.Sheet())
}

// proofs are the values of the variables that prove sets.
type proofs struct {
	bools   [len(proofBools)]struct{ value, known bool }
	numbers [len(proofNumbers)]struct {
		value float64
		known bool
	}
}

var (
	proofBools   = [...]variable.ID{slotIDs.work, slotIDs.cap, slotIDs.proofRestart, slotIDs.proofPeer}
	proofNumbers = [...]variable.ID{slotIDs.same, slotIDs.sameGrowing, slotIDs.other, slotIDs.otherGrowing}
)

func proofsOf(s *variable.Sample) (p proofs) {
	for i, id := range proofBools {
		p.bools[i].value, p.bools[i].known = s.Bool(id)
	}
	for i, id := range proofNumbers {
		p.numbers[i].value, p.numbers[i].known = s.Number(id)
	}
	return p
}

func (p *proofs) tell(s *variable.Sample) {
	for i, id := range proofBools {
		if one := p.bools[i]; one.known {
			s.SetBool(id, one.value)
		} else {
			s.Unset(id)
		}
	}
	for i, id := range proofNumbers {
		if one := p.numbers[i]; one.known {
			s.SetNumber(id, one.value)
		} else {
			s.Unset(id)
		}
	}
}
