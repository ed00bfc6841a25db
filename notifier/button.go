package notifier

import (
	"strings"
	"time"

	"github.com/slack-go/slack"

	"lowtide/event"
)

// The buttons of a card. The value of each is its incident.
const (
	pressAcknowledge = "lowtide_acknowledge"
	pressSilence     = "lowtide_silence_4h"
	pressNextRelease = "lowtide_silence_release"
	pressNotALeak    = "lowtide_not_a_leak"
	pressWasRight    = "lowtide_was_right"
)

// silenceFor is how long the button silences; untilRelease is how long the other one does when no release comes.
const (
	silenceFor   = 4 * time.Hour
	untilRelease = 30 * 24 * time.Hour
)

// maxValue bounds the value of a button, by Slack's limit of 2,000.
const maxValue = 1900

// buttons are those that make sense on a card; nil when none does.
func buttons(card Card) slack.Block {
	if len(card.Incident) > maxValue {
		return nil
	}
	var list []slack.BlockElement
	add := func(action, label string, style slack.Style) {
		b := slack.NewButtonBlockElement(action, card.Incident, slack.NewTextBlockObject(slack.PlainTextType, label, false, false))
		if style != slack.StyleDefault {
			b = b.WithStyle(style)
		}
		list = append(list, b)
	}
	open := card.State != event.Resolved
	if open && !card.Acknowledged {
		add(pressAcknowledge, "Acknowledge", slack.StylePrimary)
	}
	if card.Class == stormClass {
		if len(list) == 0 {
			return nil
		}
		return slack.NewActionBlock("", list...)
	}
	if open {
		add(pressSilence, "Silence 4 h", slack.StyleDefault)
		if card.Release != "" {
			add(pressNextRelease, "Silence until next release", slack.StyleDefault)
		}
	}
	add(pressNotALeak, notRightLabel(card.Class), slack.StyleDefault)
	add(pressWasRight, "Was right", slack.StyleDefault)
	return slack.NewActionBlock("", list...)
}

// notRightLabel is what is denied: a leak, or whatever else the class says.
func notRightLabel(class string) string {
	switch class {
	case "retention", "stream_backlog", "graph_pools", "native_growth", "kv_block_leak", "host_memory", "pinned_memory", "fd_leak", "thread_leak":
		return "Not a leak"
	}
	return "Was wrong"
}

// press is somebody's press of a button.
type press struct {
	action   string
	incident string
	by       string // name of the person
	user     string // ID of the person
	channel  string
	message  string // timestamp of the card
	at       time.Time
}

// silenceOf is the silence that a button asks for. It covers the class at the slot, or, of a card that tells about several, the class in the
// release of the model: what is new there meanwhile was meant too.
func silenceOf(p press, r *record) Silence {
	f := r.face()
	s := Silence{By: p.by, Created: p.at.UTC(), Until: p.at.Add(silenceFor).UTC(), Match: map[string]string{"class": f.Class}, Comment: "pressed on the card of " + clip(f.Incident, 64)}
	add := func(key string) bool {
		value := matched(f, key)
		if value == "" || strings.HasSuffix(value, "*") {
			return false
		}
		s.Match[key] = value
		return true
	}
	switch several := len(r.members) > 0; {
	case several && add("model") && add("cluster"):
		add("release")
	case add("slot"):
	default:
		s.Match = map[string]string{"incident": f.Incident}
	}
	if p.action == pressNextRelease {
		s.Until, s.NotRelease = p.at.Add(untilRelease).UTC(), release(f)
	}
	return s
}
