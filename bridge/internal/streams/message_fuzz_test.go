package streams

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// Whoever may write to the stream can put anything into it. What is taken for a CloudEvent is one: it has an id, a record
// and a delivery, can be written down as JSON, and is read back as the same. What isn't is refused with a reason.
func FuzzMessage(f *testing.F) {
	const json1 = `{"specversion":"1.0","id":"A-scheduled","source":"urn:x","type":"dev.forewarn.scheduledevent.scheduled.v1",` +
		`"subject":"A","time":"2026-11-23T10:00:00Z","azduration":5,"azself":true,"data":{"change":"scheduled","event":` +
		`{"EventId":"A","EventType":"Reboot","EventStatus":"Scheduled","Resources":["vm-0"],"NotBefore":""}}}`
	f.Add("forewarn.vm-0", "application/cloudevents+json", "", "", "", "", []byte(json1))
	f.Add("forewarn.relay.ops=2E1.A-scheduled", "application/cloudevents+json; charset=utf-8", "mail", "no%20answer", "", "", []byte(json1))
	f.Add("forewarn.vm-0", "application/cloudevents-batch+json", "", "", "", "", []byte("["+json1+"]"))
	f.Add("forewarn.vm-0", "", "", "", "time", "2026-11-23T10:00:00Z", []byte(`{"event":{"Resources":["vm-0"]}}`))
	f.Add("forewarn.vm-0", "", "", "", "datacontenttype", "application/octet-stream", []byte("\xff\x00"))
	f.Add("forewarn.vm-0", "", "", "", "azduration", "99999999999", []byte(nil))
	f.Add("forewarn.relay.=ZZ.x", "", "x", "%zz", "type", "%22dev.forewarn.bridge.%f0", []byte(`{"vms":["a",1]}`))
	f.Add("forewarn.relay.=ZZ.x", "", "mail", "%zz", "zone", `"a%20b"`, []byte(`{}`))
	f.Add("forewarn.vm-0", "application/cloudevents+json", "", "", "", "", []byte(`{"specversion":"1.0","id":"A","source":"%zz\\","type":"t","time":"noon"}`))
	f.Add("forewarn.vm-0", "application/cloudevents+json", "", "", "", "", []byte(`{"specversion":"1.0","id":"x","source":"/x","type":"t","data_base64":1}`))
	f.Add("forewarn.vm-0", "application/cloudevents+json", "", "", "", "", []byte(`{"datacontentencoding":"","specversion":"0.3","id":"x","source":"/x","type":"t"}`))
	stored := time.Date(2026, 11, 23, 10, 0, 1, 0, time.UTC)
	f.Fuzz(func(t *testing.T, subject, content, of, why, attribute, value string, data []byte) {
		header := nats.Header{}
		if content != "" {
			header.Set("Content-Type", content)
		} else {
			header = nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"A-scheduled"}, "ce-source": {"urn:x"},
				"ce-type": {"dev.forewarn.scheduledevent.scheduled.v1"}}
		}
		header[HeaderFallbackFor], header[HeaderFallbackError] = []string{of}, []string{why}
		header["ce-"+attribute] = []string{value}
		m, err := newMessage(7, stored, header, subject, data)
		if err != nil {
			if err.Error() == "" || len(err.Error()) > 4<<10+2*len(data) {
				t.Errorf("refused with %q", err)
			}
			return
		}
		item := m.Item()
		switch {
		case m.CE.ID() == "" || m.RecordID() == "" || m.DeliveryID() == "" || item.Message.ID != m.CE.ID() || item.Message.Seq != 7:
			t.Errorf("it has id %q, record %q, delivery %q, and is delivered as %+v", m.CE.ID(), m.RecordID(), m.DeliveryID(), item.Message)
		case m.FallbackFor != nil && (m.OnlySink == "" || m.FallbackFor.Sink != of):
			t.Errorf("it stands for what %+v could not deliver, and is for %q", m.FallbackFor, m.OnlySink)
		}
		whole, err := json.Marshal(m.CE)
		if err != nil {
			t.Fatalf("it can't be written down: %v", err)
		}
		again, err := newMessage(7, stored, nats.Header{"Content-Type": {"application/cloudevents+json"}}, subject, whole)
		if err != nil {
			t.Fatalf("as JSON it is refused: %v\n%s", err, whole)
		}
		if again.CE.ID() != m.CE.ID() || again.CE.Type() != m.CE.Type() || again.RecordID() != m.RecordID() || again.OnlySink != m.OnlySink ||
			again.Change.Kind != m.Change.Kind || !again.NotBefore().Equal(m.NotBefore()) {
			t.Errorf("as JSON it is %+v, was %+v\n%s", again, m, whole)
		}
	})
}

// A token is one token of a subject, whatever the text; a text that isn't overlong comes back from it.
func FuzzToken(f *testing.F) {
	f.Add("vm-0.prod")
	f.Add("A=2E> *\x00\u00e9")
	f.Fuzz(func(t *testing.T, text string) {
		got := Token(text)
		if len(got) > 300 || strings.ContainsFunc(got, func(r rune) bool {
			return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_=", r))
		}) {
			t.Errorf("Token(%q) = %q", text, got)
		}
		if len(text) <= 60 && FromToken(got) != text {
			t.Errorf("untoken(%q) = %q, want %q", got, FromToken(got), text)
		}
	})
}
