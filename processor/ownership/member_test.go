package ownership

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestHeartbeatOfANewerVersionIsRead(t *testing.T) {
	m, err := decodeMember([]byte(`{"session":"S1","roles":{"judge":64,"oracle":3},"beat":9,"version":"v9","mood":"good","since":"2026-11-30T10:00:00Z"}`))
	want := member{Session: "S1", Roles: map[string]int{"judge": 64, "oracle": 3}, Beat: 9, Version: "v9", Since: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)}
	if err != nil || !reflect.DeepEqual(m, want) {
		t.Errorf("read %+v, %v", m, err)
	}
}

func TestWhatIsNoHeartbeatOrLeaseIsRefused(t *testing.T) {
	long := strings.Repeat("x", 65)
	for text, want := range map[string]string{
		``:                                     "EOF",
		`[]`:                                   "array",
		`{"roles":{"judge":64}}`:               `session "" is no name`,
		`{"session":"` + long + `"}`:           "is no name",
		`{"session":"s","roles":{"a.b":1}}`:    `role "a.b" with 1 seats`,
		`{"session":"s","roles":{"a":-1}}`:     `role "a" with -1 seats`,
		`{"session":"s","roles":{"a":5000}}`:   `role "a" with 5000 seats`,
		`{"session":"s","roles":{"a":"many"}}`: "int",
		strings.Repeat(" ", 5000):              "5000 bytes, the most are 4096",
	} {
		if _, err := decodeMember([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", text, err, want)
		}
	}
	for _, text := range []string{``, `{}`, `{"member":"a b","session":"s"}`, `{"member":"a"}`, `{"member":1}`} {
		if l, err := decodeLease([]byte(text)); err == nil {
			t.Errorf("%s was read as %+v", text, l)
		}
	}
}

func FuzzMember(f *testing.F) {
	f.Add([]byte(`{"session":"S1","roles":{"judge":64},"beat":9}`))
	f.Add([]byte(`{"session":"S1","leaving":true,"since":"2026-11-30T10:00:00+01:00"}`))
	f.Add([]byte(`{"member":"a","session":"s"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if m, err := decodeMember(text); err == nil {
			again, err := encode(m)
			if err != nil {
				return // longer than it was: escaped, or a time written out
			}
			same, err := decodeMember(again)
			if err != nil || same.Session != m.Session || same.Beat != m.Beat || same.Leaving != m.Leaving || len(same.Roles) != len(m.Roles) || !same.Since.Equal(m.Since) {
				t.Fatalf("%+v became %+v, %v", m, same, err)
			}
		}
	})
}

func FuzzLease(f *testing.F) {
	f.Add([]byte(`{"member":"a","session":"s","since":"2026-11-30T10:00:00Z"}`))
	f.Add([]byte(`{"member":"a","session":"s","more":{}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if l, err := decodeLease(text); err == nil {
			again, err := encode(l)
			if err != nil {
				return
			}
			if same, err := decodeLease(again); err != nil || same.Member != l.Member || same.Session != l.Session || !same.Since.Equal(l.Since) {
				t.Fatalf("%+v became %+v, %v", l, same, err)
			}
		}
	})
}
