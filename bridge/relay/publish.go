package relay

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/internal/streams"
)

// reportTrouble is called by a Worker while its route is blocked, with the reason, and with nil when the route
// accepts again. The other routes that want to know get a CloudEvent, unless they got it when another relay served the
// route. A route that a reload removed is no trouble of this relay any more.
func (r *Relay) reportTrouble(q *queue, why error) {
	q.mu.Lock()
	known := q.notices.blocked == (why != nil)
	q.mu.Unlock()
	r.mu.Lock()
	removed := slices.Contains(r.removedSinks, q.route.Name)
	r.mu.Unlock()
	if known || why != nil && removed {
		return
	}
	oldest, _ := q.waitsSince(time.Now())
	if why != nil && oldest.IsZero() { // only what is about bridges waits: that never causes another CloudEvent
		return
	}
	data := map[string]any{"sink": q.route.Name, "kind": q.route.Kind, "pending": q.status().pending}
	typ := cloudevent.SinkRecovered
	if why != nil {
		typ, data["error"], data["since"] = cloudevent.SinkBlocked, why.Error(), oldest.UTC()
	}
	ce, _, err := r.newCloudEvent(typ, data)
	if err != nil {
		q.log.Warn("nobody could be told about this sink", "type", typ, "err", err)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.notices.blocked == (why != nil) {
		return
	}
	q.notices.blocked = why != nil
	q.addNotice(&notice{ce: ce}) // the Worker must not wait until it is published
}

// notices are what the other sinks are to be told of this one.
type notices struct {
	blocked   bool      // they know that it is blocked, or are about to be told
	published bool      // they were told so, and not yet that it accepts again
	pending   []*notice // in order
}

// A notice is a CloudEvent that says that a sink is blocked, or accepts again, and that the stream doesn't have yet.
type notice struct {
	ce     event.Event
	begun  bool // to be published, so that some sinks may have it
	failed bool // to be published
}

// addNotice adds a notice. With the opposite, which nobody can have heard, there is nothing to publish. mu is held.
func (q *queue) addNotice(n *notice) {
	last := len(q.notices.pending) - 1
	if last >= 0 && !q.notices.pending[last].begun {
		q.notices.pending = q.notices.pending[:last]
		return
	}
	q.notices.pending = append(q.notices.pending, n)
}

// publishNotice publishes the first notice, and reports whether it did. If that fails, it stays. In a queue whose
// lease is lost it does nothing: that is left to the relay which has the sink then.
func (q *queue) publishNotice() bool {
	if cause := context.Cause(q.ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return false
	}
	q.mu.Lock()
	if len(q.notices.pending) == 0 {
		q.mu.Unlock()
		return false
	}
	n := q.notices.pending[0]
	n.begun = true
	q.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.ctx), streams.RequestTimeout)
	defer cancel()
	err := q.notify(ctx, q.js, n.ce, q.route.Name)
	if err != nil {
		if !n.failed {
			n.failed = true
			q.log.Warn("the other sinks could not be told about this one, trying again", "type", n.ce.Type(), "err", err)
		}
		return false
	}
	q.mu.Lock()
	q.notices.pending = q.notices.pending[1:]
	q.notices.published = !q.notices.published
	q.mu.Unlock()
	_ = q.saveState(ctx) // if that fails, flush tries again
	return true
}

// notifySinks publishes a CloudEvent about this relay for each route that wants such CloudEvents, except one.
func (r *Relay) notifySinks(ctx context.Context, js jetstream.JetStream, ce event.Event, except string) error {
	r.mu.Lock()
	routes := r.Routes
	r.mu.Unlock()
	var errs []error
	for _, route := range routes {
		if route.Name == except || !route.Terms.Bridge.Hears(ce.Type()) {
			continue
		}
		if err := publishForSink(ctx, js, route.Name, ce, nats.Header{}, route.Name); err != nil {
			errs = append(errs, fmt.Errorf("sink %s: %w", route.Name, err))
		}
	}
	return errors.Join(errs...)
}

// announce publishes a CloudEvent about this relay for all sinks. The stream keeps one of those with the same id; "" is
// the CloudEvent's own id.
func (r *Relay) announce(ctx context.Context, typ string, data map[string]any, id string) error {
	ce, js, err := r.newCloudEvent(typ, data)
	if err != nil {
		return err
	}
	return r.publish(ctx, js, ce, cmp.Or(id, ce.ID()))
}

// newCloudEvent returns a CloudEvent about this relay, and the JetStream to publish it to. It names the stream, because
// another relay of that may tell the end of what this one tells. No two have the same time, because their ids contain it.
func (r *Relay) newCloudEvent(typ string, data map[string]any) (event.Event, jetstream.JetStream, error) {
	st, err := r.connected()
	if err != nil {
		return event.Event{}, nil, err
	}
	r.mu.Lock()
	now := time.Now()
	if !now.After(r.lastTime) {
		now = r.lastTime.Add(1)
	}
	r.lastTime = now
	r.mu.Unlock()
	full := map[string]any{"stream": r.Stream, "streamCreated": st.stream.CachedInfo().Created.UTC()}
	maps.Copy(full, data)
	ce, err := cloudevent.WrapBridge(typ, full, imds.Observer{Name: r.Name, OSType: imds.ThisOS}, now)
	return ce, st.js, err
}

// publish puts a CloudEvent from this relay into the stream, for all sinks. What all relays say has one id and one
// subject, so that the stream keeps one of them.
func (r *Relay) publish(ctx context.Context, js jetstream.JetStream, ce event.Event, id string) error {
	return publish(ctx, js, "forewarn.bridge.relay."+streams.Token(id), ce, id, nats.Header{})
}

// publishForSink puts a CloudEvent into the stream for one sink only. The stream keeps one for the same purpose.
func publishForSink(ctx context.Context, js jetstream.JetStream, sink string, ce event.Event, header nats.Header,
	purpose string) error {
	subject := streams.SinkPrefix + streams.Token(sink) + "." + streams.Token(ce.ID())
	err := publish(ctx, js, subject, ce, streams.Token(ce.ID()+"-"+purpose), header)
	if errors.Is(err, jetstream.ErrNoStreamResponse) {
		return fmt.Errorf("no stream takes %s>; forewarn relay --provision adds it: %w", streams.SinkPrefix, err)
	}
	return err
}

// replay puts a CloudEvent into the stream again for one sink, with the time of the replay as its recordedtime, and with
// who asked for it in a header. What is asked for once has one id.
func replay(ctx context.Context, js jetstream.JetStream, sink string, ce event.Event, by, id string) error {
	again := ce.Clone()
	again.SetExtension("recordedtime", types.Timestamp{Time: time.Now().UTC()})
	return publishForSink(ctx, js, sink, again, nats.Header{streams.HeaderReplayedBy: {percentEncoded(by)}}, "replay-"+id)
}

// publish puts a CloudEvent into the stream that takes the subject. The stream keeps one of the messages with the same
// id and subject, within its duplicate window. It knows an id for all its subjects, so another publisher may have used
// this one: then the CloudEvent is published under a new id, which begins with the same word.
func publish(ctx context.Context, js jetstream.JetStream, subject string, ce event.Event, id string,
	header nats.Header) error {
	body, err := ce.MarshalJSON()
	if err != nil {
		return err
	}
	header.Set("Content-Type", "application/cloudevents+json; charset=utf-8")
	header.Set(jetstream.MsgIDHeader, id)
	ctx, cancel := context.WithTimeout(ctx, streams.RequestTimeout)
	defer cancel()
	msg := &nats.Msg{Subject: subject, Header: header, Data: body}
	ack, err := js.PublishMsg(ctx, msg)
	if err != nil || !ack.Duplicate {
		return err
	}
	held, err := isHeld(ctx, js, ack, subject, id)
	if err != nil || held {
		return err
	}
	header.Set(jetstream.MsgIDHeader, id+" "+rand.Text())
	ack, err = js.PublishMsg(ctx, msg)
	if err == nil && ack.Duplicate {
		err = fmt.Errorf("stream %s takes nothing on %s: it calls a new id a duplicate", ack.Stream, subject)
	}
	return err
}

// isHeld reports whether the message that a stream calls a duplicate is on its own subject.
func isHeld(ctx context.Context, js jetstream.JetStream, ack *jetstream.PubAck, subject, id string) (bool, error) {
	held, err := streams.Next(ctx, js, ack.Stream, subject, ack.Sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	was := held.Header.Get(jetstream.MsgIDHeader)
	return was == id || strings.HasPrefix(was, id+" "), err
}

// percentEncoded makes a text fit for a header.
func percentEncoded(s string) string {
	out := make([]byte, 0, len(s))
	for i := range len(s) {
		if c := s[i]; c > ' ' && c < 0x7F && c != '%' && c != '"' {
			out = append(out, c)
		} else {
			out = fmt.Appendf(out, "%%%02X", c)
		}
	}
	return string(out)
}
