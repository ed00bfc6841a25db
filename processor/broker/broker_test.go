package broker

import (
	"context"
	"errors"
	"hash/fnv"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
)

// begin starts a server in dir and hands out its JetStream.
func begin(t *testing.T, o Options) (*Server, jetstream.JetStream) {
	t.Helper()
	if o.MaxBytes == 0 {
		o.MaxBytes = 64 << 20
	}
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := s.Connect()
	if err != nil {
		s.Close()
		t.Fatal(err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); s.Close() })
	if err := Ensure(t.Context(), js, s.Limits()); err != nil {
		t.Fatal(err)
	}
	return s, js
}

// partitionOf is the server's documented hash: FNV-1a of the chosen tokens, joined.
func partitionOf(cluster, host string) string {
	h := fnv.New32a()
	h.Write([]byte(cluster + host))
	return strconv.Itoa(int(h.Sum32() % event.PartitionCount))
}

func TestPublishedSubjectIsStoredUnderItsPartition(t *testing.T) {
	_, js := begin(t, Options{StoreDir: t.TempDir()})
	for _, host := range []string{"h1", "h2", "gpu-node-17"} {
		ack, err := js.Publish(t.Context(), event.SubjectFor("lab", host, "process"), []byte(host))
		if err != nil {
			t.Fatal(err)
		}
		stream, err := js.Stream(t.Context(), event.StreamEvents)
		if err != nil {
			t.Fatal(err)
		}
		stored, err := stream.GetMsg(t.Context(), ack.Sequence)
		if err != nil {
			t.Fatal(err)
		}
		want := "lowtide.p." + partitionOf("lab", host) + ".lab." + host + ".process"
		if stored.Subject != want || string(stored.Data) != host {
			t.Errorf("stored %q under %s, want %s", stored.Data, stored.Subject, want)
		}
	}
}

func TestDuplicateMessageIdIsDroppedAndAcknowledged(t *testing.T) {
	_, js := begin(t, Options{StoreDir: t.TempDir()})
	id := jetstream.WithMsgID(event.MessageID("h1", "p", event.LaneSamples, 1))
	first, err := js.Publish(t.Context(), event.SubjectFor("lab", "h1", "process"), []byte("x"), id)
	if err != nil {
		t.Fatal(err)
	}
	again, err := js.Publish(t.Context(), event.SubjectFor("lab", "h1", "process"), []byte("x"), id)
	if err != nil {
		t.Fatal(err)
	}
	if first.Duplicate || !again.Duplicate || again.Sequence != first.Sequence {
		t.Errorf("first %+v, again %+v", first, again)
	}
}

func TestRestartKeepsMessagesAndPositions(t *testing.T) {
	dir := t.TempDir()
	partition, _ := strconv.Atoi(partitionOf("lab", "h1"))
	read := func(consumer jetstream.Consumer, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		batch, err := consumer.Fetch(1, jetstream.FetchMaxWait(10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		msg, ok := <-batch.Messages()
		if !ok {
			t.Fatalf("no message: %v", batch.Error())
		}
		if err := msg.DoubleAck(t.Context()); err != nil {
			t.Fatal(err)
		}
		return string(msg.Data())
	}
	judge := func(js jetstream.JetStream) string {
		t.Helper()
		consumer, err := JudgeConsumer(t.Context(), js, partition)
		return read(consumer, err)
	}
	first, js := begin(t, Options{StoreDir: dir})
	for _, text := range []string{"one", "two"} {
		if _, err := js.Publish(t.Context(), event.SubjectFor("lab", "h1", "process"), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if got := judge(js); got != "one" {
		t.Fatalf("judge got %q, want one", got)
	}
	js.Conn().Close()
	first.Close()

	_, js = begin(t, Options{StoreDir: dir})
	if got := judge(js); got != "two" {
		t.Errorf("after a restart judge got %q, want two", got)
	}
	consumer, err := StoreConsumer(t.Context(), js)
	if got := read(consumer, err); got != "one" {
		t.Errorf("store got %q, want one: it has its own position", got)
	}
}

func TestStreamsAreBoundedAndOnDisk(t *testing.T) {
	_, js := begin(t, Options{StoreDir: t.TempDir(), MaxBytes: 32 << 20})
	stream, err := js.Stream(t.Context(), event.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	c := stream.CachedInfo().Config
	if c.MaxBytes != 32<<20 || c.MaxAge != 24*time.Hour || c.Discard != jetstream.DiscardOld || c.Storage != jetstream.FileStorage || c.Compression != jetstream.S2Compression {
		t.Errorf("config %+v", c)
	}
	for _, bucket := range []string{
		"LOWTIDE_RULES", "LOWTIDE_SILENCES", "LOWTIDE_VERDICTS", "LOWTIDE_OUTBOX", "LOWTIDE_MEMBERS", "LOWTIDE_SEATS", "LOWTIDE_STATE", "LOWTIDE_BLOCKS", "LOWTIDE_PEERS",
	} {
		if _, err := js.KeyValue(t.Context(), bucket); err != nil {
			t.Errorf("bucket %s: %v", bucket, err)
		}
	}
	blobs, err := js.Stream(t.Context(), "OBJ_LOWTIDE_BLOBS")
	if err != nil {
		t.Fatal(err)
	}
	if c := blobs.CachedInfo().Config; c.MaxBytes != 64<<20 || c.MaxAge != 30*24*time.Hour || c.Storage != jetstream.FileStorage {
		t.Errorf("saved states: %+v", c)
	}
	verdicts, err := js.KeyValue(t.Context(), "LOWTIDE_VERDICTS")
	if err != nil {
		t.Fatal(err)
	}
	status, err := verdicts.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if config := status.Config(); status.TTL() != 2*time.Hour || status.History() != 1 || config.MaxBytes != 16<<20 || config.MaxValueSize != 16<<10 {
		t.Errorf("verdicts stand for %v with a history of %d, in %d bytes of at most %d each", status.TTL(), status.History(), config.MaxBytes, config.MaxValueSize)
	}
}

// A bucket of an older version had no end for its values; they get one when the server starts.
func TestVerdictsOfAnOlderVersionGetAnEnd(t *testing.T) {
	_, js := begin(t, Options{StoreDir: t.TempDir()})
	old := jetstream.KeyValueConfig{Bucket: BucketVerdicts, History: 1, Storage: jetstream.FileStorage, MaxBytes: 16 << 20}
	if _, err := js.CreateOrUpdateKeyValue(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(t.Context(), BucketVerdicts)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []time.Duration{0, 2 * time.Hour} {
		if status, err := kv.Status(t.Context()); err != nil || status.TTL() != want {
			t.Errorf("values stand for %v (%v), want %v", status.TTL(), err, want)
		}
		if err := Ensure(t.Context(), js, Limits{EventBytes: 64 << 20}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestServerListensOnlyWhereAsked(t *testing.T) {
	quiet, _ := begin(t, Options{StoreDir: t.TempDir()})
	if url := quiet.ClientURL(); url != "" {
		t.Errorf("without an address it listens on %s", url)
	}
	loud, _ := begin(t, Options{StoreDir: t.TempDir(), Listen: ":0", Token: "s3cret"})
	host, _, err := net.SplitHostPort(strings.TrimPrefix(loud.ClientURL(), "nats://"))
	if err != nil || host != "127.0.0.1" {
		t.Fatalf("listens on %q, %v", loud.ClientURL(), err)
	}
	if _, err := Dial(loud.ClientURL(), "test", nil); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("without a token: %v", err)
	}
	conn, err := Dial(loud.ClientURL(), "test", nil, nats.Token("s3cret"))
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestErrorsSayWhatToDo(t *testing.T) {
	busy := t.TempDir()
	begin(t, Options{StoreDir: busy})
	file := busy + "/lock"
	for _, c := range []struct {
		name, text, hint string
		fail             func() error
	}{
		{"second server on a folder", "another lowtide uses it", "--data", func() error { _, err := Start(t.Context(), Options{StoreDir: busy}); return err }},
		{"folder is a file", "not a directory", "", func() error { _, err := Start(t.Context(), Options{StoreDir: file + "/x"}); return err }},
		{"open to the network", "anybody in the network", "token", func() error {
			_, err := Start(t.Context(), Options{StoreDir: t.TempDir(), Listen: "0.0.0.0:0"})
			return err
		}},
		{"port is a word", `port "nats"`, "127.0.0.1:4222", func() error {
			_, err := Start(t.Context(), Options{StoreDir: t.TempDir(), Listen: "127.0.0.1:nats"})
			return err
		}},
		{"nobody there", "connect to nats://127.0.0.1:1", "lowtide up", func() error { _, err := Dial("nats://me:s3cret@127.0.0.1:1", "test", nil); return err }},
		{"disk full", "no space left on device", "free some space", func() error { return Explain("write", syscall.ENOSPC) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.fail()
			if err == nil || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "s3cret") {
				t.Fatalf("error %v, want one with %q", err, c.text)
			}
			var hinted interface{ Hint() string }
			if c.hint != "" && (!errors.As(err, &hinted) || !strings.Contains(hinted.Hint(), c.hint)) {
				t.Errorf("hint of %v does not name %q", err, c.hint)
			}
		})
	}
}

// A server that may not store what the streams want refuses them at once, and the error says so.
func TestStoreTooSmallForTheStreams(t *testing.T) {
	s, js := begin(t, Options{StoreDir: t.TempDir(), MaxBytes: 16 << 20})
	limits := s.Limits()
	limits.EventBytes = 1 << 40
	err := Ensure(t.Context(), js, limits)
	var hinted interface{ Hint() string }
	if err == nil || !errors.As(err, &hinted) || !strings.Contains(hinted.Hint(), "max_file_store") {
		t.Fatalf("got %v, want an error with the remedy", err)
	}
}

// A disk that fills up while running refuses the message instead of acknowledging what it lost, and Watch ends with the remedy.
func TestFullDiskRefusesAndSaysSo(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=96m"); err != nil {
		t.Skipf("SKIPPED: a full disk is tested with a small tmpfs, and this user may not mount one: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s, js := begin(t, Options{StoreDir: dir + "/nats", MaxBytes: 1 << 30, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	filler, err := os.Create(dir + "/filler")
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	for block := make([]byte, 64<<10); err == nil; {
		_, err = filler.Write(block)
	}
	noise := make([]byte, 64<<10)
	for i := range noise {
		noise[i] = byte(i * i >> 3)
	}
	refused := false
	for i := 0; i < 64 && !refused; i++ {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err := js.Publish(ctx, event.SubjectFor("lab", "h1", "process"), noise)
		cancel()
		refused = err != nil
		if refused {
			t.Logf("refused with: %v", Explain("publish", err))
		}
	}
	if !refused {
		t.Fatal("4 MiB were acknowledged on a disk without room")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err = s.Watch(ctx)
	var hinted interface{ Hint() string }
	if !errors.Is(err, syscall.ENOSPC) || !errors.As(err, &hinted) || !strings.Contains(hinted.Hint(), "free some space") {
		t.Errorf("watch ended with %v, want a full disk and its remedy", err)
	}
}
