package worker

import (
	"time"

	"lowtide/event"
	"lowtide/processor/trend"
)

// Report is what one worker looks like to a person: plain values, nothing formatted. What is not known is NaN, zero time or "".
type Report struct {
	Key, Slot, Instance string
	Who                 *event.Worker
	Host                *event.Host
	Config              *event.Config
	First, Last, Ready  time.Time

	Verdict string // one of the "Not findings" of vocabulary.md, or "<series> grows"
	Why     string // a clause
	Quiet   QuietReport
	Cards   []CardReport
	Series  []SeriesReport    // those that are known, in the order of vocabulary.md
	Lacking []string          // what would be needed to be surer
	Missing map[string]string // class → the sensor that is missing
	Quality []string          // what is wrong with the data
}

// QuietReport is what levels are compared at.
type QuietReport struct {
	Count             int // comparable points since warm-up
	Hours             float64
	Matched, Inferred bool
	Newest            time.Time
}

// CardReport is the newest memory of the worker on one GPU, in bytes.
type CardReport struct {
	UUID                                                                          string
	Total, Used, Free, Reserved, Live, Cached, Awaiting, Outside, Limit, Headroom float64
}

// SeriesReport is one series with what it was judged by.
type SeriesReport struct {
	Name, GPU, Unit     string // unit: bytes, ratio, 1
	Now, Level          float64
	Growth              trend.Growth
	Called              bool
	Onset               time.Time
	Lacking             string // why it is not called
	Points              []Dot  // quiet levels
	Trace               []Dot  // the lowest value in equal stretches of the life so far
	HoursLow, HoursHigh float64
}

// Dot is one value at one moment.
type Dot struct {
	At    time.Time
	Value float64
}
