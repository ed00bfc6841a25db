package event

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// agree fails when what the decoder makes of a line is not exactly what the strict reader makes of it. It returns whether the line
// was in the plain form.
func agree(t *testing.T, d *decoder, text []byte) (plain bool) {
	t.Helper()
	want, wantWarnings, wantErr := unmarshalStrictly(text)
	scanned := d.scan(text)
	got, warnings, err := d.event(text)
	if fmt.Sprint(err) != fmt.Sprint(wantErr) || fmt.Sprint(warnings) != fmt.Sprint(wantWarnings) {
		t.Fatalf("%s\ngot error %v, warnings %q\nwant %v, %q", text, err, warnings, wantErr, wantWarnings)
	}
	if scanned != nil && (wantErr != nil || len(wantWarnings) > 0) {
		t.Fatalf("%s\nwas scanned, but should give %v, %q", text, wantErr, wantWarnings)
	}
	if wantErr != nil {
		return false
	}
	for _, e := range []*Event{got, scanned} {
		if e != nil && (!proto.Equal(e, want) || written(t, e) != written(t, want)) {
			t.Fatalf("%s\ngot %v, want %v", text, e, want)
		}
	}
	return scanned != nil
}

// written tells -0 from 0, and nil from empty, which proto.Equal does not.
func written(t *testing.T, e *Event) string {
	t.Helper()
	text, err := MarshalEvent(e)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func recorded(t testing.TB) []byte {
	t.Helper()
	zipped, err := os.ReadFile("testdata/leak.ndjson.gz")
	if err != nil {
		t.Fatal(err)
	}
	unzip, err := gzip.NewReader(bytes.NewReader(zipped))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(unzip)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestRecordingIsInThePlainForm(t *testing.T) {
	d := newDecoder()
	lines := bufio.NewScanner(bytes.NewReader(recorded(t)))
	for lines.Scan() {
		if !agree(t, d, lines.Bytes()) {
			t.Fatalf("%s\nwent to the strict reader", lines.Bytes())
		}
	}
	if len(d.hosts) != 1 || len(d.workers) != 1 { // one process on one machine
		t.Errorf("%d hosts and %d workers, want one each", len(d.hosts), len(d.workers))
	}
}

// full sets every field, each to another value.
func full(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		switch n := i + 1; {
		case field.IsList():
			list := m.Mutable(field).List()
			list.Append(protoreflect.ValueOfString("first"))
			list.Append(protoreflect.ValueOfString("zweite Äpfel"))
		case field.Kind() == protoreflect.StringKind:
			m.Set(field, protoreflect.ValueOfString(fmt.Sprint("text-", n)))
		case field.Kind() == protoreflect.Uint64Kind:
			m.Set(field, protoreflect.ValueOfUint64(uint64(n)<<40))
		case field.Kind() == protoreflect.Int64Kind:
			m.Set(field, protoreflect.ValueOfInt64(int64(n)))
		case field.Kind() == protoreflect.DoubleKind:
			m.Set(field, protoreflect.ValueOfFloat64(1/float64(n)))
		case field.Kind() == protoreflect.BoolKind:
			m.Set(field, protoreflect.ValueOfBool(true))
		case field.Kind() == protoreflect.MessageKind:
			m.Set(field, protoreflect.ValueOfMessage((&timestamppb.Timestamp{Seconds: 1793491260, Nanos: 476e6}).ProtoReflect()))
		}
	}
}

// A field that event.proto has and the tables do not would be read rightly, but ten times slower.
func TestEveryFieldHasItsPlace(t *testing.T) {
	for _, body := range []string{"gpu", "gpu_process", "allocator", "engine", "process", "machine", "source"} {
		t.Run(body, func(t *testing.T) {
			e := &Event{Time: timestamppb.New(timestamppb.Now().AsTime()), Host: new(Host), Worker: new(Worker)}
			full(e.Host.ProtoReflect())
			full(e.Worker.ProtoReflect())
			field := e.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(body))
			full(e.ProtoReflect().Mutable(field).Message())
			text := []byte(written(t, e))
			if !agree(t, newDecoder(), text) || !agree(t, new(decoder), text) {
				t.Errorf("%s\nwent to the strict reader", text)
			}
			spaced, err := json.Marshal(jsontext.Value(text), jsontext.SpaceAfterColon(true), jsontext.SpaceAfterComma(true))
			if err != nil {
				t.Fatal(err)
			}
			if !agree(t, newDecoder(), spaced) || !agree(t, newDecoder(), append([]byte(nil), "\t{\n"+string(spaced[1:len(spaced)-1])+" } \r"...)) {
				t.Errorf("%s\nwent to the strict reader", spaced)
			}
		})
	}
	for _, length := range []int{len(hostMembers), len(workerMembers), len(gpuMembers), len(gpuProcessMembers), len(allocatorMembers),
		len(engineMembers), len(processMembers), len(machineMembers), len(sourceStatusMembers)} {
		if length >= len(order{}) {
			t.Errorf("%d members do not fit into an order", length)
		}
	}
}

// oddLines are each close to the plain form.
var oddLines = []string{
	head + `"gpu":{"uuid":"a","used_bytes":1,"used_bytes":2}}`,
	head + `"gpu":{"uuid":"a","uuid":"b"}}`,
	head + `"gpu":{"uuid":"","uuid":"b"}}`,
	head + `"gpu":{"uuid":"a"},"gpu":{"uuid":"a"}}`,
	head + `"gpu":{"uuid":"a"},"machine":{"fds":1}}`,
	head + `"gpu":{"uuid":"a"},"time":"2026-11-01T00:00:00Z"}`,
	head + `"gpu":{"uuid":"a"},"host":{"cluster":"lab","name":"a"}}`,
	head + `"gpu":{"uuid":"a\n"}}`,
	head + `"gpu":{"uu\u0069d":"a"}}`,
	head + "\"gpu\":{\"uuid\":\"a\tb\"}}",
	head + "\"gpu\":{\"uuid\":\"\xff\"}}",
	head + "\"gpu\":{\"uuid\":\"\u2028\x7f\"}}",
	head + `"gpu":{"uuid":"}"}}`,
	head + `"gpu":{"uuid":null,"used_bytes":1}}`,
	head + `"gpu":{"uuid":"a","used_bytes":null}}`,
	head + `"gpu":{"used_bytes":1}}`,
	head + `"gpu":{}}`,
	head + `"gpu":null}`,
	head + `"gpu":[]}`,
	head + `"gpu":{"uuid":"a","used_bytes":007}}`,
	head + `"gpu":{"uuid":"a","used_bytes":-0}}`,
	head + `"gpu":{"uuid":"a","used_bytes":5.0}}`,
	head + `"gpu":{"uuid":"a","used_bytes":5e3}}`,
	head + `"gpu":{"uuid":"a","used_bytes":9999999999999999999}}`,
	head + `"gpu":{"uuid":"a","used_bytes":18446744073709551615}}`,
	head + `"gpu":{"uuid":"a","used_bytes":18446744073709551616}}`,
	head + `"gpu":{"uuid":"a","index":-1}}`,
	head + `"gpu":{"uuid":"a","index":9223372036854775807}}`,
	head + `"gpu":{"uuid":"a","power_watts":-0}}`,
	head + `"gpu":{"uuid":"a","power_watts":-0.5e-3}}`,
	head + `"gpu":{"uuid":"a","power_watts":1E5}}`,
	head + `"gpu":{"uuid":"a","power_watts":1e400}}`,
	head + `"gpu":{"uuid":"a","power_watts":1e-400}}`,
	head + `"gpu":{"uuid":"a","power_watts":01.5}}`,
	head + `"gpu":{"uuid":"a","power_watts":1.}}`,
	head + `"gpu":{"uuid":"a","power_watts":.5}}`,
	head + `"gpu":{"uuid":"a","power_watts":1e}}`,
	head + `"gpu":{"uuid":"a","power_watts":+1}}`,
	head + `"gpu":{"uuid":"a","power_watts":NaN}}`,
	head + `"gpu":{"uuid":"a","power_watts":0x10}}`,
	head + `"gpu":{"uuid":"a","power_watts":1_0}}`,
	head + `"gpu":{"uuid":"a","power_watts":"1"}}`,
	head + `"gpu":{"uuid":"a","power_watts":}}`,
	head + `"gpu":{"uuid":"a","processes_complete":truex}}`,
	head + `"gpu":{"uuid":"a","processes_complete":1}}`,
	head + `"gpu":{"uuid":"a","processes_complete":`,
	head + `"gpu":{"uuid":"a",}}`,
	head + `"gpu":{"uuid":"a"},}`,
	head + `"gpu":{"uuid":"a" "index":1}}`,
	head + `"gpu":{"uuid" "a"}}`,
	head + `"gpu":{"uuid":"a"}`,
	head + `"gpu":{"uuid":"a"}}}`,
	head + `"gpu":{"uuid":"a"}} {`,
	head + `"gpu":{"uuid":"a","colour":"red"}}`,
	head + `"GPU":{"uuid":"a"}}`,
	head + `"fan":{"rpm":1}}`,
	head + `"other_body":{"name":"fan"}}`,
	head + `"mark":{"name":"x"}}`,
	head + `"process":{"fds":1}}`,
	head + `"worker":{"pid":7},"process":{"fds":1},"worker":{"pid":7}}`,
	head + `"worker":{"pid":0},"process":{"fds":1}}`,
	head + `"worker":{"pid":7,"pid":7},"process":{"fds":1}}`,
	head + `"worker":{"pid":7,"gpu_uuids":[]},"process":{"fds":1}}`,
	head + `"worker":{"pid":7,"gpu_uuids":["a",]},"process":{"fds":1}}`,
	head + `"worker":{"pid":7,"gpu_uuids":["a","b"],"gpu_uuids":["c"]},"process":{"fds":1}}`,
	head + `"worker":{"pid":7,"gpu_uuids":[1]},"process":{"fds":1}}`,
	head + `"worker":{"pid":7,"unit":"}"},"process":{"fds":1}}`,
	head + `"worker":{"pid":7,"unit":"{\"}"},"process":{"fds":1}}`,
	head + `"worker":{"pid":7,"start_time":"2026-11-01T00:00:00+01:00"},"process":{"fds":1}}`,
	head + `"worker":{"pid":7,"start_time":""},"process":{"fds":1}}`,
	head + `"worker":null,"gpu":{"uuid":"a"}}`,
	`{"gpu":{"uuid":"a"},"time":"2026-11-01T00:00:00Z"}`,
	`{"gpu":{"uuid":"a"},"host":{"cluster":"lab","name":"a"}}`,
	`{"time":"2026-11-01T00:00:00Z","host":{"cluster":"lab","name":"a.b"},"gpu":{"uuid":"a"}}`,
	`{"time":"2026-11-01T00:00:00Z","host":{"cluster":"lab"},"gpu":{"uuid":"a"}}`,
	`{"time":"2026-11-01T00:00:00Z","host":null,"gpu":{"uuid":"a"}}`,
	`{"time":"2026-11-01T00:00:00Z","host":"a","gpu":{"uuid":"a"}}`,
	`{"time":1793491260,"gpu":{"uuid":"a"}}`,
	`{"time":"1970-01-01T00:00:00Z","gpu":{"uuid":"a"}}`,
	`{"time":"0000-01-01T00:00:00Z","gpu":{"uuid":"a"}}`,
	`{"time":"2026-02-29T00:00:00Z","gpu":{"uuid":"a"}}`,
	`{"time":"2026-11-01T24:00:00Z","gpu":{"uuid":"a"}}`,
	`{"time":"2026-11-01T00:00:60Z","gpu":{"uuid":"a"}}`,
	`{"time":"2026-11-01T00:00:00","gpu":{"uuid":"a"}}`,
	`{"time":"2026-11-01T00:00:00.Z","gpu":{"uuid":"a"}}`,
	`{"time":"2026-11-01T00:00:00,5Z","gpu":{"uuid":"a"}}`,
	`{"time":"2026-11-01T00:00:00.1234567899Z","gpu":{"uuid":"a"}}`,
	`{"time":"2026-11-01t00:00:00z","gpu":{"uuid":"a"}}`,
	`{"time":"2026-11-01T00:00:00.5+01:00","gpu":{"uuid":"a"}}`,
	`{}`, `[]`, `null`, `"`, `{"`, `{"time"`, `{"time":`, `{"time":"`, `{,}`, ``, `  `,
}

func TestOddLinesAreTheStrictReaders(t *testing.T) {
	good := []byte(head + `"worker":{"pid":7,"unit":"u"},"process":{"fds":1}}`)
	knowing := newDecoder()
	for _, text := range oddLines {
		for _, d := range []*decoder{new(decoder), newDecoder(), knowing} {
			agree(t, d, []byte(text))
			agree(t, d, []byte(text)) // with what is remembered of the first time
			if !agree(t, d, good) {
				t.Fatalf("after %s a good line went to the strict reader", text)
			}
		}
	}
}

func TestNullAndNamelessAreNoEvents(t *testing.T) {
	if _, _, err := UnmarshalEvent([]byte(`{"time":"2026-01-01T00:00:00Z","":{"x":1}}`)); err == nil || err.Error() != `field "": a body needs a name` {
		t.Errorf("a body without a name: %v", err)
	}
	if _, _, err := UnmarshalEvent([]byte("null")); err == nil || err.Error() != "cannot take a JSON null" {
		t.Errorf("null gave %v", err)
	}
	batch := `{"host":{"cluster":"lab","name":"a"},"source":"s","lane":"samples","events":[null]}`
	if _, _, err := DecodeBatch("application/json", []byte(batch)); err == nil || err.Error() != "event 0: cannot take a JSON null" {
		t.Errorf("a null in a batch gave %v", err)
	}
}

func TestTimesByHand(t *testing.T) {
	for _, test := range []struct { // date -u -d TIME +%s.%N
		text    string
		seconds int64
		nanos   int32
	}{
		{"2026-11-01T00:01:00.476Z", 1793491260, 476_000_000},
		{"2024-02-29T23:59:59.999999999Z", 1709251199, 999_999_999},
		{"2000-03-01T00:00:00Z", 951868800, 0},
		{"9999-12-31T23:59:59.000000001Z", 253402300799, 1},
	} {
		var today day
		for range 2 { // the second finds its day known
			seconds, nanos, ok := today.parse([]byte(test.text))
			if !ok || seconds != test.seconds || nanos != test.nanos {
				t.Errorf("%s is %d.%09d (%v), want %d.%09d", test.text, seconds, nanos, ok, test.seconds, test.nanos)
			}
		}
	}
}

func TestNumbersAreTheNearestDoubles(t *testing.T) {
	for _, text := range []string{"0", "0.1", "118.009", "4.35", "0.000123", "0.30000000000000004", "123456789012345", "1234567890.12345", "12345678901234.5",
		"999999999999999", "0.999999999999999", "9007199254740993", "5e-05", "1.7976931348623157e308", "2.2250738585072011e-308", "-17.25", "8.41e21"} {
		want, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		got, at := real([]byte(text), 0)
		if at != len(text) || math.Float64bits(got) != math.Float64bits(want) {
			t.Errorf("%s is %v (%d bytes), want %v", text, got, at, want)
		}
	}
}

func TestEventsShareWhoTheyAreAbout(t *testing.T) {
	one := head + `"worker":{"pid":7,"unit":"u"},"process":{"fds":1}}` + "\n"
	two := head + `"worker":{"pid":8,"unit":"u"},"process":{"fds":2}}` + "\n"
	reader, err := NewReader(strings.NewReader(one+two+one), "r")
	if err != nil {
		t.Fatal(err)
	}
	var events [3]*Event
	for i := range events {
		if events[i], err = reader.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if events[0].Host != events[1].Host || events[0].Worker != events[2].Worker {
		t.Error("the same host or worker stands in memory twice")
	}
	if events[1].Worker.Pid != 8 || *events[1].Process.Fds != 2 || *events[2].Process.Fds != 1 {
		t.Errorf("events are %v", events)
	}
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	d := newDecoder()
	for i := range 2*maxKnown + 10 {
		text := fmt.Sprintf(`{"time":"2026-11-01T00:00:00Z","host":{"cluster":"lab","name":"h%d"},"worker":{"pid":%d,"unit":"u%[1]d"},"process":{"fds":1}}`, i, i+1)
		e := d.scan([]byte(text))
		if e == nil || e.Worker.Pid != int64(i+1) || e.Host.Name != "h"+strconv.Itoa(i) || e.Worker.Unit != "u"+strconv.Itoa(i) {
			t.Fatalf("%s was read as %v", text, e)
		}
		if len(d.hosts) > maxKnown || len(d.workers) > maxKnown || len(d.words) > maxKnown {
			t.Fatalf("after %d lines %d hosts, %d workers, %d words are kept", i, len(d.hosts), len(d.workers), len(d.words))
		}
	}
	long := strings.Repeat("x", maxIdentity)
	if !agree(t, d, []byte(head+`"worker":{"pid":7,"unit":"`+long+`"},"process":{"fds":1}}`)) {
		t.Error("a long unit went to the strict reader")
	}
	for text := range d.workers {
		if len(text) > maxIdentity {
			t.Error("a long worker is kept")
		}
	}
}

// TestDamagedLinesAreReadAlike replaces pieces of recorded lines by pieces of JSON, which a fuzzer of bytes seldom hits on.
func TestDamagedLinesAreReadAlike(t *testing.T) {
	lines := bytes.SplitN(recorded(t), []byte("\n"), 12)[:11]
	pieces := []string{"", " ", ",", ":", "{", "}", "[", "]", `"`, `\`, "0", "-", ".", "e", "5", "null", "true", "false", `""`, `"time":`, `"pid":7,`, `"uuid":"x",`,
		`"used_bytes":1,`, `"host":{},`, `"worker":{"pid":1},`, "1.5e3", "12345678901234567890", "\x01", "\xc3", "é", `{"a":1}`}
	random := rand.New(rand.NewPCG(4, 2))
	d := newDecoder()
	for range damages {
		line := bytes.Clone(lines[random.IntN(len(lines))])
		for range 1 + random.IntN(2) {
			from := random.IntN(len(line))
			to := min(len(line), from+random.IntN(6))
			line = slices.Replace(line, from, to, []byte(pieces[random.IntN(len(pieces))])...)
		}
		agree(t, d, line)
	}
}

const damages = 5000

// FuzzScan reads two lines and the first one again: what is remembered of a line must not change what the next one is.
func FuzzScan(f *testing.F) {
	lines := bytes.SplitN(recorded(f), []byte("\n"), 7)
	for i := range 6 {
		f.Add(lines[i], lines[(i+1)%6])
	}
	for i, text := range oddLines {
		f.Add([]byte(text), lines[i%6])
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		d := newDecoder()
		agree(t, d, first)
		agree(t, d, second)
		agree(t, d, first)
	})
}
