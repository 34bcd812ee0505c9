package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"strconv"
	"sync"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/outbox"
)

// pageFiles are the template of the page and what it loads. Nothing is loaded from elsewhere.
//
//go:embed assets
var pageFiles embed.FS

// pageParts are the parts of the page that are sent anew when they change, by the ids of their elements and the names of
// their templates.
var pageParts = []string{"summary", "trouble", "open", "timeline", "sinks", "dead", "foot"}

// How the page is kept up to date.
const (
	maxStreams     = 16              // browsers at a time; more are asked to come back
	streamEvery    = time.Second     // how often it is looked whether something changed
	streamQuiet    = 5 * time.Second // after which the browser is told that nothing did
	streamPatience = 10 * time.Second
	pageMemory     = 2 * time.Minute // how long what was read is kept for another look
)

// A webPage is the page for people. It holds no goroutine: each browser that follows it has the one of its request,
// which ends with the connection and with the server.
type webPage struct {
	look  func() pageFacts
	build string // of the files, so that a browser can see that it has old ones

	parsed func() (*template.Template, error) // once, and not before somebody looks
	whole  func() wholePage

	mu      sync.Mutex
	streams int
	parts   map[string]string // as they were at the time made
	title   string
	made    time.Time
}

// newPage is the page that shows what look finds.
func newPage(look func() pageFacts) *webPage {
	sum := sha256.New()
	_ = fs.WalkDir(pageFiles, ".", func(path string, d fs.DirEntry, err error) error { // cannot fail: it is in the binary
		if err == nil && !d.IsDir() {
			body, _ := pageFiles.ReadFile(path)
			sum.Write(body)
		}
		return nil
	})
	p := &webPage{look: look, build: hex.EncodeToString(sum.Sum(nil)[:6]), parsed: sync.OnceValues(parsePage)}
	p.whole = shared(pageAge, p.render)
	return p
}

func parsePage() (*template.Template, error) {
	return template.ParseFS(pageFiles, "assets/page.html.tmpl")
}

// pageChanges is how many changes of the past the page looks at. It shows fewer events than that.
const pageChanges = 1000

// bridgeFacts looks at a bridge. The history is read again only when something has changed, and never so often that
// reading it would take more than a small part of the time. It grows with the events of a month, so it is let go when
// nobody looks any more.
func bridgeFacts(b *bridge.Bridge) func() pageFacts {
	var mu sync.Mutex
	var lives []bridge.Life
	var more bool
	var failed error
	var known [sha256.Size]byte // what changes when the history does
	var read time.Time
	var took time.Duration
	forget := time.AfterFunc(pageMemory, func() {
		mu.Lock()
		defer mu.Unlock()
		lives, failed, read = nil, nil, time.Time{}
	})
	return func() pageFacts {
		f := pageFacts{Status: b.Status()}
		if f.Status.Outbox.DeadLetters > 0 {
			f.Dead, f.MoreDead = b.Outbox.Last(outbox.Selection{State: outbox.StateDead}, shownDead)
		}
		sum := sha256.New()
		fmt.Fprint(sum, f.Status.Outbox.Pending, f.Status.Outbox.DeadLetters)
		for _, e := range f.Status.Events {
			sum.Write(e.Event)
		}
		for _, k := range f.Status.Sinks {
			fmt.Fprint(sum, " ", k.Delivered)
		}
		state := [sha256.Size]byte(sum.Sum(nil))
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		forget.Reset(pageMemory)
		if since := now.Sub(read); since > time.Minute || since > 20*took && (state != known || failed != nil) {
			lives, more, failed = bridge.RecentHistory(b.Outbox, bridge.Period{Since: now.AddDate(0, 0, -timelineDays-1)}, pageChanges, now)
			known, read, took = state, now, time.Since(now)
		}
		f.Lives, f.MoreLives, f.Err = lives, more, failed
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
			continue // a test loads them all
		}
		sum := sha256.Sum256(body)
		tag := strconv.Quote(hex.EncodeToString(sum[:8]))
		mux.HandleFunc("GET /"+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Cache-Control", "no-cache") // ask, and hear 304
			w.Header().Set("ETag", tag)
			http.ServeContent(w, r, path, time.Time{}, bytes.NewReader(body))
		})
	}
}

// view is the page as things are now.
func (p *webPage) view(live bool) (*template.Template, pageView, error) {
	page, err := p.parsed()
	if err != nil {
		return nil, pageView{}, err
	}
	f := p.look()
	zone := f.Status.Settings.Timezone
	if zone == nil {
		zone = time.UTC
	}
	v := pageWriter{now: time.Now(), zone: zone, live: live}.view(f)
	v.Build = p.build
	return page, v, nil
}

// A wholePage is the page as it is sent, or why it cannot be made.
type wholePage struct {
	body []byte
	err  error
}

// render makes the page, which is complete without any script.
func (p *webPage) render() wholePage {
	page, v, err := p.view(false)
	var b bytes.Buffer
	if err == nil {
		err = page.ExecuteTemplate(&b, "page", v)
	}
	return wholePage{b.Bytes(), err}
}

// show answers with the page.
func (p *webPage) show(w http.ResponseWriter, _ *http.Request) {
	page := p.whole()
	w.Header().Set("Cache-Control", "no-store")
	if page.err != nil {
		http.Error(w, "the page cannot be shown: "+page.err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(page.body) // a browser that went away needs nothing
}

// now gives the parts as they are, made at most once in a while for however many browsers. What passes with time is left
// to their scripts, so that a part changes only when something did.
func (p *webPage) now() (parts map[string]string, title string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.made) < streamEvery/2 {
		return p.parts, p.title, nil
	}
	page, v, err := p.view(true)
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
	p.parts, p.title, p.made = parts, v.Title, time.Now()
	return parts, v.Title, nil
}

// pageNews is one message to a browser.
type pageNews struct {
	Now   int64             `json:"now"` // Unix milliseconds
	Build string            `json:"build"`
	Title string            `json:"title"`
	Parts map[string]string `json:"parts,omitempty"` // those that changed
}

// stream sends a browser what changes, as server-sent events, until it goes away or the server ends.
func (p *webPage) stream(w http.ResponseWriter, r *http.Request) {
	if !p.enter() {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many browsers follow this page; reload it instead", http.StatusServiceUnavailable)
		return
	}
	defer p.leave()
	conn := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	sent, last := map[string]string{}, time.Time{}
	tick := time.NewTicker(streamEvery)
	defer tick.Stop()
	for {
		parts, title, err := p.now()
		if err != nil {
			return // the page itself says why
		}
		news := pageNews{Now: time.Now().UnixMilli(), Build: p.build, Title: title, Parts: map[string]string{}}
		for name, part := range parts {
			if sent[name] != part {
				news.Parts[name], sent[name] = part, part
			}
		}
		if len(news.Parts) > 0 || time.Since(last) >= streamQuiet {
			body, err := json.Marshal(news)
			if err != nil {
				return
			}
			_ = conn.SetWriteDeadline(time.Now().Add(streamPatience)) // a browser that does not read is let go
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

// enter counts a browser in, unless there are too many.
func (p *webPage) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.streams >= maxStreams {
		return false
	}
	p.streams++
	return true
}

// leave counts it out. The last one leaves nothing behind.
func (p *webPage) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.streams--; p.streams == 0 {
		p.parts, p.title, p.made = nil, "", time.Time{}
	}
}
