package collector

import "time"

const (
	spoolRate   = 32      // messages a second
	messageCost = 8 << 10 // bytes that every message counts for at least: its way through broker and judge costs as much as its bytes
	paceBurst   = 250 * time.Millisecond
)

// pace bounds how fast what was kept while the broker was away is sent. What came since then has a right of its own: it is let through
// beside, so that the backlog shrinks by the same rate however much is new, and always does.
type pace struct {
	rate   float64 // of the backlog, cost a second
	tokens float64 // may be in debt by one message
	credit float64 // of messages that came since the broker is there
	at     time.Time
}

func costOf(bytes int) float64 { return float64(max(bytes, messageCost)) }

// start begins anew: the broker is back, or nothing waits any more.
func (p *pace) start(now time.Time) { p.tokens, p.credit, p.at = 0, 0, now }

// admit lets one more message through that came while the broker was there.
func (p *pace) admit(cost float64) { p.credit += cost }

// delay is how long a message of this cost has to wait.
func (p *pace) delay(cost float64, now time.Time) time.Duration {
	if p.credit >= cost {
		return 0
	}
	p.tokens = min(p.tokens+p.rate*max(0, now.Sub(p.at).Seconds()), p.rate*paceBurst.Seconds())
	p.at = now
	if p.tokens >= 0 {
		return 0
	}
	return max(time.Millisecond, time.Duration(-p.tokens/p.rate*float64(time.Second)))
}

// spend takes the cost of a message that is sent.
func (p *pace) spend(cost float64) {
	if p.credit >= cost {
		p.credit -= cost
		return
	}
	p.tokens -= cost
}
