package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"strconv"
	"sync"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/fleet"
	"forewarn/cmd/forewarn/internal/wording"
)

// pageFiles holds the template of the page and the files that it loads.
//
//go:embed assets
var pageFiles embed.FS

// pageParts are the parts of the page that are sent again when they change. Each name is the id of an element and the
// name of its template.
var pageParts = []string{"summary", "trouble", "open", "timeline", "sinks", "vms", "dead", "foot"}

// How the page is kept up to date.
const (
	maxStreams    = 16               // concurrent browsers; more are asked to try again
	streamEvery   = time.Second      // interval between checks for changes
	streamQuiet   = 5 * time.Second  // longest time without a message to the browser
	streamTimeout = 10 * time.Second // for writing one message
	historyCache  = 2 * time.Minute  // how long the history stays in memory after the last request

	historyPatience = 5 * time.Second // how long a request waits for the history
)

// A webPage is the page for people. Each browser that follows it is served by the goroutine of its request, which ends with
// the connection and with the server.
type webPage struct {
	facts func() pageFacts // at most pageAge old
	turn  chan struct{}    // holds one while a part of a fleet is rendered: one at a time, so that many leave the CPU to others
	build string           // hash of the files, so that a browser notices that its own are old

	template func() (*template.Template, error) // parses the template at the first request
	whole    func() wholePage                   // without a filter

	mu       sync.Mutex // guards the fields below
	streams  int
	rendered map[fleet.Filter]renderedParts
}

// renderedParts are the parts of the page, as they were at a time.
type renderedParts struct {
	parts map[string]string
	title string
	at    time.Time
}

// newPage returns a page that shows what facts returns.
func newPage(facts func() pageFacts) *webPage {
	sum := sha256.New()
	_ = fs.WalkDir(pageFiles, ".", func(path string, d fs.DirEntry, err error) error { // embedded files cannot fail
		if err == nil && !d.IsDir() {
			body, _ := pageFiles.ReadFile(path)
			sum.Write(body)
		}
		return nil
	})
	p := &webPage{facts: cached(pageAge, facts), turn: make(chan struct{}, 1), build: hex.EncodeToString(sum.Sum(nil)[:6]), template: sync.OnceValues(parsePage)}
	p.whole = cached(pageAge, func() wholePage { return p.render(fleet.Filter{}) })
	return p
}

func parsePage() (*template.Template, error) {
	return template.New("").Funcs(template.FuncMap{"sudo": func() string { return wording.Sudo }}).
		ParseFS(pageFiles, "assets/page.html.tmpl")
}

// pageChanges bounds the changes of the past that the page reads. It shows fewer events than that.
const pageChanges = 1000

// A past is the history that the page shows. It is read again only when something has changed, and at most a twentieth of
// the time is spent on that. It may be large, so it is dropped when nobody looks at the page for a while. The page doesn't
// wait long for it, because a disk may hang.
type past struct {
	read func(now time.Time) (histories []bridge.EventHistory, more bool, err error)
	drop *time.Timer

	mu        sync.Mutex    // guards the fields below
	reading   chan struct{} // is closed when the last read has ended
	histories []bridge.EventHistory
	more      bool
	failed    error
	known     string // what changes whenever the history does
	at        time.Time
	took      time.Duration
}

// errSlow is the error of a history whose read goes on.
var errSlow = errors.New("it takes too long")

func newPast(read func(now time.Time) ([]bridge.EventHistory, bool, error)) *past {
	h := &past{read: read, reading: make(chan struct{})}
	close(h.reading)
	h.drop = time.AfterFunc(historyCache, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.histories, h.failed, h.at = nil, nil, time.Time{}
	})
	return h
}

// show sets the history of f. The history changes only if state does.
func (h *past) show(f *pageFacts, state string) {
	slow := false
	select {
	case <-h.refresh(state):
	case <-time.After(historyPatience):
		slow = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	f.Histories, f.MoreHistories, f.Err = h.histories, h.more, h.failed
	if slow {
		f.Err = errSlow
	}
}

// refresh reads the history, unless that goes on already or isn't needed. It returns a channel that is closed when it has
// been read.
func (h *past) refresh(state string) (done <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop.Reset(historyCache)
	now := time.Now()
	since := now.Sub(h.at)
	fresh := since <= time.Minute && (since <= 20*h.took || state == h.known && h.failed == nil)
	select {
	case <-h.reading:
	default:
		return h.reading
	}
	if fresh {
		return h.reading
	}
	h.reading = make(chan struct{})
	go func(done chan<- struct{}) {
		defer close(done)
		histories, more, err := h.read(now)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.histories, h.more, h.failed = histories, more, err
		h.known, h.at, h.took = state, now, time.Since(now)
	}(h.reading)
	return h.reading
}

// bridgeFacts returns a function that reads the facts of the page from a bridge and its outbox.
func bridgeFacts(b *bridge.Bridge, o *outbox.Outbox) func() pageFacts {
	history := newPast(func(now time.Time) ([]bridge.EventHistory, bool, error) {
		period := bridge.Period{Since: now.AddDate(0, 0, -timelineDays-1)}
		return bridge.RecentHistory(o, period, pageChanges, now)
	})
	return func() pageFacts {
		f := pageFacts{Status: b.Status()}
		if f.Status.Outbox.DeadLetters > 0 {
			f.Dead, f.MoreDead = o.Page(outbox.Selection{State: outbox.StateDead, Last: true}, shownDead)
		}
		sum := sha256.New()
		fmt.Fprint(sum, f.Status.Outbox.Pending, f.Status.Outbox.DeadLetters)
		for _, e := range f.Status.Events {
			sum.Write(e.Event)
		}
		for _, k := range f.Status.Sinks {
			fmt.Fprint(sum, " ", k.Delivered)
		}
		history.show(&f, string(sum.Sum(nil)))
		return f
	}
}

// routes adds the page to mux.
func (p *webPage) routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", p.show)
	mux.HandleFunc("GET /events", p.stream)
	for path, kind := range map[string]string{
		"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml",
	} {
		body, err := pageFiles.ReadFile("assets/" + path)
		if err != nil {
			continue // cannot happen: a test loads all files
		}
		sum := sha256.Sum256(body)
		tag := strconv.Quote(hex.EncodeToString(sum[:8]))
		mux.HandleFunc("GET /"+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Cache-Control", "no-cache") // the browser asks each time, and usually gets a 304
			w.Header().Set("ETag", tag)
			http.ServeContent(w, r, path, time.Time{}, bytes.NewReader(body))
		})
	}
}

// view returns the template and the current content of the page.
func (p *webPage) view(live bool, filter fleet.Filter) (*template.Template, pageView, error) {
	page, err := p.template()
	if err != nil {
		return nil, pageView{}, err
	}
	f := p.facts()
	f.Filter = filter
	v := pageWriter{now: time.Now(), zone: f.Status.Settings.Location(), live: live}.view(f)
	v.Build = p.build
	return page, v, nil
}

// A wholePage is the rendered page, or the error of rendering it.
type wholePage struct {
	body []byte
	err  error
}

// render renders the page. It is complete without its script.
func (p *webPage) render(filter fleet.Filter) wholePage {
	page, v, err := p.view(false, filter)
	var b bytes.Buffer
	if err == nil {
		err = page.ExecuteTemplate(&b, "page", v)
	}
	return wholePage{b.Bytes(), err}
}

// show answers with the page.
func (p *webPage) show(w http.ResponseWriter, r *http.Request) {
	var page wholePage
	if filter := filterOf(r.URL.Query()); filter == (fleet.Filter{}) {
		page = p.whole()
	} else {
		select {
		case p.turn <- struct{}{}:
			page = p.render(filter)
			<-p.turn
		case <-r.Context().Done():
			return
		}
	}
	w.Header().Set("Cache-Control", "no-store")
	if page.err != nil {
		http.Error(w, "the page cannot be shown: "+page.err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(page.body) // fails only when the browser is gone
}

// currentParts returns the parts of the page, rendered at most twice a second for all browsers together. Countdowns are
// left to the script, so that a part changes only when its facts do.
func (p *webPage) currentParts(filter fleet.Filter) (parts map[string]string, title string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.rendered[filter]; time.Since(m.at) < streamEvery/2 {
		return m.parts, m.title, nil
	}
	page, v, err := p.view(true, filter)
	if err != nil {
		return nil, "", err
	}
	parts = make(map[string]string, len(pageParts))
	for _, name := range pageParts {
		var b bytes.Buffer
		if err := page.ExecuteTemplate(&b, name, v); err != nil {
			return nil, "", err
		}
		parts[name] = b.String()
	}
	if p.rendered == nil || len(p.rendered) >= 2*maxStreams { // of browsers that are gone
		p.rendered = map[fleet.Filter]renderedParts{}
	}
	p.rendered[filter] = renderedParts{parts, v.Title, time.Now()}
	return parts, v.Title, nil
}

// pageNews is a message to a browser.
type pageNews struct {
	Now   int64             `json:"now"` // Unix milliseconds
	Build string            `json:"build"`
	Title string            `json:"title"`
	Parts map[string]string `json:"parts,omitempty"` // the parts that changed
}

// stream sends the changes of the page as server-sent events until the browser or the server goes away.
func (p *webPage) stream(w http.ResponseWriter, r *http.Request) {
	if !p.addStream() {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many browsers follow this page; reload it instead", http.StatusServiceUnavailable)
		return
	}
	defer p.removeStream()
	conn := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	sent, last, filter := map[string]string{}, time.Time{}, filterOf(r.URL.Query())
	tick := time.NewTicker(streamEvery)
	defer tick.Stop()
	for {
		parts, title, err := p.currentParts(filter)
		if err != nil {
			return // loading the page shows the error
		}
		news := pageNews{Now: time.Now().UnixMilli(), Build: p.build, Title: title, Parts: map[string]string{}}
		for name, part := range parts {
			if before, known := sent[name]; !known || before != part {
				news.Parts[name], sent[name] = part, part
			}
		}
		if len(news.Parts) > 0 || time.Since(last) >= streamQuiet {
			body, err := json.Marshal(news)
			if err != nil {
				return
			}
			_ = conn.SetWriteDeadline(time.Now().Add(streamTimeout)) // drops a browser that does not read
			if _, err := fmt.Fprintf(w, "data: %s\n\n", body); err != nil {
				return
			}
			if err := conn.Flush(); err != nil {
				return
			}
			last = time.Now()
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}

// addStream counts a new browser. It returns false if there are too many.
func (p *webPage) addStream() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.streams >= maxStreams {
		return false
	}
	p.streams++
	return true
}

// removeStream uncounts a browser. The last one frees the rendered parts.
func (p *webPage) removeStream() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams--
	if p.streams == 0 {
		p.rendered = nil
	}
}
