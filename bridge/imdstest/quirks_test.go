package imdstest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A quirk is something that the real service was seen to do, how to bring it about, and what a VM then sees.
type quirk struct {
	says     string
	options  Options
	scenario string   // the steps of one, played from the beginning
	control  []string // calls of the control API: method, path and body
	sees     []sight
}

// A sight is one request and what is seen of its answer: the status, and the header and body as text. A status of 0 is
// no answer at all.
type sight struct {
	after  time.Duration // since the one before
	asks   string        // method and target; GET of the newest document when ""
	header []string      // by pairs, beside Metadata
	body   string
	status int
	shows  string // a regular expression
}

const (
	postEvents = "POST /metadata/scheduledevents?api-version=2020-07-01"
	approveA   = `{"StartRequests":[{"EventId":"A"}]}`
	tokenOfVM  = "GET /metadata/identity/oauth2/token?api-version=2018-02-01&resource=x"
	reboot     = `POST /events {"EventId":"A","EventType":"Reboot"}`
	oneOfEach  = `{"EventId":"A","EventStatus":"Scheduled","EventType":"Reboot","ResourceType":"VirtualMachine",` +
		`"Resources":\["vm_0"\],"NotBefore":"Sat, 01 Jan 2000 00:15:00 GMT"`
)

func of(version string) string { return "GET /metadata/scheduledevents?api-version=" + version }

var quirks = []quirk{
	// api-versions
	{says: "the first preview has its version in the path, underscores before names, six fields, and asks for no header",
		control: []string{reboot},
		sees: []sight{{asks: "GET /metadata/latest/scheduledevents", header: []string{"Metadata", ""}, status: 200,
			shows: strings.Replace(oneOfEach, "vm_0", "_vm_0", 1) + `}\]}$`}}},
	{says: "the preview's api-version too, for GET and POST",
		control: []string{reboot},
		sees: []sight{
			{asks: of("2017-03-01"),
				header: []string{"Metadata", ""},
				status: 200, shows: strings.Replace(oneOfEach, "vm_0", "_vm_0", 1) + `}\]}$`},
			{asks: "POST /metadata/scheduledevents?api-version=2017-03-01",
				header: []string{"Metadata", ""}, body: approveA, status: 200},
		}},
	{says: "the old path takes a newer version in its query", control: []string{reboot},
		sees: []sight{{asks: "GET /metadata/latest/scheduledevents?api-version=2017-08-01",
			status: 200, shows: oneOfEach + `}\]}$`}}},
	{says: "2017-08-01 has plain names and wants the header", control: []string{reboot},
		sees: []sight{
			{asks: of("2017-08-01"), status: 200, shows: oneOfEach + `}\]}$`},
			{asks: of("2017-08-01"),
				header: []string{"Metadata", ""}, status: 400, shows: "Required metadata header not specified"},
		}},
	{says: "Preempt is shown from 2017-11-01 on", control: []string{`POST /events {"EventType":"Preempt"}`},
		sees: []sight{{asks: of("2017-08-01"),
			status: 200, shows: `"Events":\[\]`}, {asks: of("2017-11-01"), status: 200, shows: `"Preempt"`}}},
	{says: "Terminate is shown from 2019-01-01 on, and the number of the document tells that something is hidden",
		control: []string{`POST /events {"EventType":"Terminate"}`},
		sees: []sight{{asks: of("2017-11-01"), status: 200, shows: `{"DocumentIncarnation":2,"Events":\[\]}`},
			{asks: of("2019-01-01"), status: 200, shows: `"Terminate"`}}},
	{says: "2019-04-01 adds Description, 2019-08-01 EventSource, 2020-07-01 DurationInSeconds, in Azure's order",
		control: []string{reboot},
		sees: []sight{
			{asks: of("2019-01-01"), status: 200, shows: oneOfEach + `}\]}$`},
			{asks: of("2019-04-01"), status: 200, shows: oneOfEach + `,"Description":""}\]}$`},
			{asks: of("2019-08-01"), status: 200, shows: oneOfEach + `,"Description":"","EventSource":"Platform"}\]}$`},
			{asks: of("2020-07-01"),
				status: 200, shows: oneOfEach + `,"Description":"","EventSource":"Platform","DurationInSeconds":-1}\]}$`},
		}},
	{says: "a version of the rest of the service is refused",
		sees: []sight{{asks: of("2021-12-13"), status: 400, shows: `"newest-versions":\["2024-07-09"`},
			{asks: of("2024-07-10"), status: 404}, {asks: of("2099-01-01"), status: 404}, {asks: of("newest"), status: 400}}},
	{says: "a host refuses a documented version and answers to an older one",
		control: []string{`PUT /faults {"newestVersion":"2017-08-01"}`},
		sees: []sight{
			{asks: of("2017-11-01"), status: 400, shows: `"newest-versions":\["2017-08-01","2017-03-01"\]`},
			{status: 400},
			{asks: of("2017-08-01"), status: 200},
		}},
	{says: "GET and POST may use different versions", control: []string{reboot},
		sees: []sight{{status: 200}, {asks: "POST /metadata/scheduledevents?api-version=2019-08-01", body: approveA,
			status: 200},
			{status: 200, shows: `"Started"`}}},
	{says: "a recommendation is neither scheduled nor started, has no date, and approving it does nothing",
		control: []string{`POST /events {"EventId":"A","EventType":"SpotRebalanceRecommendation","EventStatus":"Advisory"}`},
		sees: []sight{
			{asks: of("2024-07-09"), status: 200,
				shows: `"EventStatus":"Advisory","EventType":"SpotRebalanceRecommendation".*"NotBefore":"".*"DurationInSeconds"`},
			{asks: of("2020-07-01"), status: 200, shows: `"Events":\[\]`},
			{asks: postEvents, body: approveA, status: 200},
			{asks: of("2024-07-09"), after: time.Hour, status: 200, shows: `{"DocumentIncarnation":2,.*"Advisory"`},
		}},

	// headers, paths, verbs
	{says: "the header's value may be written True",
		sees: []sight{{header: []string{"Metadata", "True"}, status: 200}}},
	{says: "POST wants the header too",
		sees: []sight{{asks: postEvents,
			header: []string{"Metadata", ""}, body: approveA, status: 400, shows: "Required metadata header"}}},
	{says: "a forwarded request is refused",
		sees: []sight{{header: []string{"X-Forwarded-For", "10.0.0.4"},
			status: 400, shows: `{"error":"Bad request\. .*X-Forwarded-For`}}},
	{says: "a parameter given twice is refused, one that is not known is harmless, and there is no text form",
		sees: []sight{
			{asks: of("2020-07-01") + "&api-version=2020-07-01", status: 400, shows: "more than once"},
			{asks: of("2020-07-01") + "&format=json", status: 200},
			{asks: of("2020-07-01") + "&format=text", status: 200, shows: `(?s)application/json.*"Events":\[\]`},
		}},
	{says: "a path may be in any case",
		sees: []sight{{asks: "GET /metadata/scheduledEvents?api-version=2017-08-01", status: 200}}},
	{says: "an answer has the service's headers",
		sees: []sight{{status: 200,
			shows: `(?s)Content-Length: 37\r\nContent-Type: application/json; charset=utf-8\r\nDate: Sat, 01 Jan 2000.*` +
				`Server: IMDS/150.*X-Ms-Request-Id: [0-9a-f-]{36}`}}},
	{says: "a missing api-version is refused with those there are",
		sees: []sight{{asks: "GET /metadata/scheduledevents",
			status: 400, shows: `{"error":"Bad request\. api-version is invalid or was not specified` +
				` in the request\. For more information refer to aka\.ms/azureimds","newest-versions":\["2024-07-09","2020-07-01","2019-08-01"\]}$`}}},
	{says: "older hosts say so in other words",
		control: []string{`PUT /faults {"status":400,"body":"{\"error\":\"Bad request. api-version was not specified in the request\",\"newest-versions\":[\"2017-08-01\"]}"}`},
		sees: []sight{{status: 400,
			shows: `(?s)application/json.*api-version was not specified in the request","newest-versions":\["2017-08-01"\]}$`}}},
	{says: "an unknown path is not found and a wrong verb not allowed, in plain text",
		sees: []sight{
			{asks: "GET /metadata/none",
				status: 404, shows: `(?s)text/plain.*API is not found: Path="/metadata/none", Method="GET"$`},
			{asks: "PUT /metadata/scheduledevents?api-version=2020-07-01", status: 405,
				shows: `(?s)text/plain.*Http method is not allowed: Path="/metadata/scheduledevents"$`},
		}},
	{says: "the list of versions needs the header and no version, and is that of the rest of the service",
		sees: []sight{
			{asks: "GET /metadata/versions", status: 200, shows: `{"apiVersions":\["2017-03-01",.*"2025-04-07"\]}$`},
			{asks: "GET /metadata/versions", header: []string{"Metadata", ""}, status: 400},
		}},
	{says: "the name of the VM is given as text",
		sees: []sight{{asks: "GET /metadata/instance/compute/name?api-version=2021-02-01&format=text",
			status: 200, shows: `(?s)text/plain.*\r\n\r\nvm_0$`}}},
	{says: "the managed identity gives a token",
		sees: []sight{{asks: tokenOfVM, status: 200, shows: `"access_token":".+"token_type":"Bearer"`}}},

	// ETag
	{says: "the ETag is the bare number, and asking with it answers 304 without a body", control: []string{reboot},
		sees: []sight{
			{status: 200, shows: `Etag: 2\r\n`},
			{header: []string{"If-None-Match", "2"}, status: 304, shows: `\r\n\r\n$`},
			{header: []string{"If-None-Match", "0"}, status: 200, shows: `"Events"`},
		}},
	{says: "a document comes without an ETag", control: []string{`PUT /faults {"noETag":true}`},
		sees: []sight{{header: []string{"If-None-Match", "1"},
			status: 200, shows: `(?s)^Content-Length: 37\r\nContent-Type: [^\r]*\r\nDate: [^\r]*\r\nServer:`}}},
	{says: "answers are held back for a minute", control: []string{`PUT /faults {"delay":"1m"}`},
		sees: []sight{{status: 200, shows: "Date: Sat, 01 Jan 2000 00:01:00 GMT"}}},

	// failures
	{says: "no events are an empty body, as long as there are none",
		scenario: `
  - {at: 0s, fault: {empty: true}}
  - {at: 1m, fault: {}}
  - {at: 1m, schedule: {event: A}}`,
		sees: []sight{{status: 200, shows: `(?s)Content-Length: 0\r\n.*\r\n\r\n$`}, {after: 2 * time.Minute,
			status: 200, shows: `"Reboot"`}}},
	{says: "a proxy or an agent refuses the process", control: []string{`PUT /faults {"status":403}`},
		sees: []sight{{status: 403}}},
	{says: "somebody between the two has no identity to give",
		control: []string{`PUT /faults {"path":"identity","status":500,"body":"pod list is empty"}`},
		sees:    []sight{{asks: tokenOfVM, status: 500, shows: "pod list is empty$"}, {status: 200}}},
	{says: "the endpoint is not found while it is updated", control: []string{`PUT /faults {"status":404,"for":"30s"}`},
		sees: []sight{{status: 404}, {after: 30 * time.Second, status: 200}}},
	{says: "the endpoint is gone for seventy seconds",
		scenario: "\n  - {at: 10s, fault: {status: 410, for: 70s}}",
		sees: []sight{{status: 200}, {after: 11 * time.Second,
			status: 410, shows: `\r\n\r\n$`}, {after: 70 * time.Second, status: 200}}},
	{says: "the service asks for fewer requests and does not say when to come back",
		control: []string{`PUT /faults {"status":429,"times":1}`},
		sees: []sight{{status: 429,
			shows: `(?s)^Content-Length: 17\r\nContent-Type: text/plain; charset=utf-8\r\nDate: [^\r]*\r\nServer: .*Too many requests$`},
			{status: 200}}},
	{says: "the service fails, once", control: []string{`PUT /faults {"status":500,"times":1}`},
		sees: []sight{{status: 500, shows: `\r\n\r\n$`}, {status: 200}}},
	{says: "the service is maintained for three minutes and then goes on with what has changed",
		scenario: `
  - {at: 0s, fault: {status: 503, for: 3m}}
  - {at: 1m, schedule: {event: A}}`,
		sees: []sight{{status: 503}, {after: 2 * time.Minute,
			status: 503}, {after: time.Minute, status: 200, shows: `"Reboot"`}}},
	{says: "a proxy answers with a page", control: []string{`PUT /faults {"status":502,"html":true}`},
		sees: []sight{{status: 502, shows: `(?s)text/html.*<html>`}}},
	{says: "a page comes with 200", control: []string{`PUT /faults {"html":true}`},
		sees: []sight{{status: 200, shows: `(?s)text/html.*<html>`}}},
	{says: "a request is never answered", control: []string{`PUT /faults {"hang":true}`},
		sees: []sight{{status: 0, shows: "deadline exceeded"}}},
	{says: "an answer breaks off", control: []string{`PUT /faults {"truncate":20}`},
		sees: []sight{{status: 0, shows: "unexpected EOF"}}},
	{says: "the length of an answer is not what it says", control: []string{`PUT /faults {"contentLength":30}`},
		sees: []sight{{status: 200, shows: `(?s)Content-Length: 30\r\n.*"Even$`}}},
	{says: "an answer is no JSON", control: []string{`PUT /document !!!{"DocumentIncarnation":1,"Events":[]}`},
		sees: []sight{{status: 200, shows: `\n!!!{`}}},

	// limits and enabling
	{says: "five requests a second are the VM's, whoever asks, and another VM has its own",
		options: Options{RateLimit: 5, VMs: []string{"vm_0", "vm_1"}},
		sees: []sight{
			{status: 200}, {status: 200}, {status: 200}, {asks: "GET /metadata/versions", status: 200},
			{asks: "GET /metadata/instance/compute/name?api-version=2021-02-01&format=text", status: 200},
			{status: 429, shows: "Too many requests$"},
			{asks: "GET /vm/vm_1/metadata/scheduledevents?api-version=2020-07-01", status: 200},
			{asks: tokenOfVM, status: 200},
			{after: time.Second, status: 200},
		}},
	{says: "the first answer takes two minutes", control: []string{`PUT /faults {"delay":"2m","times":1}`},
		sees: []sight{{status: 200, shows: "00:02:00 GMT"}, {status: 200, shows: "00:02:00 GMT"}}},
	{says: "events come five minutes after the first request", scenario: "\n  - {at: 5m, schedule: {event: A}}",
		sees: []sight{{status: 200, shows: `"Events":\[\]`}, {after: 5 * time.Minute, status: 200, shows: `"Reboot"`}}},
	{says: "after a day without requests the count starts over",
		scenario: `
  - {at: 0s, schedule: {event: A, notice: 2d}}
  - {at: 24h, reset: true}`,
		sees: []sight{{status: 200, shows: `Etag: 2\r\n`}, {after: 24 * time.Hour,
			status: 200, shows: `{"DocumentIncarnation":1,"Events":\[\]}`}}},
	{says: "only the zone whose VM has asked is served; an only VM of its fault domain sees its own events alone",
		options: Options{VMs: []string{"vm_0", "vm_1"}},
		control: []string{reboot, `PUT /faults {"vm":"vm_1","body":"{\"DocumentIncarnation\":1,\"Events\":[]}"}`},
		sees: []sight{
			{status: 200, shows: `"Reboot"`},
			{asks: "GET /vm/vm_1/metadata/scheduledevents?api-version=2020-07-01", status: 200, shows: `"Events":\[\]`},
		}},
	{says: "all VMs of a set see the same document", options: Options{VMs: []string{"vm_0", "vm_1"}},
		control: []string{`POST /events {"EventId":"A","Resources":["vm_1"]}`},
		sees: []sight{{status: 200, shows: `"A".*"vm_1"`},
			{asks: "GET /vm/vm_1/metadata/scheduledevents?api-version=2020-07-01", status: 200, shows: `"A".*"vm_1"`}}},

	// the document
	{says: "the count is text", control: []string{`PUT /document {"DocumentIncarnation":"5","Events":[]}`},
		sees: []sight{{status: 200, shows: `(?s)Etag: 5\r\n.*"DocumentIncarnation":"5"`}}},
	{says: "the count is missing", control: []string{`PUT /document {"Events":[]}`},
		sees: []sight{{status: 200, shows: `\n{"Events":\[\]}$`}}},
	{says: "Events is null or missing", control: []string{`PUT /document {"DocumentIncarnation":5,"Events":null}`},
		sees: []sight{{status: 200, shows: `"Events":null}$`}}},
	{says: "keys are in alphabetical order",
		control: []string{`PUT /document {"DocumentIncarnation":2,"Events":[{"Description":"","EventId":"a"}]}`},
		sees:    []sight{{status: 200, shows: `{"Description":"","EventId":"a"}`}}},
	{says: "an EventId that is made up is in capitals, one that is given is shown as it is", options: Options{},
		control: []string{`POST /events {}`, `POST /events {"EventId":"f020ba2e-3bc0-4c40-a10b-86575a9eabd5"}`},
		sees: []sight{{status: 200,
			shows: `"EventId":"[0-9A-F]{8}-[0-9A-F-]{27}".*"EventId":"f020ba2e-3bc0-4c40-a10b-86575a9eabd5"`}}},
	{says: "an event has an id of its own at each step",
		scenario: `
  - {at: 0s, schedule: {event: A, id: one}}
  - {at: 1m, end: A}
  - {at: 1m, schedule: {event: B, id: two, status: Started}}`,
		sees: []sight{{status: 200, shows: `"one","EventStatus":"Scheduled"`}, {after: time.Minute,
			status: 200, shows: `\[{"EventId":"two","EventStatus":"Started"`}}},
	{says: "Resources is empty", control: []string{`POST /events {"Resources":[]}`},
		sees: []sight{{status: 200, shows: `"Resources":\[\]`}}},
	{says: "a name is written in another case than the VM's own", control: []string{`POST /events {"Resources":["VM_0"]}`},
		sees: []sight{{status: 200, shows: `\["VM_0"\]`}}},
	{says: "the date is ISO 8601", control: []string{reboot, `PUT /faults {"isoDates":true}`},
		sees: []sight{{status: 200, shows: `"NotBefore":"2000-01-01T00:15:00Z"`}}},
	{says: "the date is empty while the event is scheduled",
		control: []string{reboot, `PATCH /events/A {"NotBefore":""}`},
		sees:    []sight{{status: 200, shows: `"Scheduled".*"NotBefore":""`}}},
	{says: "the date stays after the event has begun",
		control: []string{reboot, `PATCH /events/A {"EventStatus":"Started"}`},
		sees:    []sight{{status: 200, shows: `"Started".*"NotBefore":"Sat, 01 Jan 2000 00:15:00 GMT"`}}},
	{says: "the date is missing, has the wrong weekday or one digit for its day, and a malformed event stands beside a good one",
		control: []string{`PUT /document {"DocumentIncarnation":5,"Events":[{"EventId":"A","EventStatus":"Started"},` +
			`{"EventId":"B","NotBefore":"Mon, 19 Sep 2019 18:29:47 GMT"},{"EventId":"C","NotBefore":"Sat, 1 Aug 2026 01:02:03 GMT"},7]}`},
		sees: []sight{{status: 200,
			shows: `"Started"},.*"Mon, 19 Sep 2019 18:29:47 GMT".*"Sat, 1 Aug 2026 01:02:03 GMT"},7\]}$`}}},
	{says: "a type and a status are not known",
		control: []string{`POST /events {"EventType":"Defrost","EventStatus":"Postponed","ResourceType":"Rack"}`},
		sees:    []sight{{status: 200, shows: `"Postponed","EventType":"Defrost","ResourceType":"Rack"`}}},
	{says: "the duration is 0 for no interruption, or text",
		control: []string{`POST /events {"EventType":"Freeze","DurationInSeconds":0}`},
		sees:    []sight{{status: 200, shows: `"DurationInSeconds":0}`}}},
	{says: "fields are missing and others are there that nobody knows",
		control: []string{`PUT /document {"DocumentIncarnation":5,"Events":[{"EventType":"Reboot","Rack":7}]}`},
		sees:    []sight{{status: 200, shows: `{"EventType":"Reboot","Rack":7}`}}},
	{says: "the first document counts as 1 and holds an event already",
		control: []string{reboot, `PUT /faults {"incarnation":1}`},
		sees:    []sight{{status: 200, shows: `{"DocumentIncarnation":1,"Events":\[{`}}},
	{says: "the count falls back",
		control: []string{reboot, `POST /events/A/start`, `DELETE /events/A`, `PUT /faults {"incarnation":2}`},
		sees:    []sight{{status: 200, shows: `(?s)Etag: 2\r\n.*{"DocumentIncarnation":2,"Events":\[\]}`}}},
	{says: "the count stays while the content changes",
		control: []string{reboot, `POST /events/A/start`, `PUT /faults {"incarnation":2}`},
		sees:    []sight{{status: 200, shows: `{"DocumentIncarnation":2,.*"Started"`}}},

	// the life of an event
	{says: "each change counts one, and at its start an event loses its date",
		control: []string{reboot, `POST /events/A/start`},
		sees:    []sight{{status: 200, shows: `{"DocumentIncarnation":3,.*"Started".*"NotBefore":""`}}},
	{says: "an event begins at its NotBefore and stays for minutes", options: Options{AutoStart: true},
		control: []string{`POST /events {"EventType":"Freeze","DurationInSeconds":6}`},
		sees: []sight{{after: 15*time.Minute - 1,
			status: 200, shows: `"Scheduled"`}, {after: 1, status: 200, shows: `"Started"`},
			{after: 8 * time.Minute, status: 200, shows: `"Started"`}}},
	{says: "an event begins later than its NotBefore, as another tenant has not agreed",
		scenario: `
  - {at: 0s, schedule: {event: A, notice: 15m}}
  - {at: 20m, start: A}`,
		sees: []sight{{after: 19 * time.Minute,
			status: 200, shows: `"Scheduled".*00:15:00 GMT`}, {after: time.Minute, status: 200, shows: `"Started"`}}},
	{says: "an event is withdrawn, which looks as if it were over", control: []string{reboot, `DELETE /events/A`},
		sees: []sight{{status: 200, shows: `{"DocumentIncarnation":3,"Events":\[\]}`}}},
	{says: "hardware fails: there is no notice",
		control: []string{`POST /events {"EventStatus":"Started","EventType":"Redeploy"}`},
		sees: []sight{{status: 200,
			shows: `{"DocumentIncarnation":2,.*"Started","EventType":"Redeploy".*"NotBefore":""`}}},
	{says: "a user's operation is approved by policy: there is no notice either",
		control: []string{`POST /events {"EventStatus":"Started","EventSource":"User"}`},
		sees:    []sight{{status: 200, shows: `"Started".*"EventSource":"User"`}}},
	{says: "states are skipped between two polls",
		control: []string{reboot, `POST /events/A/start`, `DELETE /events/A`},
		sees:    []sight{{status: 200, shows: `{"DocumentIncarnation":4,"Events":\[\]}`}}},
	{says: "a degraded host is left days later", scenario: "\n  - {at: 0s, schedule: {event: A, type: Redeploy, notice: 7d}}",
		sees: []sight{{status: 200, shows: "Sat, 08 Jan 2000 00:00:00 GMT"}}},
	{says: "each type has its shortest notice",
		control: []string{`POST /events {"EventType":"Freeze"}`, `POST /events {"EventType":"Reboot"}`, `POST /events {"EventType":"Redeploy"}`,
			`POST /events {"EventType":"Preempt"}`, `POST /events {"EventType":"Terminate"}`},
		sees: []sight{{status: 200, shows: `00:15:00 GMT.*00:15:00 GMT.*00:10:00 GMT.*00:00:30 GMT.*00:05:00 GMT`}}},
	{says: "the notice is shorter than the shortest", scenario: "\n  - {at: 0s, schedule: {event: A, type: Preempt, notice: 9s}}",
		sees: []sight{{status: 200, shows: "00:00:09 GMT"}}},
	{says: "an event changes before it begins: date, machines, text",
		control: []string{reboot, `PATCH /events/A {"NotBefore":"Sat, 01 Jan 2000 02:00:00 GMT","Resources":["vm_0","vm_1"],"Description":"Later."}`},
		sees: []sight{{status: 200,
			shows: `{"DocumentIncarnation":3,.*"vm_0","vm_1".*02:00:00 GMT","Description":"Later\."`}}},
	{says: "machines of one host share an event, those of others have their own",
		control: []string{`POST /events {"EventId":"A","Resources":["vm_0","vm_1"]}`, `POST /events {"EventId":"B","Resources":["vm_2"]}`},
		sees:    []sight{{status: 200, shows: `"A".*"vm_0","vm_1".*"B".*"vm_2"`}}},
	{says: "deletions of a scale set begin when the last is approved",
		control: []string{`POST /events {"EventId":"A","EventType":"Terminate"}`, `POST /events {"EventId":"B","EventType":"Terminate"}`},
		sees: []sight{
			{asks: postEvents, body: approveA, status: 200},
			{after: time.Minute, status: 200, shows: `{"DocumentIncarnation":3,.*"Scheduled".*"Scheduled"`},
			{asks: postEvents, body: `{"StartRequests":[{"EventId":"B"}]}`, status: 200},
			{status: 200, shows: `{"DocumentIncarnation":5,.*"Started".*"Started"`},
		}},
	{says: "a deletion waits for none whose time has come", options: Options{AutoStart: true},
		control: []string{`POST /events {"EventId":"A","EventType":"Terminate"}`,
			`POST /events {"EventId":"B","EventType":"Terminate","NotBefore":"Sat, 01 Jan 2000 00:01:00 GMT"}`},
		sees: []sight{
			{asks: postEvents, body: approveA, status: 200, shows: ""},
			{status: 200, shows: `"Scheduled".*"Scheduled"`},
			{after: time.Minute, status: 200, shows: `"Started".*"Started"`},
		}},

	// approvals
	{says: "an approval is taken in each form of the texts, whatever type its body has, again, and when the event has begun",
		control: []string{reboot},
		sees: []sight{
			{asks: postEvents,
				header: []string{"Content-Type", "application/x-www-form-urlencoded"},
				body:   `{"DocumentIncarnation":"5","StartRequests":[{"EventId":"a"}]}`,
				status: 200, shows: `(?s)Content-Length: 0\r\n.*\r\n\r\n$`},
			{status: 200, shows: `"Started".*"NotBefore":""`},
			{asks: postEvents,
				header: []string{"Content-Type", "application/json"},
				body:   `{"DocumentIncarnation":5,"StartRequests":[{"EventId":"A"}]}`,
				status: 200},
			{asks: postEvents, body: `{"StartRequests" : [{"EventId": "A"}]}`, status: 200},
		}},
	{says: "one POST approves several", control: []string{reboot, `POST /events {"EventId":"B"}`},
		sees: []sight{{asks: postEvents, body: `{"StartRequests":[{"EventId":"A"},{"EventId":"B"}]}`, status: 200},
			{status: 200, shows: `"Started".*"Started"`}}},
	{says: "a malformed approval is refused", control: []string{reboot},
		sees: []sight{{asks: postEvents, body: `{"StartRequests":[`,
			status: 400, shows: `{"error":"Bad request\. StartRequests`}, {status: 200, shows: `"Scheduled"`}}},
	{says: "an approval of what is not there is refused",
		sees: []sight{{asks: postEvents, body: `{"StartRequests":[{"EventId":"gone"}]}`, status: 400}}},
	{says: "or it is accepted without effect", options: Options{UnknownApproval: 200}, control: []string{reboot},
		sees: []sight{{asks: postEvents, body: `{"StartRequests":[{"EventId":"gone"}]}`,
			status: 200}, {status: 200, shows: `"Scheduled"`}}},
	{says: "another VM than the one concerned may approve, for all", options: Options{VMs: []string{"vm_0", "vm_1"}},
		control: []string{reboot},
		sees: []sight{{asks: "POST /vm/vm_1/metadata/scheduledevents?api-version=2020-07-01", body: approveA,
			status: 200}, {status: 200, shows: `"Started"`}}},
	{says: "an approved event begins some time later", options: Options{ApproveDelay: 30 * time.Second},
		control: []string{reboot},
		sees: []sight{{asks: postEvents, body: approveA,
			status: 200}, {status: 200,
			shows: `"Scheduled"`}, {after: 30 * time.Second, status: 200, shows: `"Started"`}}},
	{says: "other tenants do not agree: an approval shortens nothing", options: Options{AutoStart: true, ApproveDelay: 24 * time.Hour},
		control: []string{reboot},
		sees: []sight{{asks: postEvents, body: approveA,
			status: 200}, {after: 14 * time.Minute, status: 200, shows: `"Scheduled"`},
			{after: time.Minute, status: 200, shows: `"Started"`}}},
	{says: "an approval fails while the document is served",
		control: []string{reboot, `PUT /faults {"path":"approvals","status":500,"times":1}`},
		sees: []sight{{asks: postEvents, body: approveA,
			status: 500}, {status: 200, shows: `"Scheduled"`}, {asks: postEvents, body: approveA, status: 200}}},
	{says: "an approval is refused, and the event stays as it is",
		control: []string{reboot, `PUT /faults {"path":"approvals","approve":"refuse"}`},
		sees: []sight{{asks: postEvents, body: approveA,
			status: 400, shows: `{"error":"Bad request\. StartRequests is refused"}$`},
			{after: time.Hour, status: 200, shows: `"Scheduled"`}}},
	{says: "an approval is accepted and ignored",
		control: []string{reboot, `PUT /faults {"path":"approvals","approve":"ignore"}`},
		sees: []sight{{asks: postEvents, body: approveA,
			status: 200}, {after: time.Hour, status: 200, shows: `"Scheduled"`}}},
	{says: "an approval counts, and its answer comes late",
		control: []string{reboot, `PUT /faults {"path":"approvals","approve":"late","delay":"20s","approveDelay":"10s"}`},
		sees: []sight{{asks: postEvents, body: approveA,
			status: 200}, {status: 200, shows: `"Started"`}}},
	{says: "an approval counts, and its answer is lost",
		control: []string{reboot, `PUT /faults {"path":"approvals","approve":"late","hang":true}`},
		sees:    []sight{{asks: postEvents, body: approveA}, {status: 200, shows: `"Started"`}}},
	{says: "an approval counts, and its answer says that it does not",
		control: []string{reboot, `PUT /faults {"path":"approvals","approve":"late","status":503}`},
		sees:    []sight{{asks: postEvents, body: approveA, status: 503}, {status: 200, shows: `"Started"`}}},
	{says: "an approved event begins a time after its approval that is set while the service runs",
		control: []string{reboot, `PUT /faults {"path":"approvals","approveDelay":"1m"}`},
		sees: []sight{{asks: postEvents, body: approveA,
			status: 200}, {after: time.Minute - 1, status: 200, shows: `"Scheduled"`}, {after: 1, status: 200, shows: `"Started"`}}},
	{says: "an event is approved from outside the VM", control: []string{reboot, `POST /events/A/start`},
		sees: []sight{{status: 200, shows: `"Started"`}}},
}

// differs reproduces a quirk and returns how the answer differs from what the quirk says; "" if it does not.
func (q quirk) differs(t *testing.T) (what string) {
	synctest.Test(t, func(t *testing.T) {
		s := New(q.options)
		if q.scenario != "" {
			sc, err := ParseScenario("quirk.yaml", []byte("steps:"+q.scenario))
			if err != nil {
				t.Fatal(err)
			}
			go func() { _ = s.Play(t.Context(), sc, 1) }()
			synctest.Wait()
		}
		for _, call := range q.control {
			method, rest, _ := strings.Cut(call, " ")
			path, body, _ := strings.Cut(rest, " ")
			if resp := control(s, method, path, body); resp.StatusCode > 204 {
				t.Fatalf("%s: %d %s", call, resp.StatusCode, text(resp))
			}
		}
		for i, see := range q.sees {
			time.Sleep(see.after)
			synctest.Wait() // what a scenario does at this very moment is done
			status, got := see.look(t, s)
			if status != see.status || !regexp.MustCompile(see.shows).MatchString(got) {
				what = fmt.Sprintf("request %d: %d\n%s\nwant %d and %s", i+1, status, got, see.status, see.shows)
				return
			}
			synctest.Wait()
		}
	})
	return what
}

// look sends the request as a client on a network would, with a timeout of ten minutes.
func (see sight) look(t *testing.T, s *Server) (status int, got string) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	method, target := "GET", "/metadata/scheduledevents?api-version="+newest
	if see.asks != "" {
		method, target, _ = strings.Cut(see.asks, " ")
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://azure.test"+target, strings.NewReader(see.body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Metadata", "true")
	for i := 0; i < len(see.header); i += 2 {
		r.Header.Set(see.header[i], see.header[i+1])
		if see.header[i+1] == "" {
			r.Header.Del(see.header[i])
		}
	}
	resp, err := s.RoundTripper().RoundTrip(r)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	var head strings.Builder
	_ = resp.Header.Write(&head) // a strings.Builder takes everything
	return resp.StatusCode, head.String() + "\r\n" + string(body)
}

// Each quirk of the real service occurs when its row asks for it, and only then.
func TestEveryQuirkOfTheServiceCanBeEmulated(t *testing.T) {
	for _, q := range quirks {
		t.Run(q.says, func(t *testing.T) {
			if what := q.differs(t); what != "" {
				t.Error(what)
			}
			asked := q
			asked.options, asked.scenario, asked.control = Options{VMs: q.options.VMs}, "", nil
			brought := q.scenario != "" || q.control != nil || q.options.RateLimit > 0
			if brought && asked.differs(t) == "" {
				t.Error("the same is seen on a server without the quirk")
			}
		})
	}
}

// Each captured document can be served byte for byte through the control API, with its own incarnation as the ETag. A
// request with that ETag gets a 304. A document without an incarnation has no ETag.
func TestEveryCaptureCanBeServed(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "f*.json"))
	if err != nil || len(files) != 18 {
		t.Fatalf("%d captures, %v, want 18", len(files), err)
	}
	etags := map[string]string{
		"f01-reboot-user-flatcar-3": "4", "f03-aks-vmss-1": "208", "f04-freeze-started-spot": "2",
		"f08-preempt-2020-07-01": "1", "f10-two-reboots-six-fields": "192", "f12-reboot-user-event": "",
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s := New(Options{})
		if resp := control(s, "PUT", "/document", string(data)); resp.StatusCode != 204 {
			t.Fatalf("%s: %d %s", file, resp.StatusCode, text(resp))
		}
		for _, version := range versions {
			if got := document(s, version); got != string(data) {
				t.Errorf("%s in %s:\ngot  %s\nwant %s", file, version, got, data)
			}
		}
		etag := ask(s, "GET", eventsURL, "").Header.Get("ETag")
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		if want, known := etags[name]; known && etag != want {
			t.Errorf("%s: ETag %q, want %q", name, etag, want)
		}
		want := 304
		if strings.HasPrefix(name, "f12") {
			want = 200
		}
		if resp := ask(s, "GET", eventsURL, "", "If-None-Match", etag); resp.StatusCode != want {
			t.Errorf("%s: %d for its own ETag %q, want %d", name, resp.StatusCode, etag, want)
		}
	}
}
