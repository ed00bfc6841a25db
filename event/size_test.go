package event

import "testing"

func TestSize(t *testing.T) {
	for text, want := range map[string]Size{"12GiB": 12 << 30, "1.5 GiB": 3 << 29, "512MiB": 512 << 20, "7": 7, "8B": 8, "2TiB": 2 << 40, "0": 0} {
		var got Size
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "GiB", "-1GiB", "12GB", "1e30TiB", "NaN", "inf"} {
		if err := new(Size).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is a number of bytes", text)
		}
	}
}
