package backtest

// Help is what stands below the flags.
func (c *Command) Help() string {
	return `Nothing is sent and nothing is stored. With rule files that change one rule, all others are judged too, as live: they explain each other.

  lowtide rules backtest mine.yaml                          the last day, from the store of the running up
  lowtide rules backtest mine.yaml --stream --last 6h       from what the broker still has
  lowtide rules backtest mine.yaml --diff yesterday.yaml    two files on one history

NEW is what only these rules say, GONE what only the active ones (or those of --diff) said, SAME what both did: an incident of one class and
place at the same time, whichever rule it is of. What was said before --from is not counted, but what was open then is.`
}
