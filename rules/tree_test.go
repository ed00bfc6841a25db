package rules

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"lowtide/rules/variable"
)

// both evaluates a condition by its tree and by CEL.
func both(p program, s *variable.Sample) (tree, cel string) {
	say := func(o Outcome, missing string) string { return o.String() + " " + missing }
	return say(p.evaluate(s)), say(program{run: p.run}.evaluate(s))
}

// random fills a sample with few values, so that they are equal now and then, and leaves a third unknown.
func randomSample(random *rand.Rand) *variable.Sample {
	s := variable.NewSample()
	for i, v := range variable.All() {
		id := variable.ID(i)
		if random.IntN(3) == 0 {
			continue
		}
		switch v.Kind {
		case variable.Number:
			s.SetNumber(id, []float64{0, 1, 2, 45, 79, 0.01, 0.5, 1 << 20, 3 << 30, -1, 600}[random.IntN(11)])
		case variable.Bool:
			s.SetBool(id, random.IntN(2) == 0)
		case variable.String:
			s.SetString(id, []string{"cuda", "cgroup", "engine", "lost", ""}[random.IntN(5)])
		}
	}
	return s
}

// CEL is the reference: on every shipped condition and any sample a tree gives the same outcome and names the same sensor.
func TestTreesOfTheShippedRulesAgreeWithCEL(t *testing.T) {
	pack := shippedPack(t)
	random := rand.New(rand.NewPCG(1, 2))
	outcomes := map[string]int{}
	for range 300 {
		s := randomSample(random)
		for _, r := range pack.Rules {
			programs := []program{r.when, r.confirm, r.with, r.refute, r.ask}
			for _, c := range r.against {
				programs = append(programs, c.program)
			}
			for i, p := range programs {
				if p.run != nil && p.tree == nil {
					t.Fatalf("rule %s, condition %d has no tree", r.ID, i)
				}
				tree, cel := both(p, s)
				if tree != cel {
					t.Fatalf("rule %s, condition %d: the tree says %s, CEL %s", r.ID, i, tree, cel)
				}
				outcomes[strings.Fields(tree)[0]]++
			}
		}
	}
	for _, o := range []Outcome{False, True, Unknown} {
		if outcomes[o.String()] < 1000 {
			t.Errorf("%s came out %d times", o, outcomes[o.String()])
		}
	}
}

// write makes a random condition of the operations that a tree has.
func write(random *rand.Rand, depth int) string {
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	var number func(depth int) string
	number = func(depth int) string {
		if depth <= 0 {
			return pick("live.now", "kv.now", "anon.growth", "xid.first", "oom.count", "1", "0", "t.floor", "MiB", "-2", "0.5")
		}
		switch random.IntN(4) {
		case 0:
			return "(" + number(depth-1) + pick(" + ", " - ", " * ", " / ") + number(depth-1) + ")"
		case 1:
			return "-" + number(0)
		case 2:
			return "(" + write(random, depth-1) + " ? " + number(depth-1) + " : " + number(depth-1) + ")"
		}
		return number(0)
	}
	if depth <= 0 {
		return pick("live.early", "symptom.oom", "kv.full", "known(live.now)", "known(symptom.oom)", "true", "false", `(oom.kind == "cuda")`, `(engine != oom.kind)`)
	}
	switch random.IntN(7) {
	case 0:
		return "(" + write(random, depth-1) + " && " + write(random, depth-1) + " && " + write(random, depth-1) + ")"
	case 1:
		return "(" + write(random, depth-1) + " || " + write(random, depth-1) + ")"
	case 2:
		return "!" + write(random, depth-1)
	case 3:
		return "(" + number(depth-1) + pick(" < ", " <= ", " > ", " >= ", " == ", " != ") + number(depth-1) + ")"
	case 4:
		return "(" + write(random, depth-1) + " ? " + write(random, depth-1) + " : " + write(random, depth-1) + ")"
	case 5:
		return "(" + number(depth-1) + " in [1, 45, -2, 0.5])"
	}
	return "(" + write(random, depth-1) + pick(" == ", " != ") + write(random, depth-1) + ")"
}

// The same of conditions that nobody would write; a division by nothing, or the difference of two infinities, is among them.
func TestTreesAgreeWithCEL(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 5))
	trees, gave := 0, 0
	c, err := newCompiler(map[string]float64{"floor": 5 << 20}) // units are of no concern here
	if err != nil {
		t.Fatal(err)
	}
	for range 400 {
		condition := write(random, 4)
		var problems Problems
		p, ok := c.condition(scalar{doc: &document{name: "probe.yaml", problems: &problems}, text: condition, line: 1, column: 1}, "when")
		if !ok {
			t.Fatalf("%s: %v", condition, problems)
		}
		if p.tree != nil {
			trees++
		}
		for range 20 {
			s := randomSample(random)
			if tree, cel := both(p, s); tree != cel {
				t.Fatalf("%s: the tree says %s, CEL %s", condition, tree, cel)
			}
			if p.tree != nil {
				if out, _ := p.tree.truth(s); out == gaveUp {
					gave++
				}
			}
		}
	}
	if trees < 390 || gave == 0 {
		t.Errorf("%d of 400 conditions have a tree, and %d times one gave up", trees, gave)
	}
}

func TestWhatTreesCannotSayIsLeftToCEL(t *testing.T) {
	s := variable.NewSample()
	s.SetLabels(variable.Must("labels"), map[string]string{"team": "search"})
	s.SetString(variable.Must("engine"), "vllm")
	s.SetNumber(variable.Must("kv.now"), 0.5)
	for _, condition := range []string{`labels.team == "search"`, `labels["team"].startsWith("se")`, `has(labels.team)`, `engine < "w"`, `engine + "!" == "vllm!"`,
		`engine in ["vllm"]`, `(kv.now > 0 ? engine : "x") == "vllm"`, `double("1") > kv.now`} {
		r := one(t, condition)
		if got := r.Evaluate(s); r.when.tree != nil || got.When != True {
			t.Errorf("%s: tree %v, outcome %v %s", condition, r.when.tree, got.When, got.Missing)
		}
	}
	if r := one(t, `engine == "vllm" && kv.now in [0.5, 1]`); r.when.tree == nil || r.Evaluate(s).When != True {
		t.Error("a plain condition has no tree, or says something else")
	}
}

func ExampleRule_Summary() {
	pack, err := Builtin()
	if err != nil {
		fmt.Println(err)
		return
	}
	s := variable.NewSample()
	s.SetNumber(variable.Must("live.growth"), 2<<30)
	s.SetNumber(variable.Must("quiet.count"), 4)
	fmt.Println(pack.Rule("retention").Summary(s))
	// Output: Live memory rises 2 GiB/h across 4 quiet points
}
