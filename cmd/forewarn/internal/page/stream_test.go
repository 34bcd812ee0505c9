package page

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"forewarn/bridge"
)

// follow opens the stream of a page. Closing ends it.
func follow(t *testing.T, url string) (*bufio.Scanner, *http.Response) {
	t.Helper()
	resp, err := http.Get(url + "/events")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	return lines, resp
}

// next is the next message of a stream.
func next(t *testing.T, lines *bufio.Scanner) pageNews {
	t.Helper()
	for lines.Scan() {
		if body, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			var news pageNews
			if err := json.Unmarshal([]byte(body), &news); err != nil {
				t.Fatalf("%v: %.300s", err, body)
			}
			return news
		}
	}
	t.Fatalf("the stream ended: %v", lines.Err())
	return pageNews{}
}

// A new browser gets all parts of the page, and then only those that changed. The passing of time changes none.
func TestPageSendsWhatChanged(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var mu sync.Mutex
	facts := sampleFacts(now)
	_, h := pageOf(func() pageFacts {
		mu.Lock()
		defer mu.Unlock()
		return facts
	})
	url, _ := served(t, "127.0.0.1:0", h)
	lines, _ := follow(t, url)
	if got := next(t, lines).Parts; len(got) != len(pageParts) {
		t.Fatalf("the first message has %d parts, want all %d", len(got), len(pageParts))
	}
	if news := next(t, lines); len(news.Parts) > 0 && news.Parts["timeline"] == "" { // whose days may just have moved on
		t.Errorf("with nothing changed, a message has the parts %v", news.Parts)
	}
	mu.Lock()
	facts.Status.Events = facts.Status.Events[:1] // the reboot is over
	mu.Unlock()
	news := next(t, lines)
	for len(news.Parts) == 0 {
		news = next(t, lines)
	}
	if !strings.Contains(news.Parts["open"], "pause has begun") || strings.Contains(news.Parts["open"],
		"will reboot") || news.Parts["sinks"] != "" {
		t.Errorf("after one event of two has gone, the parts are %v", news.Parts)
	}
	if want := "needs you · 1 event · vm-db-1 · forewarn"; news.Title != want {
		t.Errorf("the title is %q, want %q", news.Title, want)
	}
}

// The number of concurrent streams is limited; further browsers are asked to try again. A closed stream makes room for
// another, and no request outlives the server.
func TestPageStreamsAreBoundedAndEnd(t *testing.T) {
	p, h := pageOf(func() pageFacts { return sampleFacts(time.Now()) })
	url, stop := served(t, "127.0.0.1:0", h)
	open := func(want int) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			p.mu.Lock()
			n := p.streams
			p.mu.Unlock()
			if n == want {
				return
			} else if time.Now().After(deadline) {
				t.Fatalf("%d streams are open, want %d", n, want)
			}
		}
	}
	var all []*http.Response
	for range maxStreams {
		lines, resp := follow(t, url)
		next(t, lines)
		all = append(all, resp)
	}
	_, refused := follow(t, url)
	if refused.StatusCode != http.StatusServiceUnavailable || refused.Header.Get("Retry-After") == "" {
		t.Errorf("one browser too many hears %d, Retry-After %q; want 503 and a time", refused.StatusCode,
			refused.Header.Get("Retry-After"))
	}
	all[0].Body.Close()
	open(maxStreams - 1)
	lines, _ := follow(t, url)
	next(t, lines)
	stop()
	open(0)
	if _, err := io.Copy(io.Discard, all[1].Body); err == nil {
		t.Log("the stream was ended in order") // either way it has ended
	}
}

// A stream continues after the server's timeouts for requests.
func TestPageStreamOutlivesTheTimeoutsOfTheServer(t *testing.T) {
	t.Parallel()
	looks := 0 // under the lock of the page
	_, h := pageOf(func() pageFacts {
		looks++
		return pageFacts{Status: bridge.Status{Version: fmt.Sprint("look ", looks)}}
	})
	server := httptest.NewUnstartedServer(h)
	server.Config.ReadTimeout, server.Config.WriteTimeout = 100*time.Millisecond, 100*time.Millisecond
	server.Start()
	defer server.Close()
	lines, resp := follow(t, server.URL)
	defer resp.Body.Close() // for which Close waits
	for range 3 {           // a second apart
		if news := next(t, lines); !strings.Contains(news.Parts["foot"], "look ") {
			t.Errorf("a look later the parts are %v", news.Parts)
		}
	}
}
