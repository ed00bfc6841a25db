package main

import (
	"maps"
	"regexp"
	"strconv"

	"lowtide/collector/spool"
	"lowtide/collector/status"
)

// droppedText is how a collector tells how many messages it gave up: its spool by lane and since the spool was last empty, its publisher
// by host and since it last told.
var droppedText = regexp.MustCompile(`(?:lane (\w+): )?(\d+) messages dropped`)

// announced returns how many messages each producer says that it had to give up, which nobody had acknowledged. A collector whose disk
// and memory are full while the broker is away has no other choice; a drop that it does not tell of is a loss.
func (l *ledger) announced() map[string]int {
	out := map[string]int{}
	type episode struct{ producer, lane string }
	open := map[episode]int{} // what the spool said last
	for _, one := range l.events {
		if one.repeat {
			continue
		}
		for _, e := range one.batch.Events {
			if e.Source == nil {
				continue
			}
			if e.Source.Status != status.Lost {
				if e.Source.Name == spool.SensorName { // which is empty again
					maps.DeleteFunc(open, func(key episode, _ int) bool { return key.producer == one.batch.Producer })
				}
				continue
			}
			for _, said := range droppedText.FindAllStringSubmatch(e.Source.Error, -1) {
				n, err := strconv.Atoi(said[2])
				if err != nil {
					continue
				}
				if said[1] == "" {
					out[one.batch.Producer] += n
					continue
				}
				key := episode{one.batch.Producer, said[1]}
				if before := open[key]; n >= before { // the same episode goes on
					out[key.producer] += n - before
				} else {
					out[key.producer] += n
				}
				open[key] = n
			}
		}
	}
	return out
}

// excused returns the hosts for which a producer speaks that has told of messages it gave up.
func (l *ledger) excused() map[string]bool {
	told, out := l.announced(), map[string]bool{}
	for _, one := range l.events {
		if told[one.batch.Producer] > 0 {
			out[one.batch.Host.Name] = true
		}
	}
	return out
}
