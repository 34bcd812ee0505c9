package sinks

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/templates"
)

// MessageDocs explains the names that the templates of a message can use beside those of cloudevent.Fields.
var MessageDocs = map[string]string{
	"now":          "when the message is made, RFC 3339; it differs from time when the message is late",
	"zone":         "the setting timezone, such as Europe/Berlin",
	"left":         "seconds from now to aznotbefore, 0 when begun or unknown",
	"age":          "how late the message is, in seconds: since time or, with a lead, since it was due; 0 if it is repeated",
	"attempt":      "1 for the first attempt to send it",
	"muted":        "who muted the sink, if the message waited for the end of a mute; else empty",
	"mutedUntil":   "when that mute ended, RFC 3339; else empty",
	"mutedFor":     "why it was muted; else empty",
	"missed":       "older changes that this message stands for, oldest first, each with change and time",
	"test":         "whether it is a message of forewarn send; change is then that of the sample",
	"announced":    "when the observer first saw the event, RFC 3339; empty about forewarn itself",
	"begun":        "when the observer first saw that it has begun, RFC 3339; empty before that",
	"fallbackFor":  "a map if another sink could not deliver it: sink (its name), kind, and error (what went wrong); else nil",
	"forAll":       "whether the message speaks for all VMs of the event, as on a relay or with vms: leader or all",
	"endFollows":   "whether the sink gets a message when the event ends",
	"onlyIfLonger": "whether another message follows only if something changes or the pause lasts clearly longer than Azure says",
	"told":         "whether the sink was told of the event before this message, as far as that is known",
	"incidentKey":  "the same in all messages about one event, or about one trouble; another for each test",
	"resolved":     "whether the event or the trouble that incidentKey names is over",
	"runbook":      "the link that runbook_url gives; else empty",
	"cloudevent":   "the whole CloudEvent, for {{json .cloudevent}}",
	"group":        "the fields of every CloudEvent that the message stands for, the first of which is this one; several if it is a group: then id and incidentKey are the group's, severity is the highest, and resolved says that all of it is over",
}

// MessageFields returns the fields for the templates of a message about one delivery.
func MessageFields(d delivery.Delivery, zone *time.Location, now time.Time) map[string]any {
	return (&Host{Zone: zone}).fields([]delivery.Delivery{d}, now)
}

// heldByLead are the changes that wait for the lead of a sink; what came of an approval waits with them.
var heldByLead = []any{string(imds.Scheduled), string(imds.Updated), string(imds.Approved)}

// fields returns the fields for the templates of a message: cloudevent.Fields, and those that MessageDocs explains. The
// batch is one delivery or a group; the fields at the top are those of its first delivery, but for an id of the group, its
// highest severity, and whether all of it is resolved.
func (h *Host) fields(batch []delivery.Delivery, now time.Time) map[string]any {
	group := make([]map[string]any, len(batch))
	for i, d := range batch {
		group[i] = messageFields(d, h.Zone, now)
		if change := group[i]["change"]; h.Lead > 0 && slices.Contains(heldByLead, change) {
			group[i]["age"] = max(0, min(now.Sub(d.Event.Time()), now.Sub(d.NotBefore.Add(-h.Lead))).Seconds())
		}
		if d.Repeated {
			group[i]["age"] = 0.0
		}
		group[i]["forAll"] = h.ForAll
		group[i]["endFollows"], group[i]["onlyIfLonger"] = !h.NoEnd, false
		group[i]["told"] = h.toldBefore(d, group[i])
		if d.FallbackFor != nil {
			group[i]["fallbackFor"].(map[string]any)["kind"] = h.KindOf[d.FallbackFor.Sink]
		}
	}
	f := maps.Clone(group[0])
	f["group"] = group
	if len(group) == 1 {
		return f
	}
	f["id"] = batchID(batch)
	f["incidentKey"] = f["id"]
	f["resolved"] = !slices.ContainsFunc(group, func(one map[string]any) bool { return one["resolved"] != true })
	worst := slices.MaxFunc(group, func(a, b map[string]any) int { return cmp.Compare(severity(a), severity(b)) })
	for _, name := range []string{"severity", "severitynumber", "severitytext"} {
		f[name] = worst[name]
	}
	return f
}

// severity returns the severity that the fields of a CloudEvent have; 0 for none.
func severity(f map[string]any) int {
	number, _ := f["severitynumber"].(int)
	return number
}

// batchID returns the id of the CloudEvent that a message is about; of a group one that depends only on the ids of its
// CloudEvents, in any order: on a later attempt it may be another one.
func batchID(batch []delivery.Delivery) string {
	if len(batch) == 1 {
		return batch[0].Event.ID()
	}
	h := sha256.New()
	for _, id := range sorted(batch, event.Event.ID) {
		h.Write([]byte(id + "\n"))
	}
	return "group-" + hex.EncodeToString(h.Sum(nil)[:12])
}

// sorted returns what of returns for the CloudEvents of a batch, sorted.
func sorted(batch []delivery.Delivery, of func(event.Event) string) (all []string) {
	for _, d := range batch {
		all = append(all, of(d.Event))
	}
	slices.Sort(all)
	return all
}

// toldBefore reports whether the sink was told of the event before this delivery, whose fields are f. It was not if the
// delivery is the first change, or stands for older ones, or comes in another sink's place.
func (h *Host) toldBefore(d delivery.Delivery, f map[string]any) bool {
	return f["first"] != true && len(d.Missed) == 0 && d.FallbackFor == nil && !(h.NoStart && f["change"] == "started")
}

// isShort reports whether the event is a Freeze that is known to last at most 10 s. Nobody has to act on it.
func isShort(f map[string]any) bool {
	length, known := f["duration"].(int)
	return known && f["azeventtype"] == "Freeze" && length >= 0 && length <= 10
}

// isShortPause reports whether a message is about one such event: people get one message about it where the sink can tell.
func isShortPause(f map[string]any) bool {
	return len(f["group"].([]map[string]any)) == 1 && isShort(f)
}

// saysNothingNew reports whether who was told of a short pause needs no further message: it has begun, or is over and did
// not last clearly longer than Azure said.
func saysNothingNew(f map[string]any) bool {
	if !isShortPause(f) {
		return false
	}
	data, _ := f["data"].(map[string]any)
	pause, _ := data["longestPause"].(float64)
	asSaid := pause <= 2*float64(f["duration"].(int))+2
	return f["change"] == string(imds.Started) || f["change"] == string(imds.Vanished) && asSaid
}

// messageFields returns the fields about one delivery, without group.
func messageFields(d delivery.Delivery, zone *time.Location, now time.Time) map[string]any {
	if zone == nil {
		zone = time.UTC
	}
	f := cloudevent.Fields(d.Event)
	for _, name := range []string{"time", "data"} {
		f[name] = mapTexts(f[name], microseconds, "event", "previous") // what Azure sent stays as it is
	}
	f["test"] = d.Event.Type() == cloudevent.BridgeTest
	data := f["data"].(map[string]any)
	if change, ok := data["change"].(string); ok {
		f["change"] = change
	}
	if data["event"] == nil { // about the bridge; fields below event are then missing, which is no error
		data["event"] = map[string]any{}
	}
	seen := map[string]string{} // when a change was seen first; the sink may have been owed it only later
	seen["scheduled"], _ = data["announced"].(string)
	seen["started"], _ = data["begun"].(string)
	missed := []map[string]any{}
	for _, m := range d.Missed {
		if imds.ChangeKind(m.Change).OfAzure() { // what came of an approval, for example, is not known here
			at := cmp.Or(seen[m.Change], m.Time.UTC().Format(time.RFC3339))
			missed = append(missed, map[string]any{"change": m.Change, "time": at})
		}
	}
	if !d.NotBefore.IsZero() && f["azeventstatus"] != "Started" { // it may have moved before the lead came
		f["aznotbefore"] = d.NotBefore.UTC().Format(time.RFC3339)
	}
	left := 0.0
	notBefore, _ := f["aznotbefore"].(string)
	if at, err := time.Parse(time.RFC3339, notBefore); err == nil && f["azeventstatus"] != "Started" {
		left = max(0, at.Sub(now).Seconds())
	}
	f["now"], f["zone"], f["left"] = now.UTC().Format(time.RFC3339), zone.String(), left
	f["age"] = max(0, now.Sub(d.Event.Time()).Seconds())
	f["attempt"], f["missed"] = d.Attempt, missed
	f["muted"], f["mutedUntil"], f["mutedFor"] = "", "", ""
	if d.Mute != nil {
		f["muted"], f["mutedFor"] = d.Mute.By, d.Mute.Reason
		f["mutedUntil"] = cmp.Or(d.Mute.Ended, d.Mute.Until).UTC().Format(time.RFC3339)
	}
	f["fallbackFor"] = map[string]any(nil)
	if d.FallbackFor != nil {
		f["fallbackFor"] = map[string]any{"sink": d.FallbackFor.Sink, "kind": "", "error": reasonForPeople(d.FallbackFor.Error)}
	}
	f["incidentKey"], f["resolved"] = incidentKey(f), resolved(d.Event.Type())
	f["runbook"] = ""
	f["announced"], f["begun"] = seen["scheduled"], seen["started"]
	whole, err := d.Event.MarshalJSON()
	if err != nil { // it was valid when it was committed
		whole = []byte("null")
	}
	f["cloudevent"] = json.RawMessage(whole)
	return f
}

// reasonForPeople returns in a few words why another sink failed. The error itself may quote that sink's destination,
// which this sink's readers must not see, so only what is known to be harmless is shown of it.
func reasonForPeople(why string) string {
	cause := ""
	if found := harmlessCause().FindStringSubmatch(why); found != nil {
		cause = ": " + found[1] + found[2] + found[3]
	}
	switch {
	case strings.HasPrefix(why, delivery.ErrBlocked.Error()) && cause != "":
		return "refuses" + cause
	case strings.HasPrefix(why, delivery.ErrBlocked.Error()):
		return "accepts nothing until somebody mends it"
	case strings.HasPrefix(why, delivery.ErrRejected.Error()):
		return "refused it" + cause
	case strings.HasPrefix(why, "no answer"):
		return "didn't answer"
	}
	return "couldn't deliver it" + cause
}

// harmlessCause finds in an error what says nothing about the destination: Slack's name for it, an HTTP status, or that
// nothing listened.
var harmlessCause = onceNeeded(`^(?:blocked: |rejected: )?(?:Slack answered ([a-z_]{1,64})\b|` +
	`(\d{3}(?: [A-Z][A-Za-z]*){0,4}) from |nothing listens at .* \((connection refused)\)$)`)

// mapTexts applies change to every text in v, in place, and returns v. It leaves alone what has one of the names in
// except.
func mapTexts(v any, change func(string) string, except ...string) any {
	switch v := v.(type) {
	case string:
		return change(v)
	case []string:
		for i := range v {
			v[i] = change(v[i])
		}
	case []any:
		for i := range v {
			v[i] = mapTexts(v[i], change, except...)
		}
	case map[string]any:
		for name := range v {
			if !slices.Contains(except, name) {
				v[name] = mapTexts(v[name], change, except...)
			}
		}
	}
	return v
}

// microseconds cuts a time to at most six fractional digits, and returns any other text unchanged. Newtonsoft.Json for
// .NET, which Azure's own services use, does not recognise a time with more.
func microseconds(text string) string {
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil && t.Nanosecond()%1000 != 0 {
		return t.Truncate(time.Microsecond).Format(time.RFC3339Nano)
	}
	return text
}

// execute returns what the template writes for fields.
func execute(t *templates.Template, fields map[string]any) (string, error) {
	var b strings.Builder
	err := t.Execute(&b, fields)
	return b.String(), err
}

// A runbook makes the link to a runbook for each message from a template. The zero value makes none.
type runbook struct{ template *templates.Template }

// key returns the templateKey of the setting runbook_url.
func (r *runbook) key(text string, file Path) templateKey {
	try := func(f map[string]any) error { _, err := r.link(f); return err }
	return templateKey{"runbook_url", text, file, nil, templates.Parse, try, &r.template}
}

// put sets the field runbook. If the template fails, it logs that and the field is empty.
func (r runbook) put(f map[string]any, log *slog.Logger) {
	link, err := r.link(f)
	if err != nil {
		log.Warn("runbook link left out", "err", err)
	}
	f["runbook"] = link
}

const maxLink = 2000 // characters

// link returns the link for a message, or "". There is none if the template uses an empty field, because such a link
// would lead nowhere: link detects that by executing the template again with a placeholder in each empty field.
func (r runbook) link(f map[string]any) (string, error) {
	if r.template == nil {
		return "", nil
	}
	text, err := execute(r.template, f)
	if err != nil {
		return "", err
	}
	const placeholder = "emptyfield"
	filled := maps.Clone(f)
	for name, v := range f {
		if v == "" {
			filled[name] = placeholder
		}
	}
	with, err := execute(r.template, filled)
	if err != nil || with != text && strings.ReplaceAll(with, placeholder, "") == text {
		return "", err
	}
	text = strings.TrimSpace(text)
	if text == "" || strings.Contains(text, "<no value>") {
		return "", nil
	}
	link := encodeURL(text)
	u, err := url.Parse(link)
	if err != nil || u.Hostname() == "" || !oneOf(u.Scheme, "http", "https") || len(link) > maxLink {
		return "", fmt.Errorf("%.200q is not a URL; expected one such as https://example.com/runbook", text)
	}
	return link, nil
}

// encodeURL percent-encodes the bytes that a URL cannot hold. Existing percent-encoding stays.
func encodeURL(s string) string {
	return percentEncode(s, func(i int) bool {
		_, err := url.PathUnescape(s[i:min(len(s), i+3)])
		return inToken(rune(s[i])) || strings.IndexByte(".~:/?#[]@!$&'()*+,;=", s[i]) >= 0 || s[i] == '%' && err == nil
	})
}
