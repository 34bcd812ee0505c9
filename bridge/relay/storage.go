package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"forewarn/bridge/fleet"
	"forewarn/bridge/internal/streams"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// storage is where JetStream keeps everything for the relays of a stream. It doesn't change once it is open.
type storage struct {
	js         jetstream.JetStream
	stream     jetstream.Stream
	records    streams.Bucket
	leases     jetstream.KeyValue
	dead       *deadLetters
	heartbeats string        // the stream with heartbeats; "" if there is none
	duplicates time.Duration // how long the stream recognises the id of a message
	notes      []string      // its problems, for people
}

// source returns what the fleet is read from.
func (st *storage) source() fleet.Source {
	return fleet.Source{JS: st.js, Stream: st.stream, Heartbeats: st.heartbeats, Bucket: st.records}
}

// The names of what a relay keeps beside its stream.
func recordsBucket(stream string) string    { return stream + "_records" }
func leasesBucket(stream string) string     { return stream + "_leases" }
func deadStream(stream string) string       { return stream + "_dead" }
func heartbeatsStream(stream string) string { return stream + "_heartbeats" }

func newJetStream(conn *nats.Conn, domain string) (jetstream.JetStream, error) {
	if domain == "" {
		return jetstream.New(conn)
	}
	return jetstream.NewWithDomain(conn, domain)
}

// openStorage finds the stream and what a relay keeps beside it. It creates nothing.
func openStorage(ctx context.Context, js jetstream.JetStream, stream string) (st *storage, err error) {
	ctx, cancel := context.WithTimeout(ctx, streams.RequestTimeout)
	defer cancel()
	if err := tooOld(js.Conn().ConnectedServerVersion()); err != nil {
		return nil, err
	}
	st = &storage{js: js}
	st.stream, err = js.Stream(ctx, stream)
	if err != nil {
		return nil, notFound("stream", stream, err)
	}
	if err := unfit(st.stream.CachedInfo().Config); err != nil {
		return nil, err
	}
	st.checkReplicas(stream, st.stream, st.stream)
	st.duplicates = st.stream.CachedInfo().Config.Duplicates
	st.records.KV, err = st.openBucket(ctx, recordsBucket(stream))
	if err != nil {
		return nil, err
	}
	st.leases, err = st.openBucket(ctx, leasesBucket(stream))
	if err != nil {
		return nil, err
	}
	dead := deadStream(stream)
	letters, err := js.Stream(ctx, dead)
	if err != nil {
		return nil, notFound("stream", dead, err)
	}
	st.checkReplicas(dead, letters, st.stream)
	st.dead = &deadLetters{js: js, name: dead, prefix: deadSubject(stream), maxPayload: int(js.Conn().MaxPayload())}
	st.heartbeats, err = js.StreamNameBySubject(ctx, streams.HeartbeatsSubject)
	if err != nil {
		st.note("no stream takes %s, so nobody hears which VMs fall silent", streams.HeartbeatsSubject)
	}
	if name, err := js.StreamNameBySubject(ctx, streams.SinkPrefix+"x.x"); err != nil || name != stream {
		st.note("stream %s does not take %s>, so nothing can be replayed or handed to a fallback", stream, streams.SinkPrefix)
	}
	return st, nil
}

// oldestServer is the oldest version of the server that a relay works with: consumers are named by who creates them, and
// keep the order of what they deliver.
const oldestServer = "2.9"

// tooOld returns an error if a server has an older version than that. One that can't be read is new.
func tooOld(version string) error {
	var is, needed [2]int
	_, _ = fmt.Sscanf(oldestServer, "%d.%d", &needed[0], &needed[1])
	if _, err := fmt.Sscanf(version, "%d.%d", &is[0], &is[1]); err != nil || slices.Compare(is[:], needed[:]) >= 0 {
		return nil
	}
	return fmt.Errorf("the NATS server has version %s; a relay needs %s or later", version, oldestServer)
}

// unfit returns an error if a stream can't be what relays read: they acknowledge what they have settled, publish to the
// stream, and must hear that it has taken that.
func unfit(c jetstream.StreamConfig) error {
	switch {
	case c.Mirror != nil:
		return fmt.Errorf("stream %s is a mirror, which takes no replays and nothing for a fallback; name the stream itself, "+
			"or make one that sources it", c.Name)
	case c.Retention != jetstream.LimitsPolicy:
		return fmt.Errorf("stream %s has the retention %s, so it would delete what one sink has acknowledged; a relay needs "+
			"a stream with limits", c.Name, strings.ToLower(c.Retention.String()))
	case c.NoAck:
		return fmt.Errorf("stream %s has no_ack, so nobody knows what it has taken; a relay needs one without", c.Name)
	}
	return nil
}

func (st *storage) openBucket(ctx context.Context, name string) (jetstream.KeyValue, error) {
	kv, err := st.js.KeyValue(ctx, name)
	if err != nil {
		return nil, notFound("bucket", name, err)
	}
	under, err := st.js.Stream(ctx, "KV_"+name)
	if err != nil {
		return nil, notFound("bucket", name, err)
	}
	if c := under.CachedInfo().Config; c.AllowDirect && c.Replicas > 1 {
		st.note("bucket %s may be read from a server that lags behind, and a change may be told twice", name)
	}
	st.checkReplicas("KV_"+name, under, st.stream)
	return kv, nil
}

// checkReplicas notes if a stream in a cluster has so few replicas that the death of one server would stop the relays.
func (st *storage) checkReplicas(name string, stream, audit jetstream.Stream) {
	n := stream.CachedInfo().Config.Replicas
	if st.js.Conn().ConnectedClusterName() == "" || n >= inCluster {
		return
	}
	text := fmt.Sprintf("stream %s has %d of %d replicas, so the death of one server would stop every sink", name, n, inCluster)
	if audit.CachedInfo().Config.Replicas >= inCluster {
		st.note("%s", text)
		return
	}
	st.notes = append(st.notes, text+"; forewarn relay --provision with nats.provision.replicas: 3 mends that")
}

// sourceWithHeartbeats waits until a stream takes heartbeats, as after --provision, and returns what the fleet is read from
// then. The error is that of ctx.
func (r *Relay) sourceWithHeartbeats(ctx context.Context, st *storage) (fleet.Source, error) {
	src := st.source()
	for src.Heartbeats == "" {
		if err := streams.Sleep(ctx, time.Minute); err != nil {
			return src, err
		}
		if now, err := openStorage(ctx, st.js, r.Stream); err == nil {
			src.Heartbeats = now.heartbeats
			r.locked(func() { r.storageNotes = now.notes })
		}
	}
	return src, ctx.Err()
}

// note adds a note about something that --provision repairs.
func (st *storage) note(format string, args ...any) {
	st.notes = append(st.notes, fmt.Sprintf(format, args...)+"; forewarn relay --provision mends that")
}

// explainSilence returns err, or why nobody answered: a server says once that it refuses something, and then nothing.
func explainSilence(conn *nats.Conn, err error) error {
	said := conn.LastError()
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(said, nats.ErrPermissionViolation) {
		return err
	}
	why := "this user may not ask for that"
	if strings.Contains(said.Error(), "for Subscription") {
		why = "this user may not hear the answers; set inbox_prefix to one that it may subscribe to"
	}
	return fmt.Errorf("%w: %s: %w", err, why, said)
}

func notFound(what, name string, err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrBucketNotFound) {
		return fmt.Errorf("there is no %s %s; forewarn relay --provision creates it", what, name)
	}
	return fmt.Errorf("look for %s %s: %w", what, name, err)
}

// setStorage sets the storage of the connection; nil when that is closed.
func (r *Relay) setStorage(st *storage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.storage = st
	if st != nil {
		r.storageNotes = st.notes
	}
}

// connected returns the storage of the connection. The error tells why there is no connection.
func (r *Relay) connected() (*storage, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.storage == nil {
		why := r.down
		if why == nil { // the connection was closed just now
			why = nats.ErrConnectionClosed
		}
		return nil, fmt.Errorf("the relay can't reach JetStream: %w", why)
	}
	return r.storage, nil
}
