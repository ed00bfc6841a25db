package scorecard

import (
	"fmt"
	"os"
	"path"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"lowtide/collector/sim"
	"lowtide/rules"
)

func TestScratch(t *testing.T) {
	if os.Getenv("SC") == "" {
		t.Skip("scratch")
	}
	pack, err := rules.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	lo, hi, _ := strings.Cut(os.Getenv("SC"), "-")
	a, _ := strconv.Atoi(lo)
	b, _ := strconv.Atoi(hi)
	glob := os.Getenv("GLOB")
	type job struct {
		s    sim.Scenario
		seed uint64
	}
	var jobs []job
	for _, s := range sim.Scenarios() {
		if ok, _ := path.Match(glob, s.Name); glob != "" && !ok {
			continue
		}
		for n := a; n <= b; n++ {
			jobs = append(jobs, job{s, uint64(n)})
		}
	}
	start := time.Now()
	out := make([]*trial, len(jobs))
	var wg sync.WaitGroup
	sem := make(chan bool, 2)
	for n, j := range jobs {
		wg.Add(1)
		sem <- true
		go func() {
			defer func() { <-sem; wg.Done() }()
			tr, err := play(t.Context(), pack, j.s, j.seed)
			if err != nil {
				t.Error(err)
			}
			out[n] = tr
		}()
	}
	wg.Wait()
	days := 0.0
	wrong := map[string]map[string]int{}
	pages := 0
	falses := 0
	for _, tr := range out {
		if !tr.scenario.Undeclared {
			days += tr.days
			for _, one := range tr.healthy {
				falses++
				if one.page {
					pages++
				}
			}
		}
		key := tr.scenario.Name
		if wrong[key] == nil {
			wrong[key] = map[string]int{}
		}
		wrong[key]["n"]++
		if tr.scenario.Class != "" {
			if f := tr.found(); f == nil {
				wrong[key]["MISSED"]++
			} else {
				wrong[key]["found"]++
			}
		}
		for _, w := range tr.wrong() {
			k := w.class
			if w.overtaken != "" {
				k += ">" + w.overtaken
			}
			if w.page {
				k += "!"
			}
			wrong[key][k]++
			if os.Getenv("V") != "" {
				fmt.Printf("  %s %d onset %s: %s %s at %s conf %v: %s\n", key, tr.seed, tr.onset.Format("15:04"), k, w.slot, w.first.Format("02 15:04"), !w.confirmed.IsZero(), w.opened.Summary)
			}
		}
		if f := tr.found(); os.Getenv("V") != "" && tr.scenario.Class != "" {
			if f == nil {
				fmt.Printf("  %s %d onset %s MISSED\n", key, tr.seed, tr.onset.Format("02 15:04"))
			} else {
				fmt.Printf("  %s %d onset %s found %.2f h conf %v: %s (callable %.2f)\n", key, tr.seed, tr.onset.Format("02 15:04"), f.first.Sub(tr.onset).Hours(), !f.confirmed.IsZero(), f.opened.Summary, tr.fourth.Sub(tr.onset).Hours())
			}
		}
	}
	names := []string{}
	for k := range wrong {
		names = append(names, k)
	}
	sort.Strings(names)
	for _, k := range names {
		if len(wrong[k]) > 1 {
			fmt.Println(k, wrong[k])
		}
	}
	fmt.Printf("%d recordings, %.1f healthy days, %d false, %d pages, %v\n", len(jobs), days, falses, pages, time.Since(start))
}
