package ruletest

// Help is the reference of the test files, below the flags.
func (c *Command) Help() string {
	return `Tests of mine.yaml are in mine_test.yaml beside it. Under tests: are single samples; under scenarios: what happens in time, which is given to the
judges as if it came from collectors. Nothing waits: ten days are played in seconds.

  scenarios:
    - name: a leak after a rollout
      quiet: every 1h for 2m               # nothing runs then; what the engine tells of its work is made up unless a series says it
      worker: {release: r7, model: llama}  # whatever is not written is made up
      series:
        allocator.allocated_bytes: 40GiB+2GiB/hx8h
      events:
        - {at: 7h, oom: {kind: cuda, requested_bytes: 2GiB}}
      expect:                              # what stands then; only what is written has to hold
        - {at: 2h, nothing: true}
        - {at: 6h, rule: retention, state: suspected, severity: ticket}
        - {at: 7h10m, class: retention, severity: page, labels: {host: host}}
      never: [native_growth]               # rules, classes or severities

A series is of a field as collectors send it (gpu, gpu_process, allocator, engine, process, machine):

  40GiB+12MiBx60          sixty ticks, 12 MiB more with each
  40GiB+1GiB/hx6h         for six hours, 1 GiB more an hour
  5x60    5x1h            the same value
  5                       all the time
  5x30 _x10 7x*           a step, with ten ticks in between of which nothing was read; * is to the end
  40GiB±4MiBx60           with noise, also +-4MiB, the same every time; seed: makes another
  (40GiBx50 38GiBx10)x24  repeated

Further keys of a scenario: start: (2026-01-01T00:00:00Z), interval: (1m), for: (until the longest series ends), seed:, nothing: true (all the time),
recording: FILE instead of series, and beside: a list of further workers, each with worker:, quiet:, series: and events:. The first 20 minutes
of a worker are warm-up, and growth is called after three hours. An expectation takes at, rule, class, state, severity, subject, slot, host,
cluster, release, labels, summary (a part of it), count and nothing. Events are oom, xid, lifecycle, mark, config, snapshot, log and source,
with at:, and every: and count: for several. After lifecycle: {state: exited} nothing is read of the process until {state: started}.`
}
