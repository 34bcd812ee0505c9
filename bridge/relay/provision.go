package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/delivery"
	"forewarn/bridge/fleet"
	"forewarn/bridge/internal/streams"
)

// Retention is how the stream, and what a relay keeps beside it, are created. A zero field leaves an existing stream as
// it is.
type Retention struct {
	Subjects   []string      // beside those that a relay publishes to; none: forewarn.events.> and forewarn.bridge.>
	Replicas   int           // of a new one 3 in a cluster, else 1; what is beside the stream has as many as that, at least
	MaxAge     time.Duration // of the stream; of a new one none
	MaxBytes   int64         // of the stream; of a new one none
	Duplicates time.Duration // within which the stream knows an id again; of a new one 24 h
}

// The ages and sizes of what a relay keeps beside the stream.
const (
	leasesAge     = time.Hour
	deadAge       = 90 * 24 * time.Hour
	deadMost      = 10_000
	newDuplicates = 24 * time.Hour
)

// A Step is one stream that a Plan creates, updates or keeps.
type Step struct {
	Name    string   `json:"name"`    // of the stream; a bucket's begins with KV_
	Action  string   `json:"action"`  // create, update, keep
	Changes []string `json:"changes"` // what it will be like, or what of it changes
	config  jetstream.StreamConfig
}

// A Plan is what has to be done to the streams.
type Plan struct {
	Steps []Step `json:"steps"`
	js    jetstream.JetStream
}

// NewPlan compares what there is with what a relay needs. It changes nothing.
func NewPlan(ctx context.Context, conn *nats.Conn, domain, stream string, want Retention) (Plan, error) {
	js, err := newJetStream(conn, domain)
	if err != nil {
		return Plan{}, err
	}
	plan := Plan{js: js}
	replicas := want.Replicas
	if replicas == 0 && conn.ConnectedClusterName() != "" {
		replicas = inCluster
	}
	kept := want.MaxAge // how long the stream keeps messages
	for _, c := range wanted(stream, want) {
		c.Replicas = max(1, replicas)
		if c.Name == "KV_"+recordsBucket(stream) {
			c.MaxAge = recordsAge(kept)
		}
		ctx, cancel := context.WithTimeout(ctx, streams.RequestTimeout)
		defer cancel()
		there, err := js.Stream(ctx, c.Name)
		if c.Name == heartbeatsStream(stream) && errors.Is(err, jetstream.ErrStreamNotFound) {
			other, err := js.StreamNameBySubject(ctx, streams.HeartbeatsSubject)
			if err == nil { // whose subjects may not overlap
				takes := []string{"takes " + streams.HeartbeatsSubject}
				plan.Steps = append(plan.Steps, Step{Name: other, Action: "keep", Changes: takes})
				continue
			}
		}
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			plan.Steps = append(plan.Steps, Step{Name: c.Name, Action: "create", Changes: described(c), config: c})
		case err != nil:
			return plan, explainSilence(conn, fmt.Errorf("look for stream %s: %w", c.Name, err))
		default:
			is := there.CachedInfo().Config
			if want.Replicas == 0 && (c.Name == stream || is.Replicas >= replicas) {
				c.Replicas = is.Replicas // which is left as it is
			}
			config, changes := updated(is, c, want, c.Name == stream)
			if c.Name == stream {
				kept = config.MaxAge
			}
			s := Step{Name: c.Name, Action: "update", Changes: changes, config: config}
			if len(changes) == 0 {
				s.Action, s.Changes = "keep", described(config)
			}
			plan.Steps = append(plan.Steps, s)
		}
		if c.Name == stream {
			replicas = c.Replicas
		}
	}
	return plan, nil
}

// recordsAge returns how long records are kept beside a stream that keeps its messages for so long: as long, so that none
// is told again, and longer than any event is open. 0 is for ever.
func recordsAge(kept time.Duration) time.Duration {
	if kept == 0 {
		return 0
	}
	return max(kept, maxEventAge)
}

// Do carries out the plan.
func (p Plan) Do(ctx context.Context) error {
	for _, s := range p.Steps {
		ctx, cancel := context.WithTimeout(ctx, streams.RequestTimeout)
		defer cancel()
		var err error
		switch s.Action {
		case "create":
			_, err = p.js.CreateStream(ctx, s.config)
		case "update":
			_, err = p.js.UpdateStream(ctx, s.config)
		}
		if err != nil {
			return fmt.Errorf("%s %s%s: %w", s.Action, s.Name, replicasAdvice(err, s.config.Replicas), err)
		}
	}
	return nil
}

// inCluster is how many replicas a new stream has in a cluster, which may then lose a server.
const inCluster = 3

// replicasAdvice says what may help against an error, if a cluster has too few servers for so many replicas.
func replicasAdvice(err error, replicas int) string {
	refused, ok := errors.AsType[*jetstream.APIError](err)
	if replicas == 1 || !ok || !slices.Contains(tooFewServers, refused.ErrorCode) {
		return ""
	}
	return fmt.Sprintf(" with %d replicas, which takes as many servers; with fewer set nats.provision.replicas: 1", replicas)
}

// tooFewServers are the codes with which servers refuse replicas.
var tooFewServers = []jetstream.ErrorCode{10005, 10023, 10074}

// wanted returns the stream, and what is kept beside it, as they are created, without their replicas.
func wanted(stream string, want Retention) []jetstream.StreamConfig {
	subjects := want.Subjects
	if len(subjects) == 0 {
		subjects = []string{"forewarn.events.>", "forewarn.bridge.>"}
	}
	if !slices.ContainsFunc(subjects, func(s string) bool { return covers(s, streams.SinkPrefix+">") }) {
		subjects = append(slices.Clone(subjects), streams.SinkPrefix+">")
	}
	audit := jetstream.StreamConfig{
		Name: stream, Subjects: subjects, Storage: jetstream.FileStorage, MaxAge: want.MaxAge,
		MaxBytes: cmp.Or(want.MaxBytes, -1), Duplicates: cmp.Or(want.Duplicates, newDuplicates), AllowDirect: true,
	}
	if audit.MaxAge > 0 {
		audit.Duplicates = min(audit.Duplicates, audit.MaxAge)
	}
	all := []jetstream.StreamConfig{
		audit,
		bucketConfig(recordsBucket(stream), recordsAge(want.MaxAge)),
		bucketConfig(leasesBucket(stream), leasesAge),
		{
			Name: deadStream(stream), Subjects: []string{deadSubject(stream) + ".>"}, Storage: jetstream.FileStorage,
			MaxAge: deadAge, MaxMsgs: deadMost, MaxMsgsPerSubject: 1, MaxBytes: -1,
		},
		{
			Name: heartbeatsStream(stream), Subjects: []string{streams.HeartbeatsSubject}, Storage: jetstream.FileStorage,
			// No limit of messages: one set would push out the heartbeats of the others.
			MaxAge: fleet.ForgetVM, MaxMsgs: -1, MaxMsgsPerSubject: 1, MaxBytes: -1,
		},
	}
	if slices.ContainsFunc(subjects, func(s string) bool { return covers(s, streams.HeartbeatsSubject) }) {
		all = all[:len(all)-1] // the audit stream takes heartbeats too
	}
	return all
}

// bucketConfig returns the stream of a key-value bucket. Unlike the usual one it has no AllowDirect, because a server
// that lags behind must not answer.
func bucketConfig(name string, age time.Duration) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: "KV_" + name, Subjects: []string{"$KV." + name + ".>"}, Storage: jetstream.FileStorage,
		MaxAge: age, MaxMsgsPerSubject: 1, MaxBytes: -1, Discard: jetstream.DiscardNew, AllowRollup: true, DenyDelete: true,
		Duplicates: 2 * time.Minute,
	}
}

// updated returns how an existing stream shall be, and what changes of it. Of the audit stream only the subjects
// change, and what was asked for.
func updated(is, c jetstream.StreamConfig, want Retention, audit bool) (jetstream.StreamConfig, []string) {
	var changes []string
	change := func(what string, from, to any) {
		changes = append(changes, fmt.Sprintf("%s %v → %v", what, from, to))
	}
	for _, subject := range c.Subjects {
		if !slices.ContainsFunc(is.Subjects, func(s string) bool { return covers(s, subject) }) &&
			(!audit || len(want.Subjects) > 0 || subject == streams.SinkPrefix+">") {
			changes = append(changes, "subject "+subject+" is added")
			is.Subjects = append(slices.Clone(is.Subjects), subject)
		}
	}
	if is.Replicas != c.Replicas {
		change("replicas", is.Replicas, c.Replicas)
		is.Replicas = c.Replicas
	}
	if !audit {
		if is.AllowDirect {
			changes = append(changes, "only its leader answers")
			is.AllowDirect = false
		}
		if is.MaxAge != c.MaxAge {
			change("max_age", is.MaxAge, c.MaxAge)
			is.MaxAge = c.MaxAge
		}
		if c.MaxMsgs == -1 && is.MaxMsgs > 0 {
			change("most messages", is.MaxMsgs, "any number")
			is.MaxMsgs = -1
		}
		return is, changes
	}
	if want.MaxAge > 0 && is.MaxAge != want.MaxAge {
		change("max_age", is.MaxAge, want.MaxAge)
		is.MaxAge = want.MaxAge
	}
	if want.MaxBytes > 0 && is.MaxBytes != want.MaxBytes {
		change("max_bytes", is.MaxBytes, want.MaxBytes)
		is.MaxBytes = want.MaxBytes
	}
	if want.Duplicates > 0 && is.Duplicates != want.Duplicates {
		change("duplicates", is.Duplicates, want.Duplicates)
		is.Duplicates = want.Duplicates
	}
	if is.MaxAge > 0 && is.Duplicates > is.MaxAge { // which the server refuses
		change("duplicates", is.Duplicates, is.MaxAge)
		is.Duplicates = is.MaxAge
	}
	return is, changes
}

// covers reports whether a pattern, which may end in >, matches all that another subject does.
func covers(pattern, subject string) bool {
	prefix, all := strings.CutSuffix(pattern, ">")
	return pattern == subject || all && strings.HasPrefix(subject, prefix)
}

// described describes a stream in words.
func described(c jetstream.StreamConfig) []string {
	age, size := "for ever", "no limit of size"
	if c.MaxAge > 0 {
		age = "for " + delivery.Readable(c.MaxAge)
	}
	if c.MaxBytes > 0 {
		size = fmt.Sprintf("at most %d bytes", c.MaxBytes)
	}
	return []string{
		"subjects " + strings.Join(c.Subjects, " "), fmt.Sprintf("replicas %d", c.Replicas), "kept " + age, size,
		"duplicates within " + delivery.Readable(cmp.Or(c.Duplicates, 2*time.Minute)), // the server's default
	}
}
