package sink

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
)

// serverBinary is what Debian's package clickhouse-server installs. Its version, 18.16.1, is of 2018: it knows neither this schema's types nor
// its settings, so that only the transport is tested with it.
const (
	serverBinary   = "/usr/sbin/clickhouse-server"
	serverPassword = "the-password-of-the-test"
)

// startServer starts a server on loopback, in a folder of the test, and returns HOST:PORT of its native interface. It ends with the test.
func startServer(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat(serverBinary); err != nil {
		t.Skip("SKIPPED: the native protocol was not tested against a ClickHouse server, because there is no " + serverBinary +
			"\nhint: apt-get install --no-install-recommends clickhouse-server")
	}
	for range 5 { // a port that was free may be taken a moment later
		folder := t.TempDir()
		native := writeServerConfig(t, folder)
		command := exec.Command(serverBinary, "--config-file="+filepath.Join(folder, "config.xml"))
		command.Dir = folder
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- command.Wait() }()
		if listens(native, ended) {
			t.Cleanup(func() {
				if err := command.Process.Kill(); err != nil {
					t.Errorf("end server: %v", err)
				}
				<-ended
			})
			return native
		}
	}
	t.Fatal("the server ended five times before it listened")
	return ""
}

// listens waits until somebody answers, or the program has ended.
func listens(address string, ended <-chan error) bool {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if conn, err := net.DialTimeout("tcp", address, time.Second); err == nil {
			conn.Close()
			return true
		}
		select {
		case <-ended:
			return false
		case <-tick.C:
		}
	}
}

func writeServerConfig(t *testing.T, folder string) (native string) {
	t.Helper()
	var ports [3]any
	for i := range ports {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = listener.Addr().(*net.TCPAddr).Port
		defer listener.Close()
	}
	config := fmt.Sprintf("<http_port>%d</http_port><tcp_port>%d</tcp_port><interserver_http_port>%d</interserver_http_port>", ports[:]...) + strings.ReplaceAll(
		`<logger><level>warning</level><log>FOLDER/log</log><errorlog>FOLDER/errors</errorlog></logger><listen_host>127.0.0.1</listen_host>
		<path>FOLDER/store/</path><tmp_path>FOLDER/tmp/</tmp_path><mark_cache_size>8388608</mark_cache_size><uncompressed_cache_size>8388608</uncompressed_cache_size>
		<users_config>FOLDER/users.xml</users_config><default_profile>default</default_profile><default_database>default</default_database>`, "FOLDER", folder)
	account := "<%[1]s><password>" + serverPassword + "</password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota></%[1]s>"
	users := "<profiles><default/></profiles><quotas><default/></quotas><users>" + fmt.Sprintf(account, "default") + fmt.Sprintf(account, "lowtide") + "</users>"
	for name, text := range map[string]string{"config.xml": config, "users.xml": users} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte("<yandex>"+text+"</yandex>"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprint("127.0.0.1:", ports[1])
}

// The native protocol carries blocks to a real server and back whole: every type that both know, null and not, the ends of the ranges, more rows than one
// packet has; and a refusal, a wrong password and a server that is gone are told apart. Nothing of the schema is tested here.
func TestNativeProtocolCarriesBlocks(t *testing.T) {
	addr := startServer(t)
	store, err := Open(t.Context(), Options{Protocol: ProtocolNative, Addr: addr, Password: serverPassword, Database: "default"})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.exec(t.Context(), `CREATE TABLE default.plain (day Date, at DateTime, name String, total UInt64, used Nullable(UInt64), change Nullable(Int64), ratio Nullable(Float64))
		ENGINE = MergeTree PARTITION BY toYYYYMM(day) ORDER BY (name, at)`); err != nil {
		t.Fatal(err)
	}
	const rows = 70_000
	batch, err := store.conn.PrepareBatch(t.Context(), "INSERT INTO default.plain (day, at, name, total, used, change, ratio)") // named, as everywhere
	if err != nil {
		t.Fatal(err)
	}
	defer batch.Close()
	used, change, ratio := uint64(math.MaxUint64), int64(math.MinInt64), 0.1
	for i := range rows {
		at := tick.Add(time.Duration(i) * time.Second)
		values := []any{at, at, fmt.Sprint("wörker ", i%7), uint64(i), &used, &change, &ratio}
		if i%2 == 1 {
			values[4], values[5], values[6] = (*uint64)(nil), (*int64)(nil), (*float64)(nil)
		}
		if err := batch.Append(values...); err != nil {
			t.Fatal(err)
		}
	}
	if err := batch.Send(); err != nil {
		t.Fatal(err)
	}
	var got [5]uint64
	if err := store.conn.QueryRow(t.Context(), "SELECT count(), sum(total), countIf(used = 18446744073709551615), countIf(change IS NULL), uniqExact(name) FROM default.plain").
		Scan(&got[0], &got[1], &got[2], &got[3], &got[4]); err != nil {
		t.Fatal(err)
	}
	if want := [5]uint64{rows, rows * (rows - 1) / 2, rows / 2, rows / 2, 7}; got != want {
		t.Errorf("the server has %v, want %v", got, want)
	}
	type line struct {
		at     time.Time
		name   string
		used   *uint64
		change *int64
		ratio  *float64
	}
	var lines []line
	if err := store.each(t.Context(), "SELECT at, name, used, change, ratio FROM default.plain WHERE total < 2 ORDER BY total", func(scan func(...any) error) error {
		var l line
		err := scan(&l.at, &l.name, &l.used, &l.change, &l.ratio)
		l.at = l.at.UTC()
		lines = append(lines, l)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if want := []line{{tick, "wörker 0", &used, &change, &ratio}, {tick.Add(time.Second), "wörker 1", nil, nil, nil}}; !reflect.DeepEqual(lines, want) {
		t.Errorf("came back %+v, want %+v", lines, want)
	}
	if err := store.explain("ask", store.exec(t.Context(), "SELECT nothing FROM default.nowhere")); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("a table that is not there: %v, want ErrRefused", err)
	}
	wrong, err := Open(t.Context(), Options{Protocol: ProtocolNative, Addr: addr, Password: "not-" + serverPassword})
	if err != nil {
		t.Fatal(err)
	}
	defer wrong.Close()
	var exception *clickhouse.Exception
	if err := wrong.exec(t.Context(), "SELECT 1"); !errors.As(err, &exception) || exception.Code != 193 { // WRONG_PASSWORD
		t.Errorf("a wrong password: %v, want code 193", err)
	}
	away, err := Open(t.Context(), Options{Protocol: ProtocolNative, Addr: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	if err := away.Migrate(t.Context()); !errors.Is(err, ErrAway) {
		t.Errorf("nobody there: %v, want ErrAway", err)
	}
}
