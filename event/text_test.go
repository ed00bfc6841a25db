package event

import "testing"

func TestShorten(t *testing.T) {
	for _, test := range []struct {
		text string
		most int
		want string
	}{
		{"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"aé", 2, "a"}, {"aéb", 3, "aé"}, {"é", 1, ""}, {"\xbf\xbf", 1, ""}, {"", 0, ""},
	} {
		if got := Shorten(test.text, test.most); got != test.want {
			t.Errorf("%q in %d bytes is %q, want %q", test.text, test.most, got, test.want)
		}
	}
}
