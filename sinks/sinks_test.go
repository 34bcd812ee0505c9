package sinks

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/goccy/go-yaml"

	"forewarn/bridge/delivery"
	"forewarn/bridge/systemtest"
)

// A trial is how the promises of all sinks are tried on one kind.
type trial struct {
	// accepts gives settings of a destination that accepts everything, and the ids of what it got.
	accepts func(t *testing.T) (settings string, got func() []string)
	// hangs gives settings of destinations that take a delivery and never answer; began is closed when one has.
	hangs func(t *testing.T) map[string]hung
	// fails gives settings of destinations by what their failure means.
	fails func(t *testing.T) map[string]string
	// takesAll says that every CloudEvent is taken when one is, so that none can be rejected.
	takesAll bool
	// secrets gives settings with a secret in every place where one can stand, of destinations that say back
	// whatever they are told, or cannot be reached, or whose settings are wrong.
	secrets func(t *testing.T) []secretPlace
}

// identityToken is the token of the machine's identity, wherever one asks for it.
const identityToken = "s3cr3t-of-the-identity"

type hung struct {
	settings string
	began    <-chan struct{}
}

type secretPlace struct {
	place    string
	settings string
	secrets  []string // none of which may be seen
	env      map[string]string
}

// trials has a row for each kind that has a file of its own, and for one service: all services are webhooks.
var trials = map[string]trial{
	"email":   {accepts: emailAccepts, hangs: emailHangs, fails: emailFails, secrets: emailSecrets},
	"exec":    {accepts: execAccepts, hangs: execHangs, fails: execFails, secrets: execSecrets},
	"file":    {accepts: fileAccepts, fails: fileFails, takesAll: true},
	"nats":    {accepts: natsAccepts, hangs: natsHangs, fails: natsFails, secrets: natsSecrets},
	"splunk":  {accepts: serviceAccepts, hangs: serviceHangs, fails: serviceFails, secrets: serviceSecrets},
	"slack":   {accepts: slackAccepts, hangs: slackHangs, fails: slackFails, secrets: slackSecrets},
	"syslog":  {accepts: syslogAccepts, hangs: syslogHangs, fails: syslogFails, takesAll: true},
	"webhook": {accepts: webhookAccepts, hangs: webhookHangs, fails: webhookFails, secrets: webhookSecrets},
}

// A sink hands over a CloudEvent once and says so.
func TestSinkAcceptsOnce(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string, trial trial) {
		settings, got := trial.accepts(t)
		s := mustOpen(t, kind, settings, testHost(t))
		answer, err := s.Deliver(t.Context(), deliveries(t)[:1])
		if err != nil {
			t.Fatalf("Deliver = %v", err)
		}
		if answer.Status == "" || strings.Contains(answer.Status, "\n") {
			t.Errorf("Answer.Status = %q, want a line for people", answer.Status)
		}
		if got, want := got(), []string{deliveries(t)[0].Event.ID()}; !slices.Equal(got, want) {
			t.Errorf("the destination got %q, want %q", got, want)
		}
	})
}

// A sink can be reached without anything being delivered, and says so in a line.
func TestConnectDeliversNothing(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string, trial trial) {
		settings, got := trial.accepts(t)
		s, ok := mustOpen(t, kind, settings, testHost(t)).(delivery.Connecter)
		if !ok {
			t.Fatal("it is no delivery.Connecter")
		}
		answer, err := s.Connect(t.Context())
		if err != nil || answer == "" || strings.Contains(answer, "\n") {
			t.Errorf("Connect = %q, %v; want a line for people", answer, err)
		}
		if got := got(); len(got) > 0 {
			t.Errorf("the destination got %q, want nothing", got)
		}
	})
}

// A sink that is told to stop makes no attempt.
func TestSinkMakesNoAttemptAfterTheEnd(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string, trial trial) {
		settings, got := trial.accepts(t)
		s := mustOpen(t, kind, settings, testHost(t))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Deliver(ctx, deliveries(t)[:1]); !errors.Is(err, context.Canceled) {
			t.Errorf("Deliver = %v, want %v", err, context.Canceled)
		}
		if got := got(); len(got) > 0 {
			t.Errorf("the destination got %q, want nothing", got)
		}
	})
}

// A destination that never answers holds a sink no longer than its context lasts.
func TestHungDestinationEndsWithContext(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, kind string, trial trial) {
		if trial.hangs == nil {
			t.Skip("a local file cannot be made to hang")
		}
		for name, h := range trial.hangs(t) {
			t.Run(name, func(t *testing.T) {
				s := mustOpen(t, kind, h.settings, testHost(t))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					<-h.began
					cancel()
				}()
				_, err := s.Deliver(ctx, deliveries(t)[:1])
				if !errors.Is(err, context.Canceled) || errors.Is(err, delivery.ErrBlocked) ||
					errors.Is(err, delivery.ErrRejected) {
					t.Errorf("Deliver = %v, want %v and to be tried again", err, context.Canceled)
				}
			})
		}
	})
}

// A destination that never answers holds a sink no longer than an attempt may last, and says nothing about the
// CloudEvent.
func TestHungDestinationEndsAtTheTimeout(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, kind string, trial trial) {
		if trial.hangs == nil {
			t.Skip("a local file cannot be made to hang")
		}
		for name, h := range trial.hangs(t) {
			t.Run(name, func(t *testing.T) {
				granted := strings.NewReplacer("stop_grace: 1h", "stop_grace: 0s") // a command gets it on top
				s := mustOpen(t, kind, granted.Replace(h.settings), testHost(t))
				over := errors.New("the time is over")
				ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, over)
				defer cancel()
				if _, err := s.Deliver(ctx, deliveries(t)[:1]); classOf(err) != again || !errors.Is(err, over) {
					t.Errorf("Deliver = %v, want that the time is over, and to be tried again", err)
				}
			})
		}
	})
}

// An attempt whose time is over before it begins says so too.
func TestAnAttemptThatComesTooLateSaysSo(t *testing.T) {
	over := errors.New("the time is over")
	eachKind(t, func(t *testing.T, kind string, trial trial) {
		settings, _ := trial.accepts(t)
		s := mustOpen(t, kind, settings, testHost(t))
		ctx, cancel := context.WithTimeoutCause(t.Context(), 0, over)
		defer cancel()
		if _, err := s.Deliver(ctx, deliveries(t)[:1]); !errors.Is(err, over) {
			t.Errorf("Deliver = %v, want that the time is over", err)
		}
	})
}

// The clock of a connection may strike a moment before that of the attempt. It is the end of the attempt all the same.
func TestTheClockOfAConnectionIsTheAttempts(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, kind string, trial trial) {
		if trial.hangs == nil || kind == "exec" {
			t.Skip("it connects to nothing")
		}
		for name, settings := range trial.hangs(t) {
			h := testHost(t)
			h.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
				time.Sleep(50 * time.Millisecond) // a dial takes some time; not every kind works in a bubble
				return nil, os.ErrDeadlineExceeded
			}
			s := mustOpen(t, kind, settings.settings, h)
			over := errors.New("the time is over")
			ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, over)
			defer cancel()
			if _, err := s.Deliver(early{ctx}, deliveries(t)[:1]); !errors.Is(err, over) {
				t.Errorf("%s: Deliver = %v, want that the time is over", name, err)
			}
		}
	})
}

// early has a deadline that passes before it is done.
type early struct{ context.Context }

func (e early) Deadline() (time.Time, bool) {
	at, ok := e.Context.Deadline()
	return at.Add(-180 * time.Millisecond), ok
}

// A failure says what it means: that it may pass, that somebody must act, or that this CloudEvent never will be taken.
func TestFailuresOfEveryKindHaveClasses(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	eachKind(t, func(t *testing.T, kind string, trial trial) {
		all := trial.fails(t)
		for class, settings := range all {
			s := mustOpen(t, kind, settings, testHost(t))
			_, err := s.Deliver(t.Context(), deliveries(t)[:1])
			if classOf(err) != class || strings.Contains(fmt.Sprint(err), "\n") {
				t.Errorf("%s: Deliver = %v, want it %s in one line", class, err, class)
			}
		}
		if len(all) != 3 && !trial.takesAll {
			t.Errorf("%d classes are tried, want all three", len(all))
		}
	})
}

// No secret is in an error, an answer or a log line, wherever it stands and whatever the destination says back.
func TestNoSecretIsEverShown(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	tokens := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"access_token":%q,"expires_in":"3600"}`, identityToken)
	})).URL
	eachKind(t, func(t *testing.T, kind string, trial trial) {
		if trial.secrets == nil {
			t.Skip("it has no secrets")
		}
		for _, p := range trial.secrets(t) {
			var log bytes.Buffer
			h := testHost(t)
			h.Getenv = func(name string) string { return p.env[name] }
			h.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			h.Endpoint = tokens
			opened, err := open(kind, p.settings, h)
			s := opened.Sink
			var answer delivery.Answer
			var tried bool
			var reached, shown string
			var unreached, unshown error
			if err == nil {
				patience := time.Minute
				if kind == "nats" {
					patience = 2 * time.Second // two of its servers never answer
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				answer, err = s.Deliver(ctx, deliveries(t)[:1])
				reached, unreached = s.(delivery.Connecter).Connect(ctx)
				cancel()
				shown, unshown = s.(delivery.Renderer).Render(deliveries(t)[0])
				closeSink(s)
				tried = true
			}
			said := fmt.Sprintf("%v\n%+v\n%#v\n%v\n%s\n%v", err, err, err, answer, &log, s)
			said += fmt.Sprintf("\n%s\n%+v\n%s\n%+v", reached, unreached, shown, unshown)
			for cause := err; cause != nil; cause = errors.Unwrap(cause) {
				said += fmt.Sprintf("\n%v\n%+v\n%#v", cause, cause, cause)
			}
			for _, secret := range p.secrets {
				if strings.Contains(strings.ToLower(said), strings.ToLower(secret)) {
					t.Errorf("%s: %q is in what the sink says:\n%s", p.place, secret, said)
				}
			}
			if !tried && !strings.HasPrefix(p.place, "wrong") {
				t.Errorf("%s: %v", p.place, err)
			}
		}
	})
}

// The process-wide HTTP client belongs to nobody: no sink uses it or changes it.
func TestDefaultHTTPClientIsLeftAlone(t *testing.T) {
	client, transport := http.DefaultClient, http.DefaultTransport
	trap := roundTrip(func(r *http.Request) (*http.Response, error) {
		t.Errorf("the default transport was asked for %s", r.URL.Redacted())
		return nil, errors.New("trapped")
	})
	http.DefaultClient, http.DefaultTransport = &http.Client{Transport: trap}, trap
	defer func() { http.DefaultClient, http.DefaultTransport = client, transport }()
	eachKind(t, func(t *testing.T, kind string, trial trial) {
		settings, _ := trial.accepts(t)
		s := mustOpen(t, kind, settings, testHost(t))
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
			t.Errorf("Deliver = %v", err)
		}
		_, ok := http.DefaultTransport.(roundTrip)
		_, still := http.DefaultClient.Transport.(roundTrip)
		if c := http.DefaultClient; !ok || !still || c.Timeout != 0 || c.Jar != nil || c.CheckRedirect != nil {
			t.Error("the default client or transport was changed")
		}
	})
}

// A sink that is closed leaves no goroutine behind, not even after an attempt that was broken off.
func TestClosedSinkLeavesNothingRunning(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string, trial trial) {
		before := runtime.NumGoroutine()
		t.Run("deliveries", func(t *testing.T) { // whose cleanups end the destinations
			settings, _ := trial.accepts(t)
			s := mustOpen(t, kind, settings, testHost(t))
			if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
				t.Errorf("Deliver = %v", err)
			}
			if trial.hangs == nil {
				return
			}
			for _, h := range trial.hangs(t) {
				s := mustOpen(t, kind, h.settings, testHost(t))
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					<-h.began
					cancel()
				}()
				s.Deliver(ctx, deliveries(t)[:1])
			}
		})
		deadline := time.After(10 * time.Second)
		for runtime.NumGoroutine() > before {
			select {
			case <-deadline:
				stacks := make([]byte, 1<<20)
				t.Fatalf("%d goroutines, want %d:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
}

// What the settings need not say: machines hear every change however late, people the state as it is now, and a command
// what is true now.
func TestTermsByDefault(t *testing.T) {
	machine := delivery.Terms{Timeout: 10 * time.Second, MaxAge: week, Late: delivery.LateSend, Batch: 1}
	people := delivery.Terms{
		Timeout: 10 * time.Second, MaxAge: week, Late: delivery.LateLatest, Batch: 1,
		DigestAbove: 5,
	}
	mail := people // for the mail two minutes, and for token_command half a one
	mail.Timeout = 150 * time.Second
	record := machine
	record.MaxAge = 0 // never
	file, syslog := record, record
	file.Batch, syslog.Batch = 256, 64
	act := delivery.Terms{MaxAge: week, Late: delivery.LateDrop, Batch: 1, Parallel: 4, Durable: true}
	want := map[string]struct {
		terms    delivery.Terms
		audience Audience
	}{
		"webhook": {machine, Either}, "nats": {record, Machines}, "file": {file, Machines}, "syslog": {syslog, Machines},
		"slack": {people, People}, "email": {mail, People}, "exec": {act, Actors},
	}
	for kind, k := range ownKinds {
		if !reflect.DeepEqual(k.Terms, want[kind].terms) || k.For != want[kind].audience {
			t.Errorf("%s has by default %+v for %d, want %+v", kind, k.Terms, k.For, want[kind])
		}
	}
}

// What a service need not say: what starts something begins nothing about an event that is over, nor for a test or an
// approval unless that is asked for; people and incidents have the state as it is now, and all else hears every change.
func TestWhatAServiceIsForSaysWhatItHears(t *testing.T) {
	late := map[string]delivery.Late{
		"people": delivery.LateLatest, "incidents": delivery.LateLatest, "automation": delivery.LateDrop,
	}
	audience := map[string]Audience{"people": People, "incidents": People, "automation": Actors}
	for name, k := range Kinds() {
		if !k.Service {
			continue
		}
		if want := cmp.Or(late[k.Purpose], delivery.LateSend); k.Terms.Late != want {
			t.Errorf("%s, which is for %s, has late: %s by default, want %s", name, k.Purpose, k.Terms.Late, want)
		}
		if k.For != audience[k.Purpose] {
			t.Errorf("%s, which is for %s, has the audience %d, want %d", name, k.Purpose, k.For, audience[k.Purpose])
		}
	}
}

// An unknown key is refused, whatever the kind.
func TestUnknownKeyIsRefused(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string, trial trial) {
		settings, _ := trial.accepts(t)
		if _, err := open(kind, settings+"\nno_such_key: 1\n", testHost(t)); err == nil {
			t.Error("open with no_such_key gave no error")
		}
	})
}

// A further kind is one file and one line in the table: nothing else knows a kind by its name, neither the program nor
// the words that people read.
func TestNothingElseKnowsAKind(t *testing.T) {
	common := []string{"file", "slack", "exec"} // names of attributes, of a function of templates, and of nothing else
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		slashed := filepath.ToSlash(path)
		program := strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") &&
			!strings.HasSuffix(filepath.Dir(path), "test")
		words := strings.HasPrefix(slashed, "../templates/") && !strings.HasSuffix(path, ".go") &&
			!strings.HasSuffix(path, ".md")
		if err != nil || d.IsDir() || !program && !words || slashed == "../sinks/kinds.go" {
			return err
		}
		text := string(read(t, path))
		for kind := range Kinds() {
			own := strings.HasPrefix(slashed, "../sinks/"+kind)
			section := kind == "nats" && strings.HasPrefix(slashed, "../cmd/forewarn/") // of a relay's settings
			measured := strings.HasPrefix(slashed, "../bridge/internal/measure/")       // which is no part of the program
			if own || section || measured || program && slices.Contains(common, kind) {
				continue
			}
			if strings.Contains(text, strconv.Quote(kind)) {
				t.Errorf("%s knows of %s", path, kind)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// eachKind runs f on every kind in trials.
func eachKind(t *testing.T, f func(t *testing.T, kind string, trial trial)) {
	t.Helper()
	for kind := range ownKinds {
		if _, ok := trials[kind]; !ok {
			t.Errorf("kind %s has no trial; give it a row in trials", kind)
		}
	}
	for kind, trial := range trials {
		t.Run(kind, func(t *testing.T) { f(t, kind, trial) })
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// testHost lends nothing of the real host.
func testHost(t *testing.T) Host {
	return Host{
		Getenv: func(string) string { return "" },
		Stdout: io.Discard,
		Log:    slog.New(slog.NewTextHandler(t.Output(), nil)),
		Agent:  "forewarn/test",
	}
}

// open opens a sink from its section of the settings.
func open(kind, settings string, h Host) (Opened, error) {
	return Kinds()[kind].Open(func(to any) error {
		return yaml.UnmarshalWithOptions([]byte(settings), to, yaml.Strict(), yaml.CustomUnmarshaler(oneOrMore))
	}, h)
}

func mustOpen(t *testing.T, kind, settings string, h Host) delivery.Sink {
	t.Helper()
	opened, err := open(kind, settings, h)
	if err != nil {
		t.Fatalf("open %s: %v\n%s", kind, err, settings)
	}
	t.Cleanup(func() { closeSink(opened.Sink) })
	return opened.Sink
}

func closeSink(s delivery.Sink) {
	if c, ok := s.(io.Closer); ok {
		c.Close()
	}
}

// deliveries returns those of testdata/events.jsonl: an event that is scheduled, updated, started and vanished, and one
// of an unheard-of type that is scheduled and vanished. They are as the outbox keeps them.
func deliveries(t *testing.T) []delivery.Delivery {
	t.Helper()
	var all []delivery.Delivery
	for line := range bytes.Lines(read(t, "testdata/events.jsonl")) {
		var ce event.Event
		if err := json.Unmarshal(line, &ce); err != nil {
			t.Fatal(err)
		}
		all = append(all, delivery.Delivery{Event: ce, Attempt: 1})
	}
	return all
}

// idsIn returns the ids of the CloudEvents in a text that has one a line.
func idsIn(t *testing.T, text []byte) []string {
	t.Helper()
	var ids []string
	for line := range bytes.Lines(text) {
		var ce event.Event
		if err := json.Unmarshal(line, &ce); err != nil || line[len(line)-1] != '\n' {
			t.Errorf("line %q is no CloudEvent: %v", line, err)
			continue
		}
		ids = append(ids, ce.ID())
	}
	return ids
}

// wrongKey checks that opening fails at a key, for a reason.
func wrongKey(t *testing.T, kind, settings, key, reason string) {
	t.Helper()
	_, err := open(kind, settings, testHost(t))
	e, ok := errors.AsType[*KeyError](err)
	if !ok || e.Key != key || !strings.Contains(err.Error(), reason) {
		t.Errorf("open of\n%s\ngave %v; want it to be about %s: …%s…", settings, err, key, reason)
	}
}

// oneOrMore reads a list, or one value in place of it, as the settings do.
func oneOrMore(list *[]Value, text []byte) error {
	if yaml.Unmarshal(text, list) == nil {
		return nil
	}
	*list = make([]Value, 1)
	return yaml.Unmarshal(text, &(*list)[0])
}
