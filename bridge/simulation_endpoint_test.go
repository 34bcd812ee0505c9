package bridge_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An endpoint is the metadata service as the bridge's client reaches it. It is an http.RoundTripper.
type endpoint struct{ w *world }

// endpointTrouble makes the endpoint answer wrongly for a while.
type endpointTrouble struct {
	how string
	end time.Duration
}

func (x endpointTrouble) do(w *world) { w.endpoint = x }

var endpointTroubles = []string{
	"503", "500", "404", "410", "429 with Retry-After", "401", "hangs", "is slow", "cuts the body", "gives no length",
	"serves a page", "has no Events", "is empty", "is empty", "has null for Events", "lists a broken entry",
	"lists an event twice",
}

// losesAnswers is trouble with approvals alone: they have their effect, and the answer says that something went wrong.
const losesAnswers = "loses the answer to approvals"

// An answer is one request for the document, and what came back.
type answer struct {
	fact
	asked    int // when it was asked, in the order of all facts
	askedAt  time.Duration
	polled   bool                  // by the poll loop, and not by an approval that has another look
	what     string                // document, unchanged, empty, failed
	events   map[string]azureEvent // that it lists; not of a look that leaves no doubt
	partial  bool                  // it held an entry that cannot be told from others
	version  int                   // of what the document lists
	doubtful bool                  // what the document says of events is in doubt
	turned   time.Duration         // when the poll loop came round; 0 if it did not, or did not ask
}

// looks reports whether the request that is being made is an approval's look at the document, and not the poll loop's.
func looks() bool {
	callers := make([]uintptr, 100)
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers)])
	for {
		f, more := frames.Next()
		switch {
		case strings.HasSuffix(f.Function, "/imds.(*Client).Document"):
			return true
		case strings.HasSuffix(f.Function, "/imds.(*Client).PollUnless"):
			return false
		case !more:
			panic("nobody asks")
		}
	}
}

// turned is called when the poll loop has come round.
func (w *world) turned() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.round {
		a.turned = w.now()
	}
	w.round = nil
}

// A post is one request to start an event.
type post struct {
	fact
	id     string
	status int
	listed azureEvent // as it was at that moment
}

func (e endpoint) RoundTrip(req *http.Request) (*http.Response, error) {
	w := e.w
	switch {
	case strings.HasSuffix(req.URL.Path, "/instance"):
		return e.whoAmI(req)
	case req.Method == http.MethodPost:
		return e.start(req)
	}
	w.mu.Lock()
	a := &answer{asked: w.next(), askedAt: w.now(), polled: !looks(), what: "failed"}
	how := ""
	if w.endpoint.end > w.now() && w.endpoint.how != losesAnswers {
		how = w.endpoint.how
	}
	w.mu.Unlock()

	delay := map[string]time.Duration{"is slow": 4 * time.Second, "hangs": forever}[how]
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-req.Context().Done():
			w.answered(a)
			return nil, req.Context().Err()
		}
	}
	w.mu.Lock()
	etag, doubt := strconv.Itoa(w.azure.incarnation), w.doubt.now(w.now(), a.asked)
	body, events, version := w.azure.doubtful(doubt)
	a.version, a.doubtful = version, doubt != ""
	if a.polled || a.doubtful {
		a.events, w.azure.kept = events, true
	}
	if how == "lists an event twice" { // of which the last counts
		for id := range events {
			body = added(body, `{"EventId":"`+id+`","EventStatus":"Started"}`, false)
		}
	}
	w.mu.Unlock()
	resp := respond(req, 200, etag, body)
	switch how {
	case "":
		if req.Header.Get("If-None-Match") == etag && doubt == "" {
			resp, a.what = respond(req, http.StatusNotModified, etag, nil), "unchanged"
		} else {
			a.what = "document"
		}
	case "is slow":
		a.what = "document"
	case "401", "404", "410", "500", "503":
		code, _ := strconv.Atoi(how)
		resp = respond(req, code, "", []byte("no"))
	case "429 with Retry-After":
		resp = respond(req, 429, "", []byte("Too many requests"))
		resp.Header.Set("Retry-After", "20")
	case "cuts the body":
		resp.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body[:len(body)/2]), cutShort{}))
	case "gives no length":
		resp.ContentLength = -1
	case "serves a page":
		resp = respond(req, 200, etag, []byte("<html><body>Sign in</body></html>"))
	case "has no Events":
		resp = respond(req, 200, etag, []byte(`{"DocumentIncarnation":1}`))
	case "is empty":
		resp, a.what, a.events = respond(req, 200, etag, nil), "empty", nil
	case "has null for Events":
		resp = respond(req, 200, etag, []byte(`{"DocumentIncarnation":1,"Events":null}`))
		a.what, a.events = "empty", nil
	case "lists a broken entry":
		resp = respond(req, 200, etag, added(body, `{"EventStatus":"Scheduled"}`, true))
		a.what, a.partial = "document", true
	case "lists an event twice":
		a.what, a.doubtful = "document", true
	default:
		panic("no such trouble: " + how)
	}
	w.answered(a)
	return resp, nil
}

// start takes a request to start an event, as Azure does: the event is Started in the next document.
func (e endpoint) start(req *http.Request) (*http.Response, error) {
	w := e.w
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	var order struct{ StartRequests []struct{ EventId string } }
	if err := json.Unmarshal(body, &order); err != nil || len(order.StartRequests) != 1 {
		return respond(req, 400, "", []byte("not a start request")), nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return nil, errDead
	}
	id := strings.ToUpper(order.StartRequests[0].EventId)
	listed, ok := w.azure.events[id]
	p := &post{fact: w.fact(), id: id, listed: listed, status: 200}
	how := ""
	if w.endpoint.end > w.now() {
		how = w.endpoint.how
	}
	switch {
	case how == "503":
		p.status = 503
	case !ok:
		p.status = 400
	case listed.status == "Scheduled":
		listed.status, listed.notBefore = "Started", -1
		w.azure.put(listed, w.now(), false)
	}
	w.posts = append(w.posts, p)
	if how == losesAnswers {
		return respond(req, 500, "", nil), nil
	}
	return respond(req, p.status, "", nil), nil
}

// instanceTrouble keeps instance metadata from saying which VM this is, for a while.
type instanceTrouble struct {
	how string
	end time.Duration
}

func (x instanceTrouble) do(w *world) { w.instance = x }

// whoAmI says which VM this is.
func (e endpoint) whoAmI(req *http.Request) (*http.Response, error) {
	w := e.w
	w.mu.Lock()
	how := ""
	if w.instance.end > w.now() {
		how = w.instance.how
	}
	w.mu.Unlock()
	w.noteRefusal(how)
	switch how {
	case "hangs":
		<-req.Context().Done()
		return nil, req.Context().Err()
	case "400", "404", "503":
		code, _ := strconv.Atoi(how)
		return respond(req, code, "", []byte("no")), nil
	case "names nobody":
		return respond(req, 200, "", []byte(`{"compute":{}}`)), nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return nil, errDead
	}
	if b := w.boots[len(w.boots)-1]; b.learned.seq == 0 {
		b.learned = w.fact()
	}
	return respond(req, 200, "", mustJSON(map[string]any{"compute": map[string]any{
		"name": "vm-0", "vmId": fmt.Sprintf("5d6c7b8a-0000-4000-8000-%012d", w.vm+1), "location": "westeurope",
		"subscriptionId": "sub", "resourceGroupName": "group", "resourceId": "/subscriptions/sub/vm-0",
	}})), nil
}

// noteRefusal notes whether the program waits no longer for its VM's name: a bad request stays one, and a host that moved
// a VM answers for three seconds that it knows none.
func (w *world) noteRefusal(how string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b, now := w.boots[len(w.boots)-1], w.fact()
	lasts := how == "404" || how == "names nobody"
	switch {
	case !lasts:
		b.refusedSince = fact{}
	case b.refusedSince.seq == 0:
		b.refusedSince = now
	}
	if b.refused.seq == 0 && (how == "400" || lasts && now.at-b.refusedSince.at >= 3*time.Second) {
		b.refused = now
	}
}

// instanceSteps make up what goes wrong with instance metadata: from the start, when nobody knows the VM's name yet.
func instanceSteps(r *rand.Rand) []step {
	lasts := pick(r, 2*time.Second, 8*time.Second, 40*time.Second, 3*time.Minute, 30*time.Minute)
	return []step{{0, instanceTrouble{pick(r, "400", "404", "503", "503", "hangs", "names nobody"), lasts}}}
}

// earlySteps make up an event that most often is listed while nobody knows the VM's name.
func earlySteps(seed uint64, length time.Duration) []step {
	r := rand.New(rand.NewPCG(seed, 12))
	return life(r, "A0000000-0000-4000-8000-000000000EEE", during(r, 80*time.Second), length, "", false)
}

// added puts an entry into a document, at its beginning or its end.
func added(document []byte, entry string, last bool) []byte {
	const empty = `"Events":[]`
	if bytes.Contains(document, []byte(empty)) {
		return bytes.Replace(document, []byte(empty), []byte(`"Events":[`+entry+`]`), 1)
	}
	if last {
		return slices.Concat(bytes.TrimSuffix(document, []byte("]}")), []byte(","+entry+"]}"))
	}
	return bytes.Replace(document, []byte(`"Events":[`), []byte(`"Events":[`+entry+`,`), 1)
}

func respond(req *http.Request, code int, etag string, body []byte) *http.Response {
	h := http.Header{"Content-Type": {"application/json; charset=utf-8"}}
	if etag != "" {
		h["Etag"] = []string{etag} // not quoted, as Azure has it
	}
	return &http.Response{
		StatusCode: code, Status: fmt.Sprintf("%d %s", code, http.StatusText(code)), Proto: "HTTP/1.1", ProtoMajor: 1,
		ProtoMinor: 1, Header: h, ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)), Request: req,
	}
}

// cutShort is the end of a body that was cut.
type cutShort struct{}

func (cutShort) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// endpointSteps make up what goes wrong with the endpoint.
func endpointSteps(r *rand.Rand, length time.Duration) (steps []step) {
	for range r.IntN(6) {
		at := during(r, length)
		lasts := pick(r, 2*time.Second, 4*time.Second, 12*time.Second, time.Minute, 7*time.Minute)
		steps = append(steps, step{at, endpointTrouble{pick(r, endpointTroubles...), at + lasts}})
	}
	return steps
}

// A doubt makes Azure's documents say two things of events for a while, or no longer all that they said.
type doubt struct {
	how string
	end time.Duration
}

func (x doubt) do(w *world) { w.doubt = x }

// What documents may be like. Each says something else at each look.
const (
	asksNobody = "nobody asked"      // EventSource is missing
	oddRunes   = "odd runes"         // EventSource is spelled with characters that look like letters
	oddFields  = "odd fields"        // another field is spelled like EventSource with such characters
	twice      = "twice"             // each event is listed before with other content
	changing   = "another each time" // or as it is
)

// unsaid is the source of an event of which Azure's document doesn't say who asked for it.
const unsaid = "(unsaid)"

// alikeField is a field that some readers of JSON take for EventSource.
const alikeField = "Eventſource"

// oddly spells a source with characters that Unicode takes for its letters, or that nobody sees.
func oddly(source string) string {
	return strings.ReplaceAll(source, "s", "ſ") + "\u200b"
}

// now returns how the document of a request is in doubt; "" if it isn't.
func (x doubt) now(at time.Duration, request int) string {
	switch {
	case x.end <= at:
		return ""
	case x.how == changing:
		return []string{"", asksNobody, "", oddRunes, oddFields, twice}[request%6]
	}
	return x.how
}

// doubtful returns a document in which each event is in doubt, what a reader of its last entries takes the events for,
// and a number that tells it from other documents.
func (a *azure) doubtful(how string) (body []byte, events map[string]azureEvent, version int) {
	kinds := []string{"", asksNobody, oddRunes, oddFields, twice}
	version = a.version*len(kinds) + slices.Index(kinds, how)
	if how == "" {
		return a.document(), a.events, version
	}
	events = maps.Clone(a.events)
	for id, e := range events {
		switch how {
		case asksNobody:
			e.source = unsaid
		case oddRunes:
			e.source = oddly(e.source)
		case oddFields:
			e.alike = true
		}
		events[id] = e
	}
	var list []map[string]any
	for _, id := range a.order {
		if how == twice {
			list = append(list, map[string]any{"EventId": strings.ToLower(id), "EventType": "Terminate",
				"EventStatus": "Scheduled", "Resources": []string{"vm-0", "vm-9"}})
		}
		list = append(list, events[id].fields())
	}
	if list == nil {
		return a.document(), events, version
	}
	return mustJSON(map[string]any{"DocumentIncarnation": a.incarnation, "Events": list}), events, version
}

// is reports whether it is the same event as far as both documents say what it is.
func (e azureEvent) is(other azureEvent) bool {
	if e.source == unsaid || other.source == unsaid {
		e.source, other.source = unsaid, unsaid
	}
	return e == other
}

// doubtSteps make up when documents are in doubt.
func doubtSteps(seed uint64, length time.Duration) (steps []step) {
	r := rand.New(rand.NewPCG(seed, 5))
	if r.IntN(4) > 0 {
		return nil
	}
	for range 1 + r.IntN(3) {
		at := during(r, length)
		lasts := pick(r, 4*time.Second, 12*time.Second, time.Minute, 7*time.Minute)
		steps = append(steps, step{at, doubt{pick(r, asksNobody, oddRunes, oddFields, twice, changing), at + lasts}})
	}
	return steps
}
