package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/systemtest"
)

// With examples/fleet/shards.conf and shard.yaml each shard has a stream and a relay of its own, and one relay tells people
// of the events of all: each change once, whichever VMs of whichever shard saw it. No shard has the messages of another.
func TestAFleetInShardsTellsEachChangeOnce(t *testing.T) {
	systemtest.LeftToGate(t)
	t.Parallel()
	dir := t.TempDir()
	conf := example(t, "fleet/shards.conf")
	for _, user := range []string{"all", "shard-a", "shard-b"} {
		conf = strings.ReplaceAll(conf, "$"+strings.ReplaceAll(strings.ToUpper(user), "-", "_")+"_PASSWORD", user+"_password")
		write(t, filepath.Join(dir, user+"-password"), user+"_password")
	}
	write(t, filepath.Join(dir, "hook-token"), "token")
	write(t, filepath.Join(dir, "shards.conf"), conf)
	o, err := server.ProcessConfigFile(filepath.Join(dir, "shards.conf"))
	if err != nil {
		t.Fatal(err)
	}
	o.Port, o.NoSigs, o.StoreDir = -1, true, filepath.Join(dir, "nats")
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		t.Fatal("the NATS server takes no connections")
	}
	await := func(what string, so func() bool) {
		t.Helper()
		for deadline := time.Now().Add(patience); !so(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("not yet: " + what)
			}
		}
	}
	start := func(name, text string) {
		t.Helper()
		text = strings.NewReplacer("tls://nats-1.example.com:4222", s.ClientURL(), "/etc/forewarn", dir).Replace(text)
		settings := filepath.Join(dir, name+".yaml")
		write(t, settings, fmt.Sprintf("%s\nlisten: \"\"\ncontrol: %q\n", text, filepath.Join(dir, name+".sock")))
		fw := forewarn(t, "relay", "--provision", "--from", "1h", "--config", settings) // it may begin after the publishers
		fw.Stderr = t.Output()
		if err := fw.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = fw.Process.Kill(); _ = fw.Wait() })
	}
	heard := filepath.Join(dir, "heard.jsonl")
	start("all", fmt.Sprintf("nats: {url: %q, username: all, password: all_password}\nsinks: [{name: ops, file: {path: %q}}]",
		s.ClientURL(), heard))
	shard := example(t, "fleet/shard.yaml")
	start("shard-a", shard)
	start("shard-b", strings.ReplaceAll(shard, "shard-a", "shard-b"))

	var want []string
	for n, user := range []string{"shard-a", "shard-b"} {
		conn, err := nats.Connect(s.ClientURL(), nats.UserInfo(user, user+"_password"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		for _, kind := range []imds.ChangeKind{imds.Scheduled, imds.Vanished} {
			for vm := range 3 {
				ce, err := cloudevent.Wrap(imds.Change{Kind: kind, Event: imds.Event{
					ID: fmt.Sprintf("00000000-0000-4000-8000-%012d", n), Type: "Reboot", Status: imds.StatusScheduled,
					Resources: []string{"web_0"}, NotBefore: time.Now().Add(time.Hour),
				}}, cloudevent.Circumstances{Time: time.Now(), Observer: imds.Observer{Name: fmt.Sprint("web_", vm), VMID: fmt.Sprint(vm),
					SubscriptionID: user, ResourceGroup: "rg", ScaleSet: "web"}})
				if err != nil {
					t.Fatal(err)
				}
				if vm == 0 {
					want = append(want, ce.ID())
				}
				await("the stream of "+user+" takes a CloudEvent", func() bool { return takes(conn, ce) })
			}
		}
	}
	await("all is told", func() bool {
		text, _ := os.ReadFile(heard)
		return strings.Count(string(text), "\n") >= len(want)
	})
	time.Sleep(time.Second) // in which one could be told twice
	text, _ := os.ReadFile(heard)
	for _, id := range want {
		if n := strings.Count(string(text), `"id":"`+id+`"`); n != 1 {
			t.Errorf("%s is told %d times, want once:\n%s", id, n, text)
		}
	}
}

// takes reports whether a stream takes a CloudEvent that is published on its own subject.
func takes(conn *nats.Conn, ce event.Event) bool {
	body, err := ce.MarshalJSON()
	if err != nil {
		return false
	}
	msg := nats.NewMsg("forewarn.events." + cloudevent.PlaceOf(ce).String() + ".reboot.x." + ce.ID())
	msg.Header.Set("Content-Type", "application/cloudevents+json")
	msg.Data = body
	answer, err := conn.RequestMsg(msg, time.Second)
	return err == nil && strings.Contains(string(answer.Data), `"seq":`)
}
