package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// A relay that stands still, as when its VM is frozen, and goes on after another one took its sink, tells nothing: not
// even what reached it meanwhile.
func TestAFrozenRelayTellsNothingWhenItGoesOn(t *testing.T) {
	systemtest.LeftToGate(t)
	t.Parallel()
	s, err := server.NewServer(&server.Options{
		ServerName: "nats-1", Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		t.Fatal("the NATS server takes no connections")
	}
	conn, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	plan, err := relay.NewPlan(t.Context(), conn, "", "FOREWARN", relay.Retention{})
	if err == nil {
		err = plan.Do(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	start := func(name string) (process *os.Process, told func() int) {
		settings, audit := filepath.Join(dir, name+".yaml"), filepath.Join(dir, name+".jsonl")
		text := fmt.Sprintf("{nats: {url: %q, stream: FOREWARN, name: %s}, control: %q, sinks: [{name: audit, file: {path: %q}}]}",
			s.ClientURL(), name, filepath.Join(dir, name+".sock"), audit)
		if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		fw := forewarn(t, "relay", "--config", settings)
		fw.Stderr = t.Output()
		if err := fw.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = fw.Process.Signal(syscall.SIGCONT)
			_ = fw.Process.Kill()
			_ = fw.Wait()
		})
		return fw.Process, func() int {
			text, _ := os.ReadFile(audit)
			return strings.Count(string(text), "\n")
		}
	}
	publish := func(n int) {
		ce, err := cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: imds.Event{
			ID: fmt.Sprintf("00000000-0000-4000-8000-%012d", n), Type: "Reboot", Status: imds.StatusScheduled,
			Resources: []string{"vm-0"}, NotBefore: time.Now().Add(time.Hour),
		}}, cloudevent.Circumstances{Observer: imds.Observer{Name: "vm-0", ResourceGroup: "web"}, Time: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		body, err := ce.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		msg := nats.NewMsg("forewarn.events." + cloudevent.PlaceOf(ce).String() + ".reboot.scheduled." + ce.ID())
		msg.Header.Set("Content-Type", "application/cloudevents+json")
		msg.Data = body
		if _, err := js.PublishMsg(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
	}
	await := func(what string, told func() int, want int) {
		t.Helper()
		for deadline := time.Now().Add(patience); told() < want; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d are told, want %d", what, told(), want)
			}
		}
	}
	frozen, byFirst := start("relay-1")
	publish(1)
	await("the first relay", byFirst, 1)
	settled := func() int { // what is told and not settled yet may be told again
		consumer, err := js.Consumer(t.Context(), "FOREWARN", "forewarn-audit")
		if err != nil {
			return 0
		}
		return int(consumer.CachedInfo().AckFloor.Stream)
	}
	await("the first relay, and settled", settled, 1)
	_, bySecond := start("relay-2")
	if err := frozen.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus // on a busy machine it is a while until every thread stands still
	if _, err := syscall.Wait4(frozen.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("the first relay is not frozen: %v, %v", status, err)
	}
	publish(2) // which the server sends to both
	await("the second relay, after the first one's lease", bySecond, 1)
	if err := frozen.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	publish(3)
	await("the second relay", bySecond, 2)
	time.Sleep(time.Second) // in which the first one would tell them
	if byFirst() != 1 || bySecond() != 2 {
		t.Errorf("the first relay told %d, the second %d; want 1 and 2", byFirst(), bySecond())
	}
}
