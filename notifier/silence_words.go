package notifier

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"lowtide/event"
	"lowtide/processor/broker"
	"lowtide/rules"
)

// matchOf reads key=value pairs.
func matchOf(pairs []string) (map[string]string, error) {
	match := map[string]string{}
	for _, pair := range pairs {
		key, value, found := strings.Cut(strings.TrimSpace(pair), "=")
		if key = strings.TrimSpace(key); !found || value == "" {
			return nil, &broker.Failure{What: fmt.Sprintf("--match: %q is no KEY=VALUE", event.Shorten(tidy(pair), 64)), Remedy: "for example --match class=retention,host=gpu-*", Code: 2}
		}
		if old, twice := match[key]; twice && old != value {
			return nil, &broker.Failure{What: fmt.Sprintf("--match: %s stands twice, and one incident cannot be both", tidy(key)), Remedy: "add a silence for each", Code: 2}
		}
		if !slices.Contains(MatchKeys(), key) {
			remedy := "known are " + strings.Join(MatchKeys(), ", ")
			if near := event.Nearest(key, MatchKeys()); near != "" {
				remedy = "did you mean " + near + "? " + remedy
			}
			return nil, &broker.Failure{What: fmt.Sprintf("--match: nothing is called %q", event.Shorten(tidy(key), 64)), Remedy: remedy, Code: 2}
		}
		match[key] = value
	}
	return match, nil
}

// checkMatch refuses values that no incident can have.
func (s Silence) checkMatch() error {
	for key, list := range map[string][]string{"class": rules.Classes(), "severity": {event.Info, event.Ticket, event.Page}} {
		value, given := s.Match[key]
		prefix, open := strings.CutSuffix(value, "*")
		fits := func(one string) bool { return one == value || open && strings.HasPrefix(one, prefix) }
		if !given || slices.ContainsFunc(list, fits) {
			continue
		}
		remedy := "known are " + strings.Join(list, ", ")
		if near := event.Nearest(prefix, list); near != "" {
			remedy = "did you mean " + near + "?"
		}
		return &broker.Failure{What: fmt.Sprintf("--match: no %s is called %q", key, event.Shorten(tidy(value), 64)), Remedy: remedy, Code: 2}
	}
	if strings.Contains(s.Match["host"], "/") {
		return &broker.Failure{What: "--match: a host is a name without a /", Remedy: "write cluster=NAME,host=NAME", Code: 2}
	}
	if s.ID, s.Until = "s-", time.Unix(0, 0); len(s.Match) == 0 { // the incident comes to it later
		return nil
	}
	if err := s.check(); err != nil {
		return &broker.Failure{What: "--match: " + err.Error(), Remedy: "a value is 1 to 512 bytes, and a * stands only at its end", Code: 2}
	}
	return nil
}

// lengthOf reads a duration; beside Go's units it knows d, for 24 hours.
func lengthOf(text string) (time.Duration, error) {
	days, rest := time.Duration(0), strings.TrimSpace(text)
	if head, tail, found := strings.Cut(rest, "d"); found {
		n, err := strconv.ParseUint(head, 10, 16)
		if err != nil {
			return 0, noLength(text)
		}
		days, rest = time.Duration(n)*24*time.Hour, tail
		if rest == "" {
			rest = "0s"
		}
	}
	length, err := time.ParseDuration(rest)
	if err != nil || length < 0 || length > 100*365*24*time.Hour || days+length <= 0 {
		return 0, noLength(text)
	}
	return days + length, nil
}

func noLength(text string) error {
	return &broker.Failure{What: fmt.Sprintf("--for: %q is no duration", event.Shorten(tidy(text), 64)), Remedy: "for example 90m, 4h or 2d", Code: 2}
}

// momentOf reads a time to come; without a date it is the next such hour.
func momentOf(text string, now time.Time) (time.Time, error) {
	text = strings.TrimSpace(text)
	for _, form := range []string{time.RFC3339, "2006-01-02T15:04Z07:00", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02 15:04 MST", time.DateOnly, "15:04"} {
		at, err := time.Parse(form, strings.TrimSuffix(text, " UTC"))
		if err != nil {
			continue
		}
		if form == "15:04" {
			today := now.UTC().Truncate(24 * time.Hour)
			if at = today.Add(time.Duration(at.Hour())*time.Hour + time.Duration(at.Minute())*time.Minute); !at.After(now) {
				at = at.Add(24 * time.Hour)
			}
		}
		if !at.After(now) {
			return at, &broker.Failure{What: "--until: " + clock(at) + " is past", Remedy: "it is " + clock(now) + " now; times without a zone are UTC", Code: 2}
		}
		return at.UTC(), nil
	}
	return time.Time{}, &broker.Failure{What: fmt.Sprintf("--until: %q is no time", event.Shorten(tidy(text), 64)), Remedy: "for example 2026-11-03T18:00Z, '2026-11-03 18:00' or 18:00; without a zone it is UTC", Code: 2}
}
