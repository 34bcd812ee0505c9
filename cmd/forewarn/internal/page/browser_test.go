package page

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"forewarn/bridge"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
)

// browserTimeout is the time that a browser has to show something. It is long because test machines are slow.
const browserTimeout = time.Minute

// A browser is a real one, with one page.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	complaints []string
}

// browse starts a browser that ends with the test. The test is skipped if there is no browser, and unless
// FOREWARN_BROWSER is set, as by .ci/full: the other tests of the page need none, and this takes 15 seconds.
func browse(t *testing.T) *browser {
	t.Helper()
	if os.Getenv("FOREWARN_BROWSER") == "" && os.Getenv("FOREWARN_SHOTS") == "" {
		t.Skip("takes a quarter of a minute; FOREWARN_BROWSER=yes looks at the page in Chromium, as .ci/full does")
	}
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Skip("there is no Chromium here to look at the page with; on Debian: apt-get install chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()),
		chromedp.WSURLReadTimeout(browserTimeout))
	if runtime.GOOS == "linux" && os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // which root cannot have
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*browserTimeout)
	ctx, stop := chromedp.NewExecAllocator(ctx, options...)
	ctx, closed := chromedp.NewContext(ctx)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx)
		closed()
		stop()
		cancel()
	})
	b := &browser{t: t, ctx: ctx}
	if err := chromedp.Listen(ctx, b.heard); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	return b
}

// heard records what a page must not do: a script error, or something that the policy refuses.
func (b *browser) heard(ev any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch ev := ev.(type) {
	case *cdplog.EventEntryAdded:
		if ev.Entry.Level == "error" || ev.Entry.Source == "security" {
			b.complaints = append(b.complaints, ev.Entry.Text+" "+ev.Entry.URL)
		}
	case *cdpruntime.EventExceptionThrown:
		b.complaints = append(b.complaints, fmt.Sprintf("%+v", *ev.ExceptionDetails))
	}
}

// complained gives what was noted, and forgets it.
func (b *browser) complained() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.complaints
	b.complaints = nil
	return all
}

// do takes steps, all of which must succeed.
func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

// ask is the value of a JavaScript expression in the page.
func ask[T any](b *browser, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits until a JavaScript expression is true of the page.
func (b *browser) until(what, expression string) {
	b.t.Helper()
	for deadline := time.Now().Add(browserTimeout); !ask[bool](b, expression); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("the page never showed %s; it shows:\n%s", what, ask[string](b, "document.body.innerText"))
		}
	}
}

// served serves h on loopback until the test ends or stop is called.
func served(t *testing.T, address string, h http.Handler) (url string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	go server.Serve(l)
	stop = func() { server.Close() }
	t.Cleanup(stop)
	return "http://" + l.Addr().String(), stop
}

// shot keeps a picture of the whole page when FOREWARN_SHOTS names a directory.
func (b *browser) shot(name string, width int64, theme string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.do(chromedp.EmulateViewport(width, 900))
	png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err != nil {
		b.t.Fatal(err)
	}
	if dir := os.Getenv("FOREWARN_SHOTS"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
}

// axNames are the accessible names of what is on the page, by role, as a screen reader is given them.
func (b *browser) axNames() map[string][]string {
	b.t.Helper()
	tree, err := chromedp.Call(b.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	if err != nil {
		b.t.Fatal(err)
	}
	names := map[string][]string{}
	for _, n := range tree.Nodes {
		if n.Ignored || n.Role == nil {
			continue
		}
		name := ""
		if n.Name != nil {
			name = strings.Trim(string(n.Name.Value), `"`)
		}
		role := strings.Trim(string(n.Role.Value), `"`)
		names[role] = append(names[role], name)
	}
	return names
}

// An event appears on the open page, counts down, starts and ends, without a reload or a violation of the policy.
// Hostile names are shown as text. The page says when forewarn is unreachable, and continues when it is back.
func TestPageShowsAnEventLive(t *testing.T) {
	t.Parallel()
	b := browse(t)
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	log := slog.New(slog.DiscardHandler)
	box, err := outbox.Open(t.TempDir(), outbox.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := bridge.New(bridge.Options{
		Client: imds.NewClient(azure.URL, imds.DefaultAPIVersion, log,
			nil), Outbox: box, Log: log, Interval: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- watcher.Run(running) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	}()
	handler := Handler(watcher, box, http.NotFoundHandler(), "127.0.0.1:0")
	url, away := served(t, "127.0.0.1:0", handler)

	b.do(chromedp.Navigate(url))
	b.until("that it is live", `document.getElementById('live').textContent.startsWith('Live')`)
	b.until("that nothing is announced",
		`document.getElementById('open').textContent.includes('Azure announces nothing for this VM.')`)
	ask[int](b, `window.neverReloaded = 1`)

	const attack = `<img src=x onerror="document.title='taken'">`
	e := azure.Schedule(imdstest.Event{Type: "Reboot", Resources: []string{"vm-0", attack},
		NotBefore: time.Now().Add(9 * time.Minute)})
	b.until("the event", `document.querySelector('#open h3')?.textContent === 'vm-0 will reboot'`)
	count := `document.querySelector('#open .count').textContent`
	first := ask[string](b, count)
	b.until("that it counts down", fmt.Sprintf(`%s !== %q`, count, first))
	if second := ask[string](b, count); !regexp.MustCompile(`^in 8 min \d+ s$`).MatchString(second) || inSeconds(t,
		second) >= inSeconds(t, first) {
		t.Errorf("the countdown goes from %q to %q", first, second)
	}
	b.until("the machine by its name",
		fmt.Sprintf(`Array.from(document.querySelectorAll('.vms li'), (li) => li.textContent).includes(%q)`, attack))
	if n := ask[int](b, `document.images.length`); n != 0 {
		t.Errorf("the page has %d images, want none", n)
	}

	azure.Start(e.ID)
	b.until("that it has begun", `document.querySelector('#open h3')?.textContent === 'vm-0: reboot has begun'`)
	bar := "bar-" + e.ID
	for range 30 { // with the keyboard alone
		b.do(chromedp.KeyEvent(kb.Tab))
		if ask[string](b, `document.activeElement.id`) == bar {
			break
		}
	}
	b.until("the details of the bar that has the focus",
		fmt.Sprintf(`document.activeElement.id === %q && getComputedStyle(document.activeElement.querySelector('.tip')).display !== 'none'`, bar))

	azure.End(e.ID)
	b.until("that it is over",
		`document.getElementById('open').textContent.includes('Azure announces nothing for this VM.')`)
	b.until("its bar, over",
		fmt.Sprintf(`document.getElementById(%q).getAttribute('aria-label').startsWith('vm-0: reboot is over')`, bar))
	if got := ask[string](b, `document.activeElement.id`); got != bar {
		t.Errorf("the focus has moved from %s to %q while the page changed", bar, got)
	}
	for _, c := range b.complained() {
		t.Errorf("the browser complains: %s", c)
	}

	away()
	b.until("that forewarn is away", `document.getElementById('live').textContent.startsWith('Not live')`)
	served(t, strings.TrimPrefix(url, "http://"), handler)
	b.until("that forewarn is back", `document.getElementById('live').textContent.startsWith('Live')`)
	if ask[int](b, `window.neverReloaded || 0`) != 1 {
		t.Error("the page was reloaded")
	}
	if title := ask[string](b, `document.title`); title != "vm-0 · forewarn" {
		t.Errorf("the title is %q", title)
	}
}

// inSeconds reads a countdown.
func inSeconds(t *testing.T, count string) int {
	t.Helper()
	var minutes, seconds int
	if _, err := fmt.Sscanf(count, "in %d min %d s", &minutes, &seconds); err != nil {
		t.Fatalf("%q: %v", count, err)
	}
	return 60*minutes + seconds
}

// The page fits a phone and a desktop, in light and dark mode. It is accessible: every control has a name, and tables
// stay tables for screen readers when they are displayed as blocks.
func TestPageFitsEveryScreen(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, night := range []struct {
		name   string
		facts  pageFacts
		tables int
	}{{"busy", sampleFacts(now), 3}, {"calm", calmFacts(now), 2}, {"hostile", hostileFacts(now), 3}} {
		t.Run(night.name, func(t *testing.T) {
			b := browse(t)
			_, h := pageOf(func() pageFacts { return night.facts })
			url, _ := served(t, "127.0.0.1:0", h)
			b.do(chromedp.Navigate(url))
			b.until("that it is live", `document.getElementById('live').textContent.startsWith('Live')`)
			for _, width := range []int64{320, 760, 1600} {
				ask[bool](b, `document.getElementById('lives').open = false`)
				for _, theme := range []string{"light", "dark"} {
					b.shot(fmt.Sprintf("%s-%d-%s", night.name, width, theme), width, theme)
				}
				ask[bool](b, `document.getElementById('lives').open = true`)
				if wide := ask[int64](b, "document.documentElement.scrollWidth"); wide > width {
					t.Errorf("on a screen %d wide the page is %d wide", width, wide)
				}
				names := b.axNames()
				for _, role := range []string{"link", "heading", "table", "columnheader", "rowheader", "DisclosureTriangle",
					"region"} {
					if len(names[role]) == 0 {
						t.Errorf("on a screen %d wide there is no %s", width, role)
					}
					if slices.Contains(names[role], "") {
						t.Errorf("on a screen %d wide a %s has no name: %q", width, role, names[role])
					}
				}
				// A phone shows of each sink only what there is to say; a screen reader still hears of every column.
				if seen := ask[bool](b,
					`Array.from(document.querySelectorAll('#sinks td.none')).some((td) => td.offsetHeight > 1)`); seen != (width > 700) {
					t.Errorf("on a screen %d wide, that a sink has nothing to say of a column is seen: %v", width, seen)
				}
				if thin := ask[string](b,
					`Array.from(document.querySelectorAll('td:not(.none)')).find((td) => td.offsetWidth < innerWidth / 2)?.innerText || ''`); width < 700 && thin != "" {
					t.Errorf("on a screen %d wide a cell takes less than half of it: %q", width, thin)
				}
				if n, want := len(names["gridcell"])+len(names["cell"]), ask[int](b,
					`document.querySelectorAll('td').length`); n != want {
					t.Errorf("on a screen %d wide there are %d cells, want %d", width, n, want)
				}
				if n := len(names["table"]); n != night.tables {
					t.Errorf("on a screen %d wide there are %d tables, want %d", width, n, night.tables)
				}
				bars := slices.DeleteFunc(names["link"], func(s string) bool { return !strings.Contains(s, ". Announced ") })
				if len(bars) != len(night.facts.Histories) {
					t.Errorf("on a screen %d wide %d bars have their details for a name, want %d: %q", width, len(bars),
						len(night.facts.Histories), names["link"])
				}
			}
			for _, c := range b.complained() {
				t.Errorf("the browser complains: %s", c)
			}
		})
	}
}

// Without JavaScript the page shows the times when it was rendered, and says that it does not update.
func TestPageWithoutScriptInABrowser(t *testing.T) {
	t.Parallel()
	b := browse(t)
	now := time.Now()
	_, h := pageOf(func() pageFacts { return sampleFacts(now) })
	url, _ := served(t, "127.0.0.1:0", h)
	if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled,
		emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
		t.Fatal(err)
	}
	b.do(chromedp.Navigate(url))
	text := ask[string](b, `document.body.innerText`)
	for _, want := range []string{"Without JavaScript the page does not update", "vm-db-1 will reboot", "in 14 min", "As of "} {
		if !strings.Contains(text, want) {
			t.Errorf("without script the page lacks %q:\n%s", want, text)
		}
	}
	b.shot("page-without-script", 900, "light")
}
