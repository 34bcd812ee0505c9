// Package control connects commands with the running forewarn: HTTP on a socket that only root and forewarn's own user
// can reach. Nothing that changes state listens anywhere else.
//
// A Client finds the running forewarn by its Location, which can be read even from a broken settings file
// (location.go). If no forewarn runs, the client opens the outbox's file instead, for everything that the file can
// answer; client and server share that code (outbox.go). Handler is the server (server.go). The rest is the socket: its
// default paths, listen and dial. It is a Unix socket (socket.go, socket_linux.go, socket_other.go), and on Windows a
// named pipe (socket_windows.go, pipe_windows.go).
package control

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/outbox"
	"forewarn/bridge/relay"
	"forewarn/cmd/forewarn/internal/wording"
)

// ErrNotRunning means that there is no running forewarn.
var ErrNotRunning = errors.New("no forewarn runs with these settings")

// ErrSilent means that a forewarn accepted the connection but did not answer; it may have carried out the request.
var ErrSilent = errors.New("does not answer")

// ErrTooSlow means that a follower read so slowly that CloudEvents were left out.
var ErrTooSlow = errors.New("more than 1,000 CloudEvents waited to be read, so the rest was left out; " +
	"for what was missed run forewarn history")

// ErrUnknownKey means that no delivery has the key.
var ErrUnknownKey = errors.New("no such delivery; forewarn outbox list shows the keys")

// An UnavailableError means that no forewarn answers and that its outbox cannot be opened either.
type UnavailableError struct {
	Err  error
	Busy bool // another process holds the outbox; trying again may help
}

func (e *UnavailableError) Error() string { return e.Err.Error() }
func (e *UnavailableError) Unwrap() error { return e.Err }

// An untrustedError says why nothing is asked on a socket.
type untrustedError struct{ socket, reason string }

func (e *untrustedError) Error() string { return e.socket + ": " + e.reason }

// A Client asks the running forewarn. If none runs, List, Show, History, Replay and Drop work on the outbox's file;
// Status, Follow, Approve and Reload return an UnavailableError that wraps ErrNotRunning. With the settings of a relay, no
// forewarn of a VM is asked, and no outbox is opened.
type Client struct {
	Location
	Sinks []string // names of the sinks in the settings
	Page  string   // the address of the page; "" for none
	Start string   // the command that starts this forewarn, for errors
	Log   *slog.Logger

	dial func(ctx context.Context, socket string) (net.Conn, error) // nil for the socket of that path
}

// connect connects to a socket.
func (c *Client) connect(ctx context.Context, socket string) (net.Conn, error) {
	if c.dial != nil {
		return c.dial(ctx, socket)
	}
	return dial(ctx, socket)
}

// Status returns the status of the running forewarn.
func (c *Client) Status(ctx context.Context) (status bridge.Status, err error) {
	err = c.get(ctx, "/status", nil, &status)
	return status, err
}

// Follow calls line with each CloudEvent that the running forewarn commits from now on: one line of JSON, with its line
// end. It calls following once, as soon as no CloudEvent can be missed any more. It returns when line returns an error,
// ctx is done, forewarn ends, or, with ErrTooSlow, line takes so long that more than 1,000 CloudEvents wait for it.
func (c *Client) Follow(ctx context.Context, following func(), line func([]byte) error) error {
	return c.call(ctx, http.MethodGet, "/tail", nil, func(body io.Reader) error {
		following()
		lines := bufio.NewReader(body)
		for {
			text, err := lines.ReadBytes('\n')
			switch {
			case err == io.EOF: // forewarn ended the answer as it should be ended
				return ErrTooSlow
			case err != nil:
				return fmt.Errorf("the running forewarn ended: %w", err)
			}
			if err := line(text); err != nil {
				return err
			}
		}
	})
}

// Approve asks the running forewarn to approve an event. shown is the digest of the event as the user saw it; forewarn
// refuses if the event has changed since.
func (c *Client) Approve(ctx context.Context, event, shown, by string) (a cloudevent.Approval, err error) {
	err = c.post(ctx, "/approve", approvalRequest{event, shown, by}, &a)
	return a, err
}

// Reload asks the running forewarn to read its settings again.
func (c *Client) Reload(ctx context.Context, by string) (done Reloaded, err error) {
	err = c.post(ctx, "/reload", reloadRequest{by}, &done)
	return done, err
}

// List returns at most n of the selected deliveries.
func (c *Client) List(ctx context.Context, sel outbox.Selection, n int) (found Rows[ListedDelivery], err error) {
	q := url.Values{"sink": {sel.Route}, "state": {sel.State}, "event": {sel.Group}, "limit": {strconv.Itoa(n)}}
	err = c.getOrRead(ctx, "/outbox", q, &found, func(o *outbox.Outbox) error {
		found = list(o, sel, n)
		return checkSinks(append(slices.Collect(maps.Keys(o.Stats())), c.Sinks...), sel.Route)
	})
	return found, err
}

// Show returns the delivery with that key, or ErrUnknownKey.
func (c *Client) Show(ctx context.Context, key string) (shown ShownDelivery, err error) {
	err = c.getOrRead(ctx, "/outbox/entry", url.Values{"key": {key}}, &shown, func(o *outbox.Outbox) (err error) {
		shown, err = show(o, key)
		return err
	})
	return shown, err
}

// History returns the newest n recorded events of the period.
func (c *Client) History(
	ctx context.Context, period bridge.Period, n int,
) (histories Rows[bridge.EventHistory], err error) {
	q := url.Values{
		"event": {period.Event}, "vm": {period.VM}, "since": {period.Since.Format(time.RFC3339)},
		"limit": {strconv.Itoa(n)},
	}
	err = c.getOrRead(ctx, "/history", q, &histories, func(o *outbox.Outbox) (err error) {
		histories, err = history(o, period, n)
		return err
	})
	return histories, err
}

// Replay makes dead letters pending again, and returns them.
func (c *Client) Replay(ctx context.Context, m Mutation) ([]outbox.Delivery, error) {
	return c.mutate(ctx, "/outbox/replay", m, func(tx *outbox.Tx, keys []string) ([]outbox.Delivery, error) {
		return tx.Replay(keys, m.To, m.By)
	})
}

// ReplayPast makes a relay send what is in its stream to a sink again, part by part, and returns all parts as one.
func (c *Client) ReplayPast(ctx context.Context, p relay.ReplayRequest) (all relay.ReplayPart, err error) {
	for {
		var part relay.ReplayPart
		if err := c.post(ctx, "/replay", p, &part); err != nil {
			return all, err
		}
		all.Replayed = append(all.Replayed, part.Replayed...)
		all.Over = append(all.Over, part.Over...)
		slices.Sort(all.Over)
		all.Over = slices.Compact(all.Over)
		if part.After == 0 {
			return all, nil
		}
		p.After = part.After
	}
}

// Drop removes deliveries for good, and returns them.
func (c *Client) Drop(ctx context.Context, m Mutation) ([]outbox.Delivery, error) {
	return c.mutate(ctx, "/outbox/drop", m, func(tx *outbox.Tx, keys []string) ([]outbox.Delivery, error) {
		return tx.Drop(keys, m.By)
	})
}

func (c *Client) mutate(
	ctx context.Context, path string, m Mutation, do func(tx *outbox.Tx, keys []string) ([]outbox.Delivery, error),
) (changed []outbox.Delivery, err error) {
	err = c.post(ctx, path, m, &changed)
	if errors.Is(err, ErrNotRunning) && !c.Relay {
		err = c.write(func(o *outbox.Outbox) (err error) {
			if err := checkSinks(append(slices.Collect(maps.Keys(o.Stats())), c.Sinks...), m.Sink, m.To); err != nil {
				return err
			}
			m.addKeys(o, path == "/outbox/replay")
			stored := o.Update(time.Now(), func(tx *outbox.Tx) { changed, err = do(tx, m.Keys) })()
			return cmp.Or(withHint(err), stored)
		})
	}
	return changed, err
}

// getOrRead gets path from the running forewarn into v. If none runs, it calls read with the outbox opened from its
// file.
func (c *Client) getOrRead(
	ctx context.Context, path string, query url.Values, v any, read func(*outbox.Outbox) error,
) error {
	err := c.get(ctx, path, query, v)
	if errors.Is(err, ErrNotRunning) && !c.Relay {
		return c.read(read)
	}
	return err
}

// read calls f with the outbox opened read-only from its file.
func (c *Client) read(f func(*outbox.Outbox) error) error {
	o, err := outbox.OpenReadOnly(c.State)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("no forewarn is running, and there is no outbox in %s; name the settings with --config", c.State)
		return &UnavailableError{Err: err}
	case errors.Is(err, outbox.ErrLocked):
		err = fmt.Errorf("a forewarn holds the outbox in %s but does not answer on its control socket", c.State)
		return &UnavailableError{Err: err, Busy: true}
	case err != nil:
		return err
	}
	return errors.Join(f(o), o.Close())
}

// write calls f with the outbox opened from its file for changes. It does not create a missing file.
func (c *Client) write(f func(*outbox.Outbox) error) error {
	if err := c.read(func(*outbox.Outbox) error { return nil }); err != nil {
		return err
	}
	o, err := outbox.Open(c.State, outbox.Options{Log: c.Log})
	if err != nil {
		return &UnavailableError{Busy: true, Err: err}
	}
	if err := o.Durable(); err != nil { // what is on the disk may not be known
		return &UnavailableError{Busy: true, Err: errors.Join(err, o.Close())}
	}
	return errors.Join(f(o), o.Close())
}

// get decodes the answer of the running forewarn to a GET of path into v.
func (c *Client) get(ctx context.Context, path string, query url.Values, v any) error {
	return c.call(ctx, http.MethodGet, path+"?"+query.Encode(), nil, decodeInto(v))
}

// post posts a request to the running forewarn and decodes the answer into v.
func (c *Client) post(ctx context.Context, path string, request, v any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	return c.call(ctx, http.MethodPost, path, body, decodeInto(v))
}

func decodeInto(v any) func(io.Reader) error {
	return func(body io.Reader) error { return json.NewDecoder(body).Decode(v) }
}

// call sends a request to the running forewarn and passes the body of the answer to read.
func (c *Client) call(ctx context.Context, method, path string, body []byte, read func(io.Reader) error) error {
	var refused error
	route, _, _ := strings.Cut(path, "?")
	for _, socket := range c.looked() {
		client := &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true, ResponseHeaderTimeout: timeLimit(route, c.Relay) + answerMargin,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.connect(ctx, socket) },
		}}
		req, err := http.NewRequestWithContext(ctx, method, "http://forewarn"+path, bytes.NewReader(body))
		if err != nil {
			return err
		}
		if c.Relay {
			req.Header.Set(headerRelay, "true")
		}
		resp, err := client.Do(req)
		if err != nil {
			var (
				absent    *net.OpError
				untrusted *untrustedError
			)
			if errors.As(err, &untrusted) {
				refused = untrusted
			} else if errors.Is(err, fs.ErrPermission) {
				refused = fmt.Errorf("control socket %s: permission denied; %s", socket, wording.TryElevated)
			} else if !errors.As(err, &absent) || absent.Op != "dial" {
				bare := errors.Unwrap(err) // without the URL
				refused = fmt.Errorf("a forewarn listens on %s but %w: %w", socket, ErrSilent, bare)
			}
			continue
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return read(resp.Body)
		}
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		switch resp.StatusCode {
		case http.StatusNotFound:
			if bytes.HasPrefix(text, []byte("404 ")) { // net/http's own words
				return errors.New("the running forewarn is older than this command and doesn't know it; restart it")
			}
			return ErrUnknownKey
		case http.StatusMisdirectedRequest:
			refused = fmt.Errorf("the forewarn on %s watches a VM and is not a relay; "+
				"name the socket of the relay with the key control of its settings", socket)
			continue
		}
		return errors.New(strings.TrimSpace(string(text)))
	}
	if refused != nil {
		return &UnavailableError{Err: refused}
	}
	if c.servesPage(ctx) {
		return &UnavailableError{Err: &deafError{c.Page, c.looked()}}
	}
	return &UnavailableError{Err: fmt.Errorf(
		"%w (looked for %s); start it with %s, or name its settings with --config",
		ErrNotRunning, strings.Join(c.looked(), ", "), c.Start)}
}

// A deafError means that a forewarn runs, but has no control socket, or not that of these settings. To whoever asks, it is
// one that does not run.
type deafError struct {
	page    string
	sockets []string
}

func (e *deafError) Unwrap() error { return ErrNotRunning }

func (e *deafError) Error() string {
	return fmt.Sprintf("a forewarn serves its page on %s but has no control socket that these settings name (looked for %s); "+
		"name its settings with --config, reload it if state or control was changed, or see in its log why it has none", e.page, strings.Join(e.sockets, ", "))
}

// How long the page may take to show that a forewarn runs, and how much it may say: whatever listens there may answer.
const (
	pagePatience = 2 * time.Second
	maxPage      = 64 << 20
)

// servesPage reports whether a forewarn of this kind serves the page.
func (c *Client) servesPage(ctx context.Context) bool {
	if c.Page == "" {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, pagePatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.Page+"/status.json", nil)
	if err != nil {
		return false
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var status bridge.Status
	err = json.NewDecoder(io.LimitReader(resp.Body, maxPage)).Decode(&status)
	return err == nil && !status.StartedAt.IsZero() && (status.Relay != nil) == c.Relay
}
