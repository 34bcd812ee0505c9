package sinks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
)

// natsProvision describes the stream to create or update. An existing stream keeps what is not given, and its other
// subjects. A new one keeps messages for ever unless there is a limit; over a limit the oldest goes first.
type natsProvision struct {
	Stream         string `yaml:"stream" required:"" doc:"name of the stream"`
	StreamSettings `yaml:",inline"`
}

// StreamSettings are what a stream shall be like. What is not given stays as it is.
type StreamSettings struct {
	Subjects   []string      `yaml:"subjects" doc:"its subjects (default: forewarn.events.> and forewarn.bridge.>)"`
	Replicas   int           `yaml:"replicas" min:"0" max:"5" doc:"copies in a cluster, at most 5 (default: 3 for a new stream in a cluster)"`
	MaxAge     time.Duration `yaml:"max_age" doc:"delete messages after this time (default: never)"`
	MaxBytes   Size          `yaml:"max_bytes" doc:"size limit of the stream (default: none)"`
	Duplicates time.Duration `yaml:"duplicates" doc:"time that ids are remembered (default: 24h for a new stream)"`
}

const (
	natsDuplicates = 24 * time.Hour
	maxStreamName  = 255 // the server makes a directory of that name
)

var natsDefaultSubjects = []string{natsEvents + ">", natsBridge + ">"}

// check returns p with its defaults, nil if there is none.
func (p *natsProvision) check(s natsSubjects) (*natsProvision, error) {
	if p == nil {
		return nil, nil
	}
	full := *p
	if len(p.Subjects) == 0 {
		full.Subjects = natsDefaultSubjects // which take the subjects by default: a test tries them
	}
	var wrong KeyErrors
	strange := strings.ContainsFunc(p.Stream, func(r rune) bool { return !inToken(r) })
	wrong.when(strange || p.Stream == "" || len(p.Stream) > maxStreamName, "provision.stream",
		"%q is not the name of a stream; expected A-Z, a-z, 0-9, _ and -, at most %d", p.Stream, maxStreamName)
	wrong.when(p.MaxAge < 0, "provision.max_age", "expected a time after which messages go, or none")
	wrong.when(p.Duplicates < 0 || p.MaxAge > 0 && p.Duplicates > p.MaxAge, "provision.duplicates",
		"expected a time no longer than max_age")
	if len(p.Subjects) == 0 {
		wrong.when(s.custom != "", "provision.subjects",
			"missing; expected the subjects of the stream, such as [%s], because subject is given", s.patterns()[0])
		return &full, wrong.err()
	}
	all, err := cloudevent.Samples(false)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(all) && len(wrong) == 0; i++ {
		subject, err := s.of(all[i])
		wrong.when(err != nil, "subject", "%w", err)
		taken := slices.ContainsFunc(full.Subjects, func(pattern string) bool { return subjectMatches(pattern, subject) })
		heartbeat := all[i].Type() == cloudevent.BridgeHeartbeat // which another stream takes
		wrong.when(err == nil && !taken && !heartbeat, "provision.subjects", "do not take %s, the subject of a sample "+
			"CloudEvent of type %s; expected a subject with wildcards that does", subject, all[i].Type())
	}
	return &full, wrong.err()
}

func (p *natsProvision) config(inCluster bool) jetstream.StreamConfig {
	replicas := 1
	if inCluster {
		replicas = 3 // so that it may lose a server
	}
	c, _ := p.changed(jetstream.StreamConfig{
		Name: p.Stream, Subjects: p.Subjects, Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage,
		Discard: jetstream.DiscardOld, Replicas: replicas, MaxBytes: -1, Duplicates: natsDuplicates, AllowDirect: true,
	})
	return c
}

// changed returns the configuration of a stream with what is given, and the keys that differ.
func (p *natsProvision) changed(c jetstream.StreamConfig) (jetstream.StreamConfig, []string) {
	var keys []string
	for _, subject := range p.Subjects {
		covered := func(pattern string) bool { return pattern == subject || subjectMatches(pattern, subject) }
		if !slices.ContainsFunc(c.Subjects, covered) {
			c.Subjects = append(slices.Clone(c.Subjects), subject)
			keys = append(keys, "subjects")
		}
	}
	setGiven(&c.Replicas, p.Replicas, &keys, "replicas")
	setGiven(&c.MaxAge, p.MaxAge, &keys, "max_age")
	setGiven(&c.MaxBytes, int64(p.MaxBytes), &keys, "max_bytes")
	setGiven(&c.Duplicates, p.Duplicates, &keys, "duplicates")
	if c.MaxAge > 0 && c.Duplicates > c.MaxAge { // which the server refuses
		setGiven(&c.Duplicates, c.MaxAge, &keys, "duplicates")
	}
	return c, slices.Compact(keys)
}

// setGiven sets a property to the value in the settings, if there is one, and notes its key if that changes it.
func setGiven[T int | int64 | time.Duration](property *T, given T, keys *[]string, key string) {
	if given > 0 && given != *property {
		*property, *keys = given, append(*keys, key)
	}
}

// provide creates or updates the stream, once for each connection and when no stream answered, and logs what it did.
func (n *natsSink) provide(ctx context.Context, s *natsSession) error {
	link := s.currentLink()
	if n.provision == nil || s.provided == link {
		return nil
	}
	name := n.provision.Stream
	stream, err := s.js.Stream(ctx, name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		c := n.provision.config(s.conn.ConnectedClusterName() != "")
		if _, err := s.js.CreateStream(ctx, c); err != nil {
			return provisionError("create", name, err)
		}
		n.Log.Info("stream created", "stream", name, "subjects", strings.Join(c.Subjects, " "), "replicas", c.Replicas,
			"max_age", c.MaxAge, "max_bytes", c.MaxBytes, "duplicates", c.Duplicates)
	case err != nil:
		return requestError("look for stream "+name, err)
	default:
		c, keys := n.provision.changed(stream.CachedInfo().Config)
		if len(keys) == 0 {
			break
		}
		if _, err := s.js.UpdateStream(ctx, c); err != nil {
			return provisionError("update", name, err)
		}
		n.Log.Info("stream updated", "stream", name, "changed", strings.Join(keys, " "))
	}
	s.provided = link
	return nil
}

// provisionError returns the error for a stream that cannot be as provision says. What the servers cannot do now is
// retried; what they refuse, such as more replicas than servers, blocks.
func provisionError(verb, name string, err error) error {
	doing := verb + " stream " + name
	e, ok := errors.AsType[*jetstream.APIError](err)
	if !ok {
		return fmt.Errorf("%s: %w", doing, err)
	}
	class := delivery.ErrBlocked
	if oneOf(e.Code, 429, 503) {
		class = nil
	}
	return &classError{class, fmt.Sprintf("%s: %s (%d)", doing, e.Description, e.ErrorCode)}
}

// atLeafNode is what to do where messages reach a stream that can't be asked: it is beyond a leaf node.
const atLeafNode = "at a leaf node, set the key domain to the JetStream domain of the servers that have the stream"

// requestError returns the error for a request to JetStream. If nobody answers, there is no JetStream; if the stream is
// not known, it is in another domain.
func requestError(doing string, err error) error {
	switch {
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrJetStreamNotEnabled),
		errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return &classError{delivery.ErrBlocked, doing + ": there is no JetStream for this account here; " + atLeafNode +
			"; else enable JetStream, or set core: true to send without a stream"}
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("%s: %w; %s", doing, err, atLeafNode)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// whyNoStream returns why no stream answered: there is none, or it has no leader.
func (n *natsSink) whyNoStream(ctx context.Context, s *natsSession, subject string) error {
	name, err := s.js.StreamNameBySubject(ctx, subject)
	switch {
	case err == nil:
		return &classError{nil, fmt.Sprintf("stream %s, which takes %s, does not answer; it may have no leader just now",
			name, subject)}
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return n.noStream(subject)
	}
	return requestError("no stream answers on "+subject+", and to look for it", err)
}

func (n *natsSink) noStream(subject string) error {
	return &classError{delivery.ErrBlocked,
		fmt.Sprintf("no stream takes %s; create one with the subjects %s, or let provision do it, "+
			"or set core: true to send without a stream; %s", subject, strings.Join(n.subjects.patterns(), " and "),
			atLeafNode)}
}

// describeStream returns the name and the subjects of the stream that takes what will be sent.
func (n *natsSink) describeStream(ctx context.Context, s *natsSession) (string, error) {
	all, err := cloudevent.Samples(false)
	if err != nil {
		return "", err
	}
	subject, err := n.subjects.of(all[0])
	if err != nil {
		return "", err
	}
	s.described = nil // as it is now
	stream, err := s.streamOf(ctx, subject)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound) && n.provision != nil:
		return fmt.Sprintf("stream %s is created with the first delivery", n.provision.Stream), nil
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return "", n.noStream(subject)
	case err != nil:
		return "", err
	}
	err = stream.keepsNothing()
	if err != nil {
		return "", err
	}
	return s.access.redact.line(stream.String(), maxShown), nil
}

// publishCore publishes a message without a stream, and returns when the server has it. The server's error about the
// message would come before the answer to the flush.
func (s *natsSession) publishCore(ctx context.Context, msg *nats.Msg) (string, error) {
	before := s.conn.LastError()
	err := s.conn.PublishMsg(msg)
	if err == nil {
		err = s.conn.FlushWithContext(ctx)
	}
	if last := s.conn.LastError(); err == nil && last != before {
		err = last
	}
	if err != nil {
		return "", err
	}
	return "taken by " + s.describeServer(), nil
}

// describeServer returns the name and the version of the server.
func (s *natsSession) describeServer() string {
	return s.access.redact.line(s.conn.ConnectedServerName()+" ("+s.conn.ConnectedServerVersion()+")", maxShown)
}
