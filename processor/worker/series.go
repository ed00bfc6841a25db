package worker

import "math"

// The series of vocabulary.md that belong to one process. Those of the device come once for each of its GPUs. The series orphan
// is the card's, not a worker's.
const (
	live = iota
	awaiting
	cached
	inactiveSplit
	outside
	graphs
	deviceSeries // how many there are of a GPU

	kv = iota - 1
	anon
	pinned
	fds
	threads
	sockets
	seriesCount
)

const ownSeries = seriesCount - deviceSeries

var seriesNames = [seriesCount]string{"live", "awaiting", "cached", "inactive_split", "outside", "graphs", "kv", "anon", "pinned", "fds", "threads", "sockets"}

// floors are the smallest noise that is believed: 4 MiB (two quanta of the driver), 4 handles, 1 % of the KV pool.
var floors = [seriesCount]float64{live: 4 << 20, awaiting: 4 << 20, cached: 4 << 20, inactiveSplit: 4 << 20, outside: 4 << 20, graphs: 4 << 20,
	kv: 0.01, anon: 4 << 20, pinned: 4 << 20, fds: 4, threads: 4, sockets: 4}

// levelFloors are the growths per hour under which a series counts as proven level.
var levelFloors = [seriesCount]float64{live: 5 << 20, awaiting: 5 << 20, cached: 5 << 20, inactiveSplit: 5 << 20, outside: 5 << 20, graphs: 5 << 20,
	kv: 0.01, anon: 5 << 20, pinned: 5 << 20, fds: 4, threads: 4, sockets: 4}

// judged are the series that the early and the steady call are made on. kv and awaiting should be empty when quiet and are judged by
// what is left there; cached and inactive_split are never called alone (design.md, Worker).
var judged = [seriesCount]bool{live: true, outside: true, graphs: true, awaiting: true, anon: true, pinned: true, fds: true, threads: true, sockets: true}

// matchable are those that can be compared at matched load: what a busy worker holds in the others is its work.
var matchable = [seriesCount]bool{live: true, awaiting: true, outside: true, graphs: true, anon: true, pinned: true, fds: true, threads: true, sockets: true}

// units are those of the values.
var units = [seriesCount]string{live: "bytes", awaiting: "bytes", cached: "bytes", inactiveSplit: "bytes", outside: "bytes", graphs: "bytes",
	kv: "ratio", anon: "bytes", pinned: "bytes", fds: "1", threads: "1", sockets: "1"}

// A column is one series of one GPU, or one of the process: first the process's own, then those of each GPU in the order in which
// the GPUs were first seen.
func column(series, card int) int {
	if series >= deviceSeries {
		return series - deviceSeries
	}
	return ownSeries + card*deviceSeries + series
}

// seriesOf is the series of a column, and the number of its GPU (-1 for the process's own).
func seriesOf(column int) (series, card int) {
	if column < ownSeries {
		return column + deviceSeries, -1
	}
	return (column - ownSeries) % deviceSeries, (column - ownSeries) / deviceSeries
}

// columnsOf is the number of columns of a process with some GPUs.
func columnsOf(cards int) int { return ownSeries + cards*deviceSeries }

// at reads a column that may not have existed when the values were taken.
func at(values []float32, column int) float64 {
	if column >= len(values) {
		return math.NaN()
	}
	return float64(values[column])
}
