package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rogpeppe/go-internal/testscript"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// natsServer is a NATS server as a process of its own: nats-server -c FILE.
func natsServer() {
	o, err := server.ProcessConfigFile(os.Args[len(os.Args)-1])
	if err == nil {
		o.NoLog = true
		var s *server.Server
		if s, err = server.NewServer(o); err == nil {
			s.Start()
			s.WaitForShutdown()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// natsVerb starts a NATS server with JetStream, which ends with the story. It takes a configuration, or none.
func natsVerb(ts *testscript.TestScript, _ bool, args []string) {
	o := &server.Options{}
	if len(args) > 0 {
		for _, name := range []string{"ADMIN_PASSWORD", "RELAY_PASSWORD", "WEB_PASSWORD"} {
			ts.Check(os.Setenv(name, strings.ToLower(name)))
		}
		var err error
		o, err = server.ProcessConfigFile(ts.MkAbs(args[0]))
		ts.Check(err)
	}
	o.ServerName, o.Host, o.Port, o.NoSigs, o.NoLog, o.JetStream = "nats-1", "127.0.0.1", -1, true, true, true
	o.StoreDir = filepath.Join(ts.MkAbs("."), "jetstream")
	s, err := server.NewServer(o)
	ts.Check(err)
	s.Start()
	in(ts).ends = append(in(ts).ends, func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		ts.Check(errors.New("the NATS server takes no connections"))
	}
	ts.Setenv("NATS", s.ClientURL())
}

// The script of examples/fleet does what it says: each change of three VMs gives one message, although a relay is
// killed.
func TestFleetDemoShowsOneMessageForEachChange(t *testing.T) {
	systemtest.LeftToGate(t)
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("the script is one for sh")
	}
	c := exec.Command("sh", filepath.Join("..", "..", "examples", "fleet", "demo.sh"))
	c.Env = append(os.Environ(), "HOME="+t.TempDir(), "TMPDIR="+t.TempDir(), fmt.Sprint("PORTS=", 10000+os.Getpid()%900*10))
	out, err := c.CombinedOutput()
	const want = "People got 4 messages about 4 changes, from two relays."
	if err != nil || !strings.Contains(string(out), want) {
		t.Errorf("%v, want the last line to say %q:\n%s", err, want, out)
	}
}

// A fleetServer is a NATS server with the settings of examples/fleet/nats.conf, and a stream.
type fleetServer struct {
	*testing.T
	*server.Server
	admin jetstream.JetStream
}

func startFleetServer(t *testing.T) *fleetServer {
	t.Helper()
	for _, name := range []string{"ADMIN_PASSWORD", "RELAY_PASSWORD", "WEB_PASSWORD"} {
		t.Setenv(name, strings.ToLower(name))
	}
	o, err := server.ProcessConfigFile(filepath.Join("..", "..", "examples", "fleet", "nats.conf"))
	if err != nil {
		t.Fatal(err)
	}
	o.Host, o.Port, o.NoSigs, o.JetStream, o.StoreDir = "127.0.0.1", -1, true, true, t.TempDir()
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		t.Fatal("the NATS server takes no connections")
	}
	f := &fleetServer{T: t, Server: s}
	conn := f.connect("admin")
	if f.admin, err = jetstream.New(conn); err != nil {
		t.Fatal(err)
	}
	plan, err := relay.NewPlan(t.Context(), conn, "", "FOREWARN", relay.Retention{})
	if err == nil {
		err = plan.Do(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fleetServer) connect(user string) *nats.Conn {
	f.Helper()
	conn, err := nats.Connect(f.ClientURL(), nats.UserInfo(user, user+"_password"), nats.CustomInboxPrefix("_INBOX_"+user),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(conn.Close)
	return conn
}

// holds returns what the streams hold: how many messages on each subject.
func (f *fleetServer) holds() map[string]uint64 {
	f.Helper()
	all := map[string]uint64{}
	for _, name := range []string{"FOREWARN", "FOREWARN_heartbeats", "FOREWARN_dead", "KV_FOREWARN_records", "KV_FOREWARN_leases"} {
		stream, err := f.admin.Stream(f.Context(), name)
		if err != nil {
			f.Fatal(err)
		}
		info, err := stream.Info(f.Context(), jetstream.WithSubjectFilter(">"))
		if err != nil {
			f.Fatal(err)
		}
		maps.Copy(all, info.State.Subjects)
	}
	return all
}

// ofWeb begins what a subject of the set web, to which the user web belongs, names.
const ofWeb = "11111111-2222-3333-4444-555555555555.rg-prod.web."

// What SECURITY.md says that whoever has the credentials of a set can do and can't, with the rights of
// examples/fleet/nats.conf.
func TestTheCredentialsOfASetHarmNoOther(t *testing.T) {
	f := startFleetServer(t)
	for _, subject := range []string{
		"forewarn.events." + ofWeb + "Reboot.scheduled.1", "forewarn.bridge." + ofWeb + "web_0.started.1",
		"forewarn.heartbeat." + ofWeb + "web_0",
	} {
		answer, err := f.connect("web").Request(subject, nil, patience)
		if err != nil || !strings.Contains(string(answer.Data), `"seq":`) {
			t.Errorf("it can't publish on %s, which is its own: %v", subject, err)
		}
	}
	const ofDB, elsewhere = "11111111-2222-3333-4444-555555555555.rg-prod.db.", "99999999-2222-3333-4444-555555555555.rg-prod.web."
	if _, err := f.admin.Publish(t.Context(), "forewarn.events."+ofDB+"Reboot.started.2", nil); err != nil {
		t.Fatal(err)
	}
	before := f.holds()
	asks := []string{
		"forewarn.events." + ofDB + "x", "forewarn.bridge." + ofDB + "db_0.x", "forewarn.heartbeat." + ofDB + "db_0",
		"forewarn.events." + elsewhere + "x", "forewarn.heartbeat." + elsewhere + "web_0",
		"forewarn.events.11111111-2222-3333-4444-555555555555.other.web.x",
		"forewarn.bridge.relay.x", "forewarn.relay.ops.x", "$KV.FOREWARN_leases.lease.ops", "$KV.FOREWARN_records.mutes",
		"forewarn_dead.FOREWARN.ops.1", "$SYS.REQ.SERVER.PING", "$SYS.ACCOUNT.FLEET.x",
	}
	for _, api := range []string{"$JS.API.", "$JS.fleet.API.", "$JS.FLEET.API."} {
		for _, call := range []string{
			"STREAM.INFO.FOREWARN", "STREAM.LIST", "STREAM.PURGE.FOREWARN", "STREAM.DELETE.FOREWARN", "STREAM.UPDATE.FOREWARN",
			"STREAM.CREATE.MINE", "STREAM.MSG.GET.FOREWARN", "STREAM.MSG.DELETE.FOREWARN", "CONSUMER.CREATE.FOREWARN",
			"CONSUMER.CREATE.FOREWARN.mine.forewarn.>", "CONSUMER.LIST.FOREWARN", "DIRECT.GET.FOREWARN",
			"DIRECT.GET.FOREWARN.forewarn.events." + ofDB + "Reboot.started.2", "STREAM.PEER.REMOVE.FOREWARN", "INFO",
		} {
			asks = append(asks, api+call)
		}
	}
	for _, subject := range asks {
		conn := f.connect("web")
		if err := errors.Join(conn.Publish(subject, nil), conn.Flush()); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(conn.LastError(), nats.ErrPermissionViolation) {
			t.Errorf("it may publish on %s", subject)
		}
	}
	for _, subject := range []string{">", "forewarn.>", "forewarn.events." + ofDB + ">", "_INBOX_relay.>", "_INBOX.>", "$KV.>", "$JS.>"} {
		conn := f.connect("web")
		if _, err := conn.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		if err := conn.Flush(); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(conn.LastError(), nats.ErrPermissionViolation) {
			t.Errorf("it may hear %s", subject)
		}
	}
	conn := f.connect("web")
	own := "forewarn.events." + ofWeb + "Reboot.scheduled.1"
	for _, answerTo := range []string{ // to which a server sends its acknowledgement
		"forewarn.events." + ofDB + "x", "forewarn.heartbeat." + ofDB + "db_0", "forewarn.bridge.relay.x", "forewarn.relay.ops.x",
		"$KV.FOREWARN_leases.lease.ops", "$KV.FOREWARN_records.sink.ops", "forewarn_dead.FOREWARN.ops.1",
		"$JS.API.STREAM.PURGE.FOREWARN", "$JS.fleet.API.STREAM.DELETE.FOREWARN",
	} {
		if err := conn.PublishRequest(own, answerTo, nil); err != nil {
			t.Fatal(err)
		}
		before[own]++
	}
	for _, header := range []string{"Nats-Rollup:all", "Nats-Rollup:sub", "Nats-TTL:1s", "Nats-Schedule:@at 2009-11-10T23:00:00Z"} {
		name, value, _ := strings.Cut(header, ":")
		msg := &nats.Msg{Subject: own, Header: nats.Header{name: {value}}}
		answer, err := conn.RequestMsg(msg, patience)
		if err != nil || !strings.Contains(string(answer.Data), `"error"`) {
			t.Errorf("with %s it is stored: %s, %v", header, answer.Data, err)
		}
	}
	if after := f.holds(); !maps.Equal(after, before) {
		t.Errorf("the streams hold %v, want %v", after, before)
	}
}

// toldIDs is a sink that counts the CloudEvents that it gets, by their ids.
type toldIDs struct {
	mu  sync.Mutex
	ids map[string]int
}

func (s *toldIDs) Deliver(_ context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range batch {
		s.ids[d.Event.ID()]++
	}
	return delivery.Answer{}, nil
}

func (s *toldIDs) count(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[id]
}

// Nor does whoever publishes without end with them: an event of another set is told, once, and its heartbeat and its dead
// letter stay.
func TestAFloodWithTheCredentialsOfASetHarmsNoOther(t *testing.T) {
	f := startFleetServer(t)
	const ofDB = "11111111-2222-3333-4444-555555555555.rg-prod.db."
	publish := func(js jetstream.JetStream, subject string, body []byte) {
		t.Helper()
		msg := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{"Content-Type": {"application/cloudevents+json"}}}
		if _, err := js.PublishMsg(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
	}
	event := func(set string, n int) (id string, body []byte) {
		t.Helper()
		e, err := imds.UnmarshalEvent(fmt.Appendf(nil, `{"EventId":"00000000-0000-4000-8000-%012d","EventType":"Reboot",`+
			`"ResourceType":"VirtualMachine","Resources":[%q],"EventStatus":"Scheduled","NotBefore":%q,"EventSource":"Platform"}`, n,
			set+"_0", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)))
		if err != nil {
			t.Fatal(err)
		}
		ce, err := cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: e}, cloudevent.Circumstances{Time: time.Now(),
			Observer: imds.Observer{Name: set + "_0", VMID: set, SubscriptionID: strings.Split(ofDB, ".")[0], ResourceGroup: "rg-prod",
				ScaleSet: set}})
		if err != nil {
			t.Fatal(err)
		}
		body, err = ce.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		return ce.ID(), body
	}
	publish(f.admin, "forewarn.heartbeat."+ofDB+"db_0", nil)

	sink := &toldIDs{ids: map[string]int{}}
	r := relay.New(relay.Options{Stream: "FOREWARN", Name: "relay-1", MaxUnsettled: 100,
		Routes: []bridge.Route{{Name: "ops", Sink: sink, Filter: bridge.Filter{Only: bridge.Only{VMs: "all"}},
			Terms: bridge.Terms{Terms: delivery.Terms{Timeout: patience, Late: delivery.LateSend, Batch: 1}}}},
		Connect: func(context.Context) (*nats.Conn, error) {
			return nats.Connect(f.ClientURL(), nats.UserInfo("relay", "relay_password"), nats.CustomInboxPrefix("_INBOX_relay"))
		}})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	defer running.Wait()
	defer stop()
	letters := func() (all []string) {
		list, _, err := r.List(t.Context(), relay.Selection{State: "dead"}, 1000)
		if err != nil {
			return nil // it isn't connected yet
		}
		for _, e := range list {
			all = append(all, e.Key)
		}
		return all
	}
	wait := func(what string, so func() bool) {
		t.Helper()
		for until := time.Now().Add(patience); !so(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("it takes too long: %s", what)
			}
		}
	}
	wait("the sink is served", func() bool { s := r.Status(); return s.Ready })
	publish(f.admin, "forewarn.events."+ofDB+"junk", []byte("junk"))
	wait("the dead letter of db", func() bool { return len(letters()) == 1 })
	ofOther := letters()[0]

	web, err := jetstream.NewWithDomain(f.connect("web"), "fleet")
	if err != nil {
		t.Fatal(err)
	}
	for n := range 300 {
		publish(web, fmt.Sprint("forewarn.events.", ofWeb, "junk.", n), []byte("junk"))
		publish(web, fmt.Sprint("forewarn.heartbeat.", ofWeb, n), []byte("junk"))
		_, body := event("web", 1000+n)
		publish(web, fmt.Sprint("forewarn.events.", ofWeb, "Reboot.scheduled.", n), body)
	}
	id, body := event("db", 1)
	publish(f.admin, "forewarn.events."+ofDB+"Reboot.scheduled."+id, body)
	wait("the event of db", func() bool { return sink.count(id) > 0 })
	if n := sink.count(id); n != 1 {
		t.Errorf("the event of db is told %d times", n)
	}
	if all := letters(); len(all) > 251 || !slices.Contains(all, ofOther) {
		t.Errorf("%d dead letters, want at most 250 of web, and %s", len(all), ofOther)
	}
	if f.holds()["forewarn.heartbeat."+ofDB+"db_0"] != 1 {
		t.Error("the heartbeat of db is gone")
	}
}
