package streams

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// Headers of a message that a relay publishes for one sink: of a fallback, and of a replay. The last two are
// percent-encoded.
const (
	HeaderFallbackFor   = "Forewarn-Fallback-For" // the sink that could not deliver it
	HeaderFallbackError = "Forewarn-Fallback-Error"
	HeaderReplayedBy    = "Forewarn-Replayed-By" // the user who asked for it
)

// A Message is a message of the stream that holds a CloudEvent.
type Message struct {
	Seq         uint64
	Stored      time.Time // when the stream took it
	Bytes       int       // of its data
	CE          event.Event
	Change      imds.Change           // zero when it is about a bridge
	EventID     string                // of the Azure event; "" when it is about a bridge
	From        cloudevent.Place      // where it comes from, as its subject says
	OnlySink    string                // the only sink that it is for; "" for all
	FallbackFor *delivery.FallbackFor // set if it is for a fallback
	EventOver   bool                  // the event was over when the message was published; see cloudevent.HeaderEventOver
	publishedAs string                // for one sink only: the id under which the stream took it
	replayedBy  string                // the user who asked for it; "" if nobody did
}

// Decode returns the CloudEvent of a message in either mode of the NATS binding. It is structured if the content type
// says so, and binary otherwise. The names of headers may be in any case.
func Decode(header nats.Header, data []byte) (ce event.Event, err error) {
	fields, err := lowerCase(header)
	if err != nil {
		return ce, err
	}
	content := fields["content-type"]
	if strings.HasPrefix(strings.ToLower(content), "application/cloudevents") {
		if strings.HasPrefix(strings.ToLower(content), "application/cloudevents-batch") {
			return ce, errors.New("a batch; expected one CloudEvent")
		}
		ce, err = cloudevent.Decode(data)
		if err != nil {
			return ce, err
		}
		return ce, validate(ce)
	}
	version := fields["ce-specversion"]
	if version == "" {
		return ce, errors.New("it has neither a ce-specversion nor a content type of CloudEvents")
	}
	ce = event.New(version)
	if ce.Context == nil {
		return ce, fmt.Errorf("unknown specversion %.40q", version)
	}
	for name, text := range fields {
		attribute, ours := strings.CutPrefix(name, "ce-")
		if !ours || attribute == "specversion" {
			continue
		}
		value, err := attributeValue(text)
		if err == nil {
			err = setAttribute(&ce, attribute, value)
		}
		if err != nil {
			return ce, fmt.Errorf("attribute %.40s: %w", attribute, err)
		}
	}
	if len(data) > 0 {
		ce.DataEncoded = data
		switch isJSON := isJSON(ce.DataContentType()); {
		case isJSON && !json.Valid(data):
			return ce, fmt.Errorf("its data is no JSON, as its content type %.40q says", ce.DataContentType())
		case !isJSON && !utf8.Valid(data):
			ce.DataBase64 = true
		}
	}
	return ce, validate(ce)
}

// lowerCase returns the headers by their names in lower case. It refuses one that is there twice, because readers
// would take either.
func lowerCase(header nats.Header) (map[string]string, error) {
	fields := map[string]string{}
	for name := range header {
		lower := strings.ToLower(name)
		if _, twice := fields[lower]; twice {
			return nil, fmt.Errorf("the header %.40s is there twice, in upper and lower case", lower)
		}
		fields[lower] = header.Get(name)
	}
	return fields, nil
}

// isJSON reports whether the CloudEvents SDK embeds data of this content type unchanged in a CloudEvent's JSON.
func isJSON(contentType string) bool {
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	return media == "" || media == "application/json" || media == "text/json" ||
		strings.HasPrefix(media, "application/cloudevents")
}

// validate returns an error unless ce is a valid CloudEvent.
func validate(ce event.Event) error {
	if ce.FieldErrors != nil {
		for name, err := range ce.FieldErrors {
			return fmt.Errorf("attribute %.40s: %w", name, err)
		}
	}
	return ce.Validate()
}

// attributeValue decodes the percent-encoding of a header once, as the NATS binding demands.
func attributeValue(s string) (string, error) {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		s = s[1 : len(s)-1]
	}
	plain, err := url.PathUnescape(s)
	if err != nil {
		return "", err
	}
	if strings.ToValidUTF8(plain, "") != plain {
		return "", errors.New("it is not UTF-8")
	}
	return plain, nil
}

// setAttribute sets an attribute from its text. forewarn's own attributes get the types that they have in JSON.
func setAttribute(ce *event.Event, name, value string) error {
	switch name {
	case "id":
		ce.SetID(value)
	case "source":
		ce.SetSource(value)
	case "type":
		ce.SetType(value)
	case "subject":
		ce.SetSubject(value)
	case "dataschema":
		ce.SetDataSchema(value)
	case "datacontenttype":
		ce.SetDataContentType(value)
	case "time":
		at, err := time.Parse(time.RFC3339Nano, value)
		if err != nil {
			return err
		}
		ce.SetTime(at)
	case "azduration", "severitynumber":
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil {
			ce.SetExtension(name, value)
			return nil
		}
		ce.SetExtension(name, int32(n))
	case "azself":
		ce.SetExtension(name, value == "true")
	default:
		ce.SetExtension(name, value)
	}
	return nil
}

// newMessage decodes a message of the stream. An error tells why it isn't a CloudEvent.
func newMessage(seq uint64, stored time.Time, header nats.Header, subject string, data []byte) (m Message, err error) {
	m = Message{Seq: seq, Stored: stored, Bytes: len(data)}
	m.CE, err = Decode(header, data)
	if err != nil {
		return m, err
	}
	m.OnlySink = onlySinkOf(subject)
	if of := header.Get(HeaderFallbackFor); m.OnlySink != "" && of != "" {
		why, err := attributeValue(header.Get(HeaderFallbackError))
		if err != nil {
			why = "no answer"
		}
		m.FallbackFor = &delivery.FallbackFor{Sink: of, Error: why}
	}
	m.EventOver = header.Get(cloudevent.HeaderEventOver) != ""
	if m.OnlySink != "" {
		by, _ := attributeValue(header.Get(HeaderReplayedBy)) // an unreadable name must not hold up a delivery
		m.replayedBy = imds.Printable(by, 200)
		m.publishedAs = header.Get(nats.MsgIdHdr)
	}
	if strings.HasPrefix(m.CE.Type(), cloudevent.EventPrefix) {
		m.Change = cloudevent.ChangeOf(m.CE)
		m.EventID = cmp.Or(m.Change.Event.ID, m.CE.Subject(), m.CE.ID())
	}
	m.From = cloudevent.PlaceOf(m.CE)
	if err := m.checkBounds(); err != nil {
		return m, err
	}
	return m, checkSubject(subject, m)
}

// The bounds of the attributes of a CloudEvent: records and dead letters keep some, and a command gets all.
const (
	maxExtensions    = 64
	maxAttributeName = 64      // bytes
	maxAttribute     = 4 << 10 // bytes of a value
)

// checkBounds returns an error if the CloudEvent has too many attributes, an attribute that is too long, or a time that
// can't be.
func (m Message) checkBounds() error {
	extensions := m.CE.Extensions()
	if len(extensions) > maxExtensions {
		return fmt.Errorf("it has %d extension attributes; at most %d are allowed", len(extensions), maxExtensions)
	}
	texts := map[string]string{
		"id": m.CE.ID(), "type": m.CE.Type(), "source": m.CE.Source(), "subject": m.CE.Subject(),
		"dataschema": m.CE.DataSchema(), "datacontenttype": m.CE.DataContentType(),
	}
	for name, value := range extensions {
		if len(name) > maxAttributeName {
			return fmt.Errorf("the name of its attribute %.40s… is %d bytes long; at most %d are allowed", name, len(name),
				maxAttributeName)
		}
		texts[name], _ = value.(string)
	}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if n := len(texts[name]); n > maxAttribute {
			return fmt.Errorf("its %s is %d bytes long; at most %d are allowed", name, n, maxAttribute)
		}
	}
	return m.checkTimes()
}

// checkTimes returns an error if a time in the CloudEvent can't be: nothing that holds it could be written as JSON.
func (m Message) checkTimes() error {
	var d cloudevent.Data
	_ = json.Unmarshal(m.CE.Data(), &d) // on an error, what could be read counts
	times := []time.Time{m.CE.Time(), m.NotBefore(), d.NotBefore, d.Announced, d.Begun, d.NotEarlierThan, d.Back}
	if d.Approval != nil {
		times = append(times, d.Approval.Decided)
	}
	if d.Asked != nil {
		times = append(times, d.Asked.Time)
	}
	for _, r := range d.Rules {
		times = append(times, r.From)
	}
	for _, at := range times {
		if year := at.UTC().Year(); year < 0 || year > 9999 {
			return fmt.Errorf("it has a time in the year %d", year)
		}
	}
	return nil
}

// Seen returns when a VM saw the change, as it says, but at the latest when the stream stored it: a clock that is wrong
// puts off no later change.
func (m Message) Seen() time.Time {
	if said := m.CE.Time(); said.Before(m.Stored) {
		return said
	}
	return m.Stored
}

// DeliveryID returns the key of the message's delivery in the sink's record. All copies of a CloudEvent have the same
// one, its id as a token, so that the sink gets it once. For one sink only, as of a fallback or a replay, it has its own:
// a dot and another token follow.
func (m Message) DeliveryID() string {
	id := Token(m.CE.ID())
	switch {
	case m.FallbackFor != nil:
		return id + ".fallback"
	case m.OnlySink != "":
		return id + "." + ShortHash(m.publishedAs)
	}
	return id
}

// Group returns the group of the message's Azure event; "" when it is about a bridge.
func (m Message) Group() string {
	if m.EventID == "" {
		return ""
	}
	return GroupOf(m.EventID, m.From.String())
}

// RecordID returns what the sink's record of the message is about: an Azure event, or one CloudEvent about a bridge.
func (m Message) RecordID() string { return GroupOf(cmp.Or(m.EventID, m.CE.ID()), m.From.String()) }

// NotBefore returns when the Azure event may begin; zero if it has begun or the time is unknown.
func (m Message) NotBefore() time.Time { return m.Change.Event.NotBefore }

// Item returns the message as an item of the delivery loop.
func (m Message) Item() *delivery.Item {
	azureType, _ := m.CE.Extensions()["azeventtype"].(string)
	return &delivery.Item{
		Message: &delivery.Message{
			Seq: m.Seq, ID: m.CE.ID(), Type: m.CE.Type(), Group: m.Group(), Change: string(m.Change.Kind), AzureType: azureType,
			Transient: m.CE.Type() == cloudevent.BridgeHeartbeat, VMs: m.vms(), About: m.about(),
		},
		PendingSince: m.Stored, NotBefore: m.NotBefore(), FallbackFor: m.FallbackFor,
		Replayed: m.OnlySink != "" && m.FallbackFor == nil && m.EventID != "", ReplayedBy: m.replayedBy,
	}
}

// vms returns the VMs that the message is about.
func (m Message) vms() []string {
	if m.EventID != "" {
		return m.Change.Event.Resources
	}
	var data struct {
		VMs      []string      `json:"vms"` // those that fell silent or are back
		Observer imds.Observer `json:"observer"`
	}
	_ = json.Unmarshal(m.CE.Data(), &data) // no data names no VMs
	if data.VMs == nil && data.Observer.Name != "" {
		return []string{data.Observer.Name}
	}
	return data.VMs
}

// about returns the sink that a message of a relay for one of the others is about; "" for any other message.
func (m Message) about() string {
	if m.EventID != "" || m.OnlySink == "" {
		return ""
	}
	var data struct {
		Sink string `json:"sink"`
	}
	_ = json.Unmarshal(m.CE.Data(), &data) // no data names no sink
	return data.Sink
}

// SinkPrefix begins the subjects of messages for one sink only: forewarn.relay.<sink>.<CloudEvent id>.
const SinkPrefix = "forewarn.relay."

// onlySinkOf returns the sink that a subject names; "" when the message is for all sinks.
func onlySinkOf(subject string) string {
	rest, ok := strings.CutPrefix(subject, SinkPrefix)
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, ".")
	return FromToken(name)
}

// FromToken reverses token, unless the text was too long.
func FromToken(s string) string {
	plain, err := url.PathUnescape(strings.ReplaceAll(s, "=", "%"))
	if err != nil {
		return s
	}
	return plain
}

// Token turns a text into one token of a subject or a key: a byte that isn't allowed there becomes = and two hex
// digits. Different texts become different tokens. A text that is too long is cut and ends in its hash.
func Token(s string) string {
	const longest = 200
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; isPlain(rune(c)) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "=%02X", c)
		}
		if b.Len() > longest {
			return b.String()[:longest] + "-" + ShortHash(s)
		}
	}
	return b.String()
}

// isPlain reports whether a character stands for itself in a token.
func isPlain(c rune) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// IsToken reports whether a text may be a token: Token returns no other.
func IsToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool { return !isPlain(c) && c != '=' })
}
