package ownership

import (
	"fmt"
	"time"

	json "github.com/go-json-experiment/json"

	"lowtide/processor/broker"
)

const (
	maxName  = 64
	maxRoles = 32
	maxSeats = 4096
)

// member is what a processor says of itself with every heartbeat.
type member struct {
	Session string         `json:"session"` // drawn at its start: tells two with one name apart
	Roles   map[string]int `json:"roles"`   // name → seats that it knows of
	Beat    uint64         `json:"beat"`
	Leaving bool           `json:"leaving,omitzero"` // it takes no seats, and gives back what it has
	Version string         `json:"version,omitzero"`
	Since   time.Time      `json:"since,omitzero"` // by its own clock, for people
}

// lease says who has a seat.
type lease struct {
	Member  string    `json:"member"`
	Session string    `json:"session"`
	Since   time.Time `json:"since,omitzero"` // by its own clock, for people
}

func encode(value any) ([]byte, error) {
	text, err := json.Marshal(value)
	if err == nil && len(text) > broker.MaxMember {
		err = fmt.Errorf("%d bytes, the most are %d", len(text), broker.MaxMember)
	}
	return text, err
}

// decodeMember reads a heartbeat that any program could have written. Fields that it does not know are those of a newer version.
func decodeMember(text []byte) (member, error) {
	var m member
	if err := decode(text, &m); err != nil {
		return member{}, fmt.Errorf("read heartbeat: %w", err)
	}
	if !isName(m.Session) {
		return member{}, fmt.Errorf("read heartbeat: session %.80q is no name", m.Session)
	}
	if len(m.Roles) > maxRoles {
		return member{}, fmt.Errorf("read heartbeat: %d roles, the most are %d", len(m.Roles), maxRoles)
	}
	for name, seats := range m.Roles {
		if !isName(name) || seats < 0 || seats > maxSeats {
			return member{}, fmt.Errorf("read heartbeat: role %.80q with %d seats", name, seats)
		}
	}
	return m, nil
}

func decodeLease(text []byte) (lease, error) {
	var l lease
	if err := decode(text, &l); err != nil {
		return lease{}, fmt.Errorf("read lease: %w", err)
	}
	if !isName(l.Member) || !isName(l.Session) {
		return lease{}, fmt.Errorf("read lease: member %.80q, session %.80q", l.Member, l.Session)
	}
	return l, nil
}

func decode(text []byte, into any) error {
	if len(text) > broker.MaxMember {
		return fmt.Errorf("%d bytes, the most are %d", len(text), broker.MaxMember)
	}
	return json.Unmarshal(text, into)
}

// isName tells whether a word can be a key of a bucket and a label.
func isName(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for _, c := range []byte(s) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	return true
}
