// Package cloudevent defines forewarn's CloudEvents: their types, ids, attributes and data, which are its public
// contract. Wrap makes a CloudEvent from a change of an Azure event, WrapBridge one about the bridge itself, and
// Fields returns what templates and expressions see of either. The package does no I/O.
package cloudevent

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"

	"forewarn/bridge/imds"
)

// The types of CloudEvents. The part after the prefix is the kind of the change, or what happened to the bridge.
const (
	prefix       = "dev.forewarn."
	EventPrefix  = prefix + "scheduledevent."
	BridgePrefix = prefix + "bridge."

	BridgeStarted        = BridgePrefix + "started"
	BridgeStopping       = BridgePrefix + "stopping"
	BridgeTest           = BridgePrefix + "test"
	BridgeHeartbeat      = BridgePrefix + "heartbeat"
	IMDSUnavailable      = BridgePrefix + "imds.unavailable"
	IMDSRecovered        = BridgePrefix + "imds.recovered"
	OutboxUnwritable     = BridgePrefix + "outbox.unwritable"
	OutboxWritable       = BridgePrefix + "outbox.writable"
	SinkBlocked          = BridgePrefix + "sink.blocked"
	SinkRecovered        = BridgePrefix + "sink.recovered"
	SinkMuted            = BridgePrefix + "sink.muted"
	SinkUnmuted          = BridgePrefix + "sink.unmuted"
	DeliveryDeadLettered = BridgePrefix + "delivery.deadlettered"
	DeliveryDropped      = BridgePrefix + "delivery.dropped"
	SettingsLoaded       = BridgePrefix + "settings.loaded"
	ChainHead            = BridgePrefix + "chain.head"
	ObserverSilent       = prefix + "observer.silent"
	ObserverBack         = prefix + "observer.back"
)

const (
	maxString    = 16 << 10 // bytes of a string in data
	maxAttribute = 1 << 10  // bytes of a CloudEvents attribute

	timestampInIDs  = "20060102T150405"
	azureManagement = "https://management.azure.com"
	unknownHost     = "unknown" // in a source or an id
)

// Types lists the types of all CloudEvents that a bridge or a relay makes.
var Types = []string{
	EventPrefix + string(imds.Scheduled), EventPrefix + string(imds.Updated),
	EventPrefix + string(imds.Started), EventPrefix + string(imds.Vanished),
	EventPrefix + string(imds.Reminder), EventPrefix + string(imds.Approved),
	BridgeStarted, BridgeStopping, BridgeHeartbeat, IMDSUnavailable, IMDSRecovered, OutboxUnwritable,
	OutboxWritable, SinkBlocked, SinkRecovered,
	SinkMuted, SinkUnmuted, DeliveryDeadLettered, DeliveryDropped, SettingsLoaded, ChainHead, ObserverSilent, ObserverBack,
}

// DataSchema is the URI of Schema, and the dataschema of every CloudEvent.
const DataSchema = "https://forewarn.dev/schema/v1.json"

// Schema is the JSON Schema (2020-12) of the data of all CloudEvents.
//
//go:embed schema.json
var Schema []byte

// An Outcome is how an Azure event ended, as far as Azure's documents show.
type Outcome string

// The outcomes. Unknown is common: when a scheduled event disappears, Azure does not say whether it happened.
const (
	OutcomeCompleted Outcome = "completed"
	OutcomeCanceled  Outcome = "canceled"
	OutcomeUnknown   Outcome = "unknown"
)

// Data is the data of a CloudEvent about an Azure event. Unknown fields are absent.
type Data struct {
	Change              imds.ChangeKind `json:"change"`
	Event               json.RawMessage `json:"event"`
	Previous            json.RawMessage `json:"previous,omitempty"`
	Changed             []string        `json:"changed,omitempty"`
	Outcome             Outcome         `json:"outcome,omitempty"`
	NotBefore           time.Time       `json:"notBefore,omitzero"`
	DocumentIncarnation json.RawMessage `json:"documentIncarnation,omitempty"`
	AffectsSelf         *bool           `json:"affectsSelf,omitempty"`
	Announced           time.Time       `json:"announced,omitzero"`
	Begun               time.Time       `json:"begun,omitzero"`
	WhileAway           bool            `json:"whileAway"`
	NotEarlierThan      time.Time       `json:"notEarlierThan,omitzero"`
	Back                time.Time       `json:"back,omitzero"`
	LongestPause        float64         `json:"longestPause,omitzero"` // seconds
	Approval            *Approval       `json:"approval,omitempty"`
	Asked               *Asked          `json:"asked,omitempty"`
	Rules               []Rule          `json:"rules,omitempty"`
	Lead                string          `json:"lead,omitempty"`
	Truncated           []string        `json:"truncated,omitempty"`
	Observer            imds.Observer   `json:"observer"`
}

// Circumstances are the contents of a CloudEvent besides the change itself.
type Circumstances struct {
	Observer       imds.Observer
	Host           string    // stands in the source while the observer has no name
	Source         string    // "" derives it from the observer
	Time           time.Time // when the change was first observed
	Incarnation    string    // of the document that showed it
	Announced      time.Time // when the observer first saw the event
	Begun          time.Time // when it first saw it as Started; zero before that
	WhileAway      bool
	NotEarlierThan time.Time // the last valid answer before a gap; zero if there was none
	Repeat         int       // number of earlier CloudEvents about this change, as far as remembered; 0 for the first
	End            End       // of a Vanished
	Approval       *Approval // of an Approved
	Asked          *Asked    // nil if nobody has
	Rules          []Rule    // that will approve what is scheduled
}

// A Rule is one of the rules of approval that will approve an event, unless a sink that it waits for fails.
type Rule struct {
	Name  string   `json:"name"`            // as in Approval.By
	After []string `json:"after,omitempty"` // sinks that must have accepted the change
	Wait  float64  `json:"wait,omitempty"`  // seconds after the last of them has
	// From is when it can approve at the earliest: a sink that it waits for gets the change only then, or its wait ends.
	From time.Time `json:"from,omitzero"`
	// Again names a sink in After that failed and is tried again. Until that succeeds the rule doesn't approve.
	Again string `json:"again,omitempty"`
	// VM is the one whose forewarn has the rule, if only that may approve: the first that the event names. Nothing is
	// known of its settings; this observer's have such a rule.
	VM string `json:"vm,omitempty"`
}

// An Asked is the last approval that Azure took or may have taken, whatever changed since: the event may begin at any time.
type Asked struct {
	By       string    `json:"by"`       // as in Approval
	Time     time.Time `json:"time"`     // UTC
	Answered bool      `json:"answered"` // Azure took it; else nobody knows
}

// An End is what is known about the end of an event.
type End struct {
	Outcome      Outcome
	Back         time.Time     // boot of the observer during the event; zero if it did not boot
	LongestPause time.Duration // for which the program stood still while the event was open
}

// The results of an approval.
const (
	ResultApproved   = "approved"   // Azure took it
	ResultRefused    = "refused"    // Azure did not, or it was not sent: Error says which
	ResultUnanswered = "unanswered" // it was sent, and nobody knows whether Azure took it
	ResultPromised   = "promised"   // a rule will approve it that its latest change did not name
	ResultWithheld   = "withheld"   // its CloudEvent said that a rule would approve it, and none does, or not yet
	ResultMoot       = "moot"       // it was not sent: the event changed, began or ended first, or the rules changed
)

// An Approval is the result of an approval of an event.
type Approval struct {
	Result   string    `json:"result"`
	By       string    `json:"by"`               // "rule 1", rule "its name", or who asked for it by hand
	Decided  time.Time `json:"decided"`          // UTC
	After    float64   `json:"after"`            // seconds from when the event was first seen to the answer
	Attempts int       `json:"attempts"`         // to send it
	Status   string    `json:"status,omitempty"` // what Azure answered, such as "200 OK"
	Sink     string    `json:"sink,omitempty"`   // that failed, if it is withheld for that
	Error    string    `json:"error,omitempty"`  // why not
	// NotYet means that it is withheld for a reason that may pass, and approved if that does in time.
	NotYet bool `json:"notYet,omitempty"`
}

// Wrap makes the CloudEvent of a change. It returns an invalid one together with its error.
func Wrap(c imds.Change, in Circumstances) (event.Event, error) {
	e, o := c.Event, in.Observer
	ce := event.New(event.CloudEventsVersionV1)
	id := ChangeID(c)
	switch {
	case c.Kind == imds.Approved:
		id += "-" + strconv.Itoa(in.Repeat+1)
	case in.Repeat > 0:
		id += "-r" + strconv.Itoa(in.Repeat+1)
	}
	ce.SetID(id)
	ce.SetType(EventPrefix + string(c.Kind))
	if in.Source == "" {
		in.Source = source(o, true, in.Host)
	}
	ce.SetSource(in.Source)
	ce.SetSubject(e.ID)
	ce.SetTime(in.Time.UTC())
	ce.SetDataSchema(DataSchema)

	set := func(name, value string) {
		value = attribute(value)
		if value != "" {
			ce.SetExtension(name, value)
		}
	}
	set("azeventtype", e.Type)
	set("azeventstatus", e.Status)
	set("azeventsource", e.Source)
	set("azresources", joinNames(e.Resources))
	set("observer", o.Name)
	ce.SetExtension("azduration", int32(e.Duration))
	if !e.NotBefore.IsZero() {
		ce.SetExtension("aznotbefore", types.Timestamp{Time: e.NotBefore})
	}
	setSeverity(&ce, severity(c))

	d := Data{
		Change: c.Kind, Outcome: in.End.Outcome, NotBefore: e.NotBefore,
		Announced: in.Announced.UTC(), Begun: in.Begun.UTC(),
		WhileAway: in.WhileAway, NotEarlierThan: in.NotEarlierThan.UTC(),
		Back: in.End.Back.UTC(), LongestPause: math.Round(in.End.LongestPause.Seconds()*10) / 10,
		DocumentIncarnation: IncarnationJSON(in.Incarnation), Approval: in.Approval, Observer: o,
	}
	if o.Name != "" && len(e.Resources) > 0 {
		self := e.Affects(o.Name)
		d.AffectsSelf = &self
		ce.SetExtension("azself", self)
	}
	if c.Kind != imds.Started && c.Kind != imds.Vanished {
		d.Rules = in.Rules
	}
	if c.Kind != imds.Vanished {
		d.Asked = in.Asked
	}
	if c.Kind == imds.Reminder {
		d.Lead = LeadText(c.Lead)
	}
	cut := make(map[string]bool)
	d.Event = cutStrings(e.Raw, cut)
	if c.Kind == imds.Updated {
		d.Changed = c.Fields
	}
	if c.Previous != nil {
		d.Previous = cutStrings(c.Previous.Raw, cut)
	}
	d.Truncated = slices.Sorted(maps.Keys(cut))
	setData(&ce, d)
	return ce, ce.Validate()
}

// WrapBridge makes a CloudEvent about the bridge itself. data is its data without the observer. No two CloudEvents of a
// bridge may have the same time and type, because their ids would be equal.
func WrapBridge(typ string, data map[string]any, o imds.Observer, at time.Time) (event.Event, error) {
	ce := event.New(event.CloudEventsVersionV1)
	at = at.UTC()
	kind := KindOf(typ)
	ce.SetID(idToken(cmp.Or(o.VMID, o.Name, unknownHost)) + "-" + strings.ReplaceAll(kind, ".", "-") + "-" +
		at.Format(timestampInIDs) + fmt.Sprintf("%09dZ", at.Nanosecond()))
	ce.SetType(typ)
	ce.SetSource(source(o, false, ""))
	if s := attribute(o.Name); s != "" {
		ce.SetSubject(s)
		ce.SetExtension("observer", s)
	}
	ce.SetTime(at)
	ce.SetDataSchema(DataSchema)
	switch typ {
	case SinkBlocked, DeliveryDeadLettered, IMDSUnavailable, OutboxUnwritable:
		setSeverity(&ce, severityError)
	case ObserverSilent:
		setSeverity(&ce, severityWarn)
	default:
		setSeverity(&ce, severityInfo)
	}
	full := map[string]any{"change": kind, "observer": o}
	maps.Copy(full, data)
	setData(&ce, full)
	return ce, ce.Validate()
}

// Decode decodes a CloudEvent in the JSON format, whoever wrote it. It doesn't validate it. The SDK panics on some JSON
// that is no CloudEvent, such as data_base64 with a number of one digit.
func Decode(text []byte) (ce event.Event, err error) {
	defer func() {
		if p := recover(); p != nil {
			ce, err = event.Event{}, fmt.Errorf("the CloudEvents SDK can't decode it: %v", p)
		}
	}()
	err = json.Unmarshal(text, &ce)
	return ce, err
}

// KindOf returns the part of a CloudEvent's type that says what happened, such as started or sink.blocked.
func KindOf(typ string) string {
	for _, p := range []string{EventPrefix, BridgePrefix, prefix} {
		if kind, ours := strings.CutPrefix(typ, p); ours {
			return kind
		}
	}
	return typ
}

// IncarnationJSON encodes an incarnation as a number if it is one, as Azure does, else as a string; nil for none.
func IncarnationJSON(s string) json.RawMessage {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return strconv.AppendInt(nil, n, 10)
	}
	if s == "" {
		return nil
	}
	return imds.CompactJSON(s)
}

// setData bypasses the SDK's codec, which escapes data for HTML.
func setData(ce *event.Event, data any) {
	ce.SetDataContentType(event.ApplicationJSON)
	ce.DataEncoded = imds.CompactJSON(data)
}

// source is the CloudEvents source: for Azure's events the scale set if the VM is in one, so that all its VMs say the
// same, else the VM. host names a VM that has no name yet.
func source(o imds.Observer, shared bool, host string) string {
	path := o.ResourceID
	if shared && o.ScaleSet != "" && o.SubscriptionID != "" && o.ResourceGroup != "" {
		path = "/subscriptions/" + o.SubscriptionID + "/resourceGroups/" + o.ResourceGroup +
			"/providers/Microsoft.Compute/virtualMachineScaleSets/" + o.ScaleSet
	}
	if path == "" {
		return "urn:forewarn:" + url.PathEscape(cmp.Or(o.Name, host, unknownHost))
	}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return azureManagement + "/" + strings.Join(parts, "/")
}

// attribute makes a string fit for an attribute of a CloudEvent.
func attribute(s string) string { return imds.Printable(s, maxAttribute) }

// joinNames joins as many names as fit into an attribute with commas. It cuts no name, because the rest
// could be the name of another VM; only a first one that is too long by itself.
func joinNames(names []string) string {
	s := strings.Join(names, ",")
	if len(s) > maxAttribute {
		if i := strings.LastIndexByte(s[:maxAttribute+1], ','); i > 0 {
			return s[:i]
		}
	}
	return s
}

// cutStrings shortens every string in the compact JSON object raw to 16 KiB, and adds the top-level fields in which it
// did so to cut. Everything else stays as Azure sent it, including the order of keys, except that lone surrogates
// become U+FFFD, and a number that no float64 holds a string, because few programs could read it.
func cutStrings(raw json.RawMessage, cut map[string]bool) json.RawMessage {
	var all any
	if len(raw) <= maxString && !bytes.Contains(raw, []byte(`\u`)) && json.Unmarshal(raw, &all) == nil {
		return raw
	}
	var out bytes.Buffer
	var field string // the top-level field that we are in
	depth := 0       // the number of objects and arrays that we are in
	for len(raw) > 0 {
		if raw[0] != '"' {
			n, quote := 1, ""
			switch raw[0] {
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
				n = bytes.IndexAny(raw, ",]}")
				if json.Unmarshal(raw[:n], &all) != nil {
					quote = `"`
				}
			}
			out.WriteString(quote + string(raw[:n]) + quote)
			raw = raw[n:]
			continue
		}
		end := stringEnd(raw)
		var text string
		_ = json.Unmarshal(raw[:end], &text) // cannot fail: raw was decoded before
		raw = raw[end:]
		short := imds.CutText(text, maxString)
		if depth == 1 && bytes.HasPrefix(raw, []byte(":")) {
			field = short
		}
		if short != text {
			cut[field] = true
		}
		out.Write(imds.CompactJSON(short))
	}
	return out.Bytes()
}

// stringEnd returns the length of the JSON string that b starts with.
func stringEnd(b []byte) int {
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// Fields returns what filters and templates see of a CloudEvent: every attribute by its name, data as decoded JSON, and
// change, severity, duration, notice (seconds from its time to NotBefore; 0 if started or unknown), resources and
// first. Every name is always present, with its zero value if the CloudEvent lacks it.
func Fields(ce event.Event) map[string]any {
	f := map[string]any{
		"specversion": ce.SpecVersion(), "id": ce.ID(), "source": ce.Source(), "type": ce.Type(), "subject": ce.Subject(),
		"time": ce.Time().Format(time.RFC3339Nano), "datacontenttype": ce.DataContentType(), "dataschema": ce.DataSchema(),
		"azeventtype": "", "azeventstatus": "", "azeventsource": "", "azresources": "", "aznotbefore": "",
		"azself": false, "azduration": -1, "observer": "", "severitytext": "", "severitynumber": 0,
		"data": map[string]any{}, "resources": []string{}, "notice": 0.0, "first": false,
	}
	for name, v := range ce.Extensions() {
		switch value := v.(type) {
		case int32:
			v = int(value)
		case types.Timestamp:
			v = value.String()
		}
		// A stranger's attribute may have the name of a field, but not its type, on which templates rely.
		if own, ours := f[name]; !ours || reflect.TypeOf(v) == reflect.TypeOf(own) {
			f[name] = v
		}
	}
	f["severity"], f["duration"] = f["severitynumber"], f["azduration"]
	f["change"] = KindOf(ce.Type())

	var data map[string]any
	if json.Unmarshal(ce.Data(), &data) != nil || data == nil { // JSON's null is no error
		return f
	}
	f["data"] = data
	azure, _ := data["event"].(map[string]any)
	if list, ok := azure["Resources"].([]any); ok {
		names := make([]string, 0, len(list))
		for _, v := range list {
			if s, ok := v.(string); ok {
				names = append(names, strings.TrimPrefix(s, "_")) // as in imds.Event
			}
		}
		f["resources"] = names
	}
	notBefore, _ := f["aznotbefore"].(string)
	if at, err := time.Parse(time.RFC3339, notBefore); err == nil && f["azeventstatus"] != imds.StatusStarted {
		f["notice"] = max(0, at.Sub(ce.Time()).Seconds())
	}
	f["first"] = f["change"] == string(imds.Scheduled) || f["change"] == string(imds.Started) && data["previous"] == nil
	return f
}

// ChangeOf decodes a change from its CloudEvent, without Change.Fields.
func ChangeOf(ce event.Event) imds.Change {
	c := imds.Change{Kind: imds.ChangeKind(strings.TrimPrefix(ce.Type(), EventPrefix))}
	var d Data
	if json.Unmarshal(ce.Data(), &d) != nil {
		return c
	}
	c.Event, _ = imds.UnmarshalEvent(d.Event)
	if previous, err := imds.UnmarshalEvent(d.Previous); err == nil { // only an updated one has one
		c.Previous = &previous
	}
	return c
}
