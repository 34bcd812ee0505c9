package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
)

// controlPaths are where the control socket may be, best first.
func controlPaths(s *settings.Settings, getenv func(string) string) []string {
	if s.Control != "" {
		return []string{s.Control}
	}
	paths := []string{filepath.Join(s.State, "control.sock")}
	if dir := getenv("RUNTIME_DIRECTORY"); dir != "" {
		paths = append(paths, filepath.Join(filepath.SplitList(dir)[0], "control.sock"))
	}
	return paths
}

// longestSocket is how long the path of a socket may be on every system; some take a few bytes more.
const longestSocket = 103

// listenControl opens the control socket, for root and this user only. Windows has no modes: there it is open to whom the
// access list of its directory lets write.
func listenControl(s *settings.Settings, getenv func(string) string, log *slog.Logger) (net.Listener, error) {
	var errs []error
	for _, path := range controlPaths(s, getenv) {
		if len(path) > longestSocket {
			errs = append(errs, fmt.Errorf("%s: longer than the path of a socket may be, %d bytes", path, longestSocket))
			continue
		}
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			c.Close()
			errs = append(errs, fmt.Errorf("%s: another forewarn answers there", path))
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by a crash
			errs = append(errs, err)
			continue
		}
		l, err := listenPrivate(path, log)
		if err == nil {
			return l, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", path, reason(err)))
	}
	return nil, errors.Join(errs...)
}

// control serves what commands ask a running bridge.
func control(b *bridge.Bridge, o *outbox.Outbox) http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = wording.PrintJSON(w, v)
	}
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { answer(w, b.Status()) })
	mux.HandleFunc("GET /outbox", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if err := checkSinks(b.Sinks(), q.Get("sink")); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		list, more := listed(o, outbox.Selection{Route: q.Get("sink"), State: q.Get("state"), Group: q.Get("event")}, limit(q))
		answerRows(w, list, more)
	})
	mux.HandleFunc("GET /outbox/entry", func(w http.ResponseWriter, r *http.Request) {
		e, body, err := o.Show(r.URL.Query().Get("key"))
		switch {
		case errors.Is(err, outbox.ErrUnknownKey):
			http.Error(w, "no such key", http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		default:
			answer(w, shownEntry{e, body})
		}
	})
	mux.HandleFunc("GET /history", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		since, _ := time.Parse(time.RFC3339, q.Get("since"))
		lives, err := bridge.History(o, bridge.Period{Event: q.Get("event"), VM: q.Get("vm"), Since: since})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		lives, more := newest(lives, limit(q))
		answerRows(w, lives, more)
	})
	mux.HandleFunc("GET /tail", func(w http.ResponseWriter, r *http.Request) { tail(w, r, o) })
	change := func(do func(m mutation) ([]outbox.Delivery, error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var m mutation
			if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 32<<20)).Decode(&m); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			if err := checkSinks(b.Sinks(), m.Sink, m.To); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			m.find(o)
			entries, err := do(m)
			if err != nil {
				http.Error(w, err.Error(), http.StatusConflict)
				return
			}
			answer(w, append([]outbox.Delivery{}, entries...))
		}
	}
	mux.HandleFunc("POST /outbox/replay", change(func(m mutation) ([]outbox.Delivery, error) { return b.Replay(m.Keys, m.To, m.By) }))
	mux.HandleFunc("POST /outbox/drop", change(func(m mutation) ([]outbox.Delivery, error) { return b.Drop(m.Keys, m.By) }))
	mux.HandleFunc("POST /approve", serveApproval(b))
	return mux
}

// rows are the answer to a question for a list: all of it, or as much as was asked for.
type rows[T any] struct {
	More int `json:"more"` // that were left out
	Rows []T `json:"rows"`
}

// limit is how many rows are asked for; all of them without.
func limit(q url.Values) int {
	n, err := strconv.Atoi(q.Get("limit"))
	if err != nil {
		return math.MaxInt
	}
	return max(0, n)
}

// answerRows writes rows one after the other, because together they can be large.
func answerRows[T any](w http.ResponseWriter, list []T, more int) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	fmt.Fprintf(w, `{"more":%d,"rows":[`, more)
	for i, row := range list {
		if i > 0 {
			fmt.Fprint(w, ",")
		}
		if enc.Encode(row) != nil {
			return // whoever asked went away
		}
	}
	fmt.Fprint(w, "]}")
}

// tail streams the CloudEvents that are committed from now on, one a line.
func tail(w http.ResponseWriter, r *http.Request, o *outbox.Outbox) {
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(time.Time{})
	_ = rc.SetReadDeadline(time.Time{})
	events, stop := o.Follow()
	defer stop()
	w.Header().Set("Content-Type", "application/jsonl")
	_ = rc.Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case body, ok := <-events:
			if !ok {
				return // it was too slow
			}
			// Every follower has the same body, so it must not be appended to.
			if _, err := fmt.Fprintf(w, "%s\n", body); err != nil || rc.Flush() != nil {
				return
			}
		}
	}
}

// errNoBridge says that no bridge answers on its control socket.
var errNoBridge = errors.New("no forewarn runs with these settings")

// errSilentBridge says that one has the request and nobody knows what it makes of it.
var errSilentBridge = errors.New("does not answer")

// askControl gets path from the running bridge into v.
func (p *program) askControl(ctx context.Context, s *settings.Settings, path string, query url.Values, v any) error {
	return p.callControl(ctx, s, http.MethodGet, path+"?"+query.Encode(), nil, func(body io.Reader) error {
		return json.NewDecoder(body).Decode(v)
	})
}

// tellControl posts a request to the running bridge, and takes the answer into v.
func (p *program) tellControl(ctx context.Context, s *settings.Settings, path string, request, v any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	return p.callControl(ctx, s, http.MethodPost, path, body, func(body io.Reader) error {
		return json.NewDecoder(body).Decode(v)
	})
}

// askOutbox gets path from the running bridge into v. Where none runs, read does the same on the outbox's file.
func (p *program) askOutbox(ctx context.Context, path string, query url.Values, v any, read func(*outbox.Outbox, *settings.Settings) error) error {
	s, err := p.runningPlaces()
	if err != nil {
		return err
	}
	err = p.askControl(ctx, s, path, query, v)
	if errors.Is(err, errNoBridge) {
		return readOutbox(s, func(o *outbox.Outbox) error { return read(o, s) })
	}
	return err
}

// tellOutbox posts a request to the running bridge, and takes the answer into v. Where none runs, change does the same on
// the outbox's file.
func (p *program) tellOutbox(ctx context.Context, path string, request, v any, change func(*outbox.Outbox, *settings.Settings) error) error {
	s, err := p.runningPlaces()
	if err != nil {
		return err
	}
	err = p.tellControl(ctx, s, path, request, v)
	if errors.Is(err, errNoBridge) {
		return openOutbox(s, p.log(), func(o *outbox.Outbox) error { return change(o, s) })
	}
	return err
}

// callControl makes a request of the running bridge and gives the body of its answer to read.
func (p *program) callControl(ctx context.Context, s *settings.Settings, method, path string, body []byte, read func(io.Reader) error) error {
	var refused error
	for _, socket := range controlPaths(s, p.getenv) {
		c := &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true, ResponseHeaderTimeout: 10 * time.Second,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", socket)
			},
		}}
		req, err := http.NewRequestWithContext(ctx, method, "http://forewarn"+path, bytes.NewReader(body))
		if err != nil {
			return err
		}
		resp, err := c.Do(req)
		if err != nil {
			var absent *net.OpError
			if errors.Is(err, fs.ErrPermission) {
				refused = fmt.Errorf("control socket %s: permission denied; %s", socket, wording.TryElevated)
			} else if !errors.As(err, &absent) || absent.Op != "dial" {
				refused = fmt.Errorf("a forewarn listens on %s but %w: %w", socket, errSilentBridge, errors.Unwrap(err)) // without the URL
			}
			continue
		}
		defer resp.Body.Close()
		switch resp.StatusCode {
		case http.StatusOK:
			return read(resp.Body)
		case http.StatusNotFound:
			return errUnknownKey
		}
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return errors.New(strings.TrimSpace(string(text)))
	}
	if refused != nil {
		return exit(exitUnavailable, refused)
	}
	return exit(exitUnavailable, fmt.Errorf("%w (looked for %s); start it with forewarn run, or name its settings with --config",
		errNoBridge, strings.Join(controlPaths(s, p.getenv), ", ")))
}

// user is who asks, for the record.
func (p *program) user() string {
	name := "somebody"
	if p.actsFor != nil {
		name = "root" // who has become another for it
	} else if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if sudo := p.getenv("SUDO_USER"); sudo != "" && sudo != name {
		name += " (" + sudo + ")"
	}
	return wording.Printable(name)
}
