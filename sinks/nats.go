package sinks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
)

// natsSettings are the keys of nats. Secrets have four keys; see Value.
type natsSettings struct {
	NATSSettings `yaml:",inline"`
	Subject      string         `yaml:"subject" doc:"subject of a message; ends in the id (default: see help sinks nats)"`
	SubjectFile  Path           `yaml:"subject_file"`
	Once         *bool          `yaml:"once" default:"true" doc:"the stream takes each message once, however late a copy comes"`
	Copies       bool           `yaml:"copies" doc:"keep a message from every VM, not one copy of each change"`
	Core         bool           `yaml:"core" doc:"publish without JetStream: nothing is stored, only connected subscribers get it"`
	Domain       string         `yaml:"domain" doc:"JetStream domain (default: the account's)"`
	Mode         string         `yaml:"mode" default:"binary" oneof:"binary structured" doc:"form of the CloudEvent"`
	Provision    *natsProvision `yaml:"provision" doc:"create or update the stream; without this key it must exist"`
}

// natsTerms: machines and records want every change, however late.
var natsTerms = delivery.Terms{Timeout: 10 * time.Second, Late: delivery.LateSend, Batch: 1}

// natsSink publishes each CloudEvent to a subject of its own, as the NATS binding of CloudEvents says, and waits until
// a stream has stored it. Deliver and Connect are called from one goroutine at a time.
type natsSink struct {
	Host
	servers    *NATS
	subjects   natsSubjects
	once       bool
	copies     bool
	core       bool
	structured bool
	provision  *natsProvision
	api        string // prefix of JetStream's subjects

	session atomic.Pointer[natsSession] // Close may come from another goroutine
}

func openNATS(s natsSettings, h Host) (Opened, error) {
	once := s.Once != nil && *s.Once
	n := &natsSink{
		once: !s.Core && !s.Copies && (s.Once == nil || once), copies: s.Copies, core: s.Core,
		structured: s.Mode == "structured", api: jetstream.DefaultAPIPrefix, Host: h,
	}
	var wrong KeyErrors
	wrong.when(s.Copies && once, "copies", "keeps copies, and once refuses them; expected one or the other")
	const alone = "is about a stream, and core sends to none; expected one or the other"
	wrong.when(s.Core && once, "once", alone)
	wrong.when(s.Core && s.Copies, "copies", alone)
	wrong.when(s.Core && s.Provision != nil, "provision", alone)
	wrong.when(s.Core && s.Domain != "", "domain", alone)
	wrong.when(s.Domain != "" && cloudevent.Token(s.Domain) != s.Domain, "domain",
		"%q is not the name of a domain; expected A-Z, a-z, 0-9, _ and -", s.Domain)
	if s.Domain != "" {
		n.api = "$JS." + s.Domain + ".API."
	}
	var err error
	n.servers, err = NewNATS(s.NATSSettings, h)
	wrong.add(err)
	n.subjects, err = openSubjects(s.Subject, s.SubjectFile, n.once)
	wrong.add(err)
	if err == nil { // else what the stream has to take is not known
		n.provision, err = s.Provision.check(n.subjects)
		wrong.add(err)
	}
	if err := wrong.err(); err != nil {
		return Opened{}, err
	}
	opened := Opened{Sink: n, Secrets: n.servers.Secrets(), Keep: n.servers.Keep()}
	opened.note(n.core, "plain NATS keeps nothing: who is not connected when a CloudEvent is sent never hears of it")
	opened.note(!n.core && n.subjects.custom != "" && !strings.HasPrefix(n.subjects.custom, "forewarn."),
		"a relay can't check who publishes under a subject of your own; the default one says who speaks")
	opened.note(n.provision != nil && n.provision.Replicas <= 1, "a stream with one replica, as on a single server, can "+
		"lose what it acknowledged in the last two minutes when its server crashes, unless that has sync_interval: always")
	opened.Notes = append(opened.Notes, n.servers.Notes()...)
	return opened, nil
}

// Deliver publishes the CloudEvent of the batch, which holds one. If the stream has it already, it is accepted.
func (n *natsSink) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	msg, err := n.message(batch[0])
	if err != nil {
		return delivery.Answer{}, fmt.Errorf("%w: %w", delivery.ErrRejected, err)
	}
	if !n.core {
		err = giveWay(batch[0].Event)
	}
	if err != nil {
		return delivery.Answer{}, err
	}
	var answer delivery.Answer
	err = n.withSession(ctx, func(ctx context.Context, s *natsSession) (err error) {
		switch {
		case n.core:
			answer.Status, err = s.publishCore(ctx, msg)
		case batch[0].Event.Type() == cloudevent.BridgeHeartbeat:
			answer.Status, err = n.publishHeartbeat(ctx, s, msg)
		default:
			if err = n.provide(ctx, s); err == nil {
				answer, err = n.store(ctx, s, msg)
			}
		}
		return err
	})
	return answer, err
}

// headStart is how long a VM leaves the announcement of an event to others that are hit. It is longer than the time
// between two polls can be.
const headStart = 6 * time.Second

// giveWay puts a CloudEvent off that announces an event which hits other VMs than its observer, until those had a head
// start. A stream keeps one copy of each change, and only a VM that is hit knows whether a rule of its settings will start
// the event early. The eviction of a Spot VM is announced without rules, and there is no time.
func giveWay(ce event.Event) error {
	end := ce.Time().Add(headStart)
	left := time.Until(end)
	if left <= 0 || left > headStart { // the clock was set back
		return nil
	}
	f := cloudevent.Fields(ce)
	change, _ := f["change"].(string)
	resources, _ := f["resources"].([]string)
	data, _ := f["data"].(map[string]any)
	_, knows := data["rules"]
	alone := f["azself"] == true && len(resources) == 1
	if knows || alone || f["azeventtype"] == "Preempt" || !oneOf(change, "scheduled", "updated", "reminder") {
		return nil
	}
	return &delivery.NotYet{Until: end}
}

// publishHeartbeat publishes a heartbeat. If nobody keeps it, or if it is not allowed, events may still be published,
// so the sink is not blocked: a warning is logged, once for each connection.
func (n *natsSink) publishHeartbeat(ctx context.Context, s *natsSession, msg *nats.Msg) (string, error) {
	ack, err := s.js.PublishMsg(ctx, msg)
	why := ""
	switch {
	case err == nil:
		return "acknowledged by stream " + s.access.redact.line(ack.Stream, maxStreamName), nil
	case errors.Is(err, jetstream.ErrNoStreamResponse):
		why = "no stream takes it; forewarn relay --provision creates one"
	case errors.Is(context.Cause(ctx), nats.ErrPermissionViolation):
		why = s.access.redact.line(explainDenied(context.Cause(ctx)).Error(), maxShown)
	default:
		return "", err
	}
	if link := s.currentLink(); s.warnedHeartbeats != link {
		s.warnedHeartbeats = link
		n.Log.Warn("heartbeats are not heard", "subject", msg.Subject, "err", why)
	}
	return "not stored: " + why, nil
}

// Render returns the message that Deliver would publish.
func (n *natsSink) Render(d delivery.Delivery) (string, error) {
	msg, err := n.message(d)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintln(&b, msg.Subject)
	for _, name := range slices.Sorted(maps.Keys(msg.Header)) {
		fmt.Fprintf(&b, "%s: %s\n", name, msg.Header.Get(name))
	}
	fmt.Fprintf(&b, "\n%s\n", msg.Data)
	return b.String(), nil
}

// Connect connects, logs in and looks for the stream. It creates and publishes nothing. Beside an error it says how far
// it came.
func (n *natsSink) Connect(ctx context.Context) (string, error) {
	var answer string
	err := n.withSession(ctx, func(ctx context.Context, s *natsSession) error {
		answer = "connected to " + s.describeServer()
		if n.core {
			return nil
		}
		found, err := n.describeStream(ctx, s)
		if err == nil {
			answer += ", " + found
		}
		return err
	})
	return answer, err
}

// Close ends the connection.
func (n *natsSink) Close() error {
	if s := n.session.Swap(nil); s != nil {
		s.end()
	}
	return nil
}

// withSession calls do with a connection that has the current credentials.
func (n *natsSink) withSession(ctx context.Context, do func(context.Context, *natsSession) error) error {
	ctx, cancel := withLimit(ctx, natsTerms.Timeout)
	defer cancel()
	s, err := n.connected(ctx)
	if err != nil {
		return err
	}
	return s.do(ctx, func(ctx context.Context) error { return do(ctx, s) })
}

// connected returns the session, or a new one if there is none, nats.go has given it up, no answer can be heard over
// it, or the credentials have changed.
func (n *natsSink) connected(ctx context.Context) (*natsSession, error) {
	err := n.servers.sources().load(ctx, n.Host)
	if err != nil {
		return nil, err
	}
	a, err := n.servers.read()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
	}
	s := n.session.Load()
	if s != nil && !s.gaveUp() && !s.isDeaf() && s.access.stamp == a.stamp {
		return s, nil
	}
	n.Close()
	s, err = n.servers.dial(ctx, natsQuota)
	if err != nil {
		return nil, err
	}
	s.js, err = jetstream.NewWithAPIPrefix(s.conn, n.api)
	if err != nil {
		s.end()
		return nil, err
	}
	s.api = n.api
	n.session.Store(s)
	return s, nil
}

// messageID returns the id by which the stream knows a message again: that of the CloudEvent, for all VMs or for each.
func (n *natsSink) messageID(ce event.Event) string {
	if observer, ok := ce.Extensions()["observer"].(string); ok && n.copies {
		return ce.ID() + "." + observer
	}
	return ce.ID()
}

func (n *natsSink) message(d delivery.Delivery) (*nats.Msg, error) {
	ce := d.Event
	subject, err := n.subjects.of(ce)
	if err != nil {
		return nil, err
	}
	msg := &nats.Msg{Subject: subject, Header: make(nats.Header)}
	heartbeat := ce.Type() == cloudevent.BridgeHeartbeat // whose copies do no harm
	if !n.core && !heartbeat {
		msg.Header.Set(jetstream.MsgIDHeader, encodeAttribute(n.messageID(ce)))
	}
	if d.EventOver {
		msg.Header.Set(cloudevent.HeaderEventOver, "true")
	}
	if n.once && !heartbeat {
		msg.Header.Set(jetstream.ExpectedLastSubjSeqHeader, "0")
	}
	if n.structured {
		msg.Header.Set("Content-Type", structuredType)
		msg.Data, err = ce.MarshalJSON()
		return msg, err
	}
	all, err := attributes(ce)
	if err != nil {
		return nil, err
	}
	if t := ce.DataContentType(); t != "" {
		all = append(all, attribute{"datacontenttype", t})
	}
	for _, a := range all {
		msg.Header.Set("ce-"+a.name, encodeAttribute(a.value))
	}
	msg.Data = ce.Data()
	return msg, nil
}
