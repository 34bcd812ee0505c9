// Package control is how commands ask a running forewarn, and how it answers: HTTP on a socket that only root and its
// own user can reach. Nothing that changes anything listens elsewhere.
//
// A Client finds the forewarn from its Location alone, which a broken settings file still says (location.go). What
// the outbox's file says too, or can be changed in it, the client does on the file where no forewarn runs; server and
// client share the code for that (outbox.go). Handler is the server's side (server.go). The rest is the socket:
// socket.go has what every system does, and each of socket_linux.go, socket_windows.go and socket_other.go has listen
// and dial. Whatever takes the socket's place on a system, such as a named pipe, is those two functions and the paths
// of Location.
package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/wording"
)

// ErrNotRunning says that no forewarn answers on its control socket.
var ErrNotRunning = errors.New("no forewarn runs with these settings")

// ErrSilent says that a forewarn has the request and nobody knows what it makes of it.
var ErrSilent = errors.New("does not answer")

// ErrUnknownKey says that no delivery has the key.
var ErrUnknownKey = errors.New("there is no such delivery; forewarn outbox list shows the keys")

// An UnavailableError says why nobody could be asked: no forewarn answers, and where its file would do, that cannot be
// opened either.
type UnavailableError struct {
	Err  error
	Busy bool // somebody holds the outbox's file, and may soon let go of it
}

func (e *UnavailableError) Error() string { return e.Err.Error() }
func (e *UnavailableError) Unwrap() error { return e.Err }

// A Client asks a running forewarn. What the outbox's file says too, or can be changed in it, it does on the file where
// no forewarn runs.
type Client struct {
	Location
	Sinks []string // names in the settings
	Log   *slog.Logger
}

// Status is how the running forewarn is doing.
func (c *Client) Status(ctx context.Context) (status bridge.Status, err error) {
	err = c.get(ctx, "/status", nil, &status)
	return status, err
}

// Follow calls line with each CloudEvent that the running forewarn commits from now on, a line of JSON with its end,
// until that returns an error. following is called once it is heard.
func (c *Client) Follow(ctx context.Context, following func(), line func([]byte) error) error {
	return c.call(ctx, http.MethodGet, "/tail", nil, func(body io.Reader) error {
		following()
		lines := bufio.NewReader(body)
		for {
			text, err := lines.ReadBytes('\n')
			if err != nil {
				return fmt.Errorf("the forewarn that was followed ended: %w", err)
			}
			if err := line(text); err != nil {
				return err
			}
		}
	})
}

// Approve has the running forewarn approve an event; shown is its digest as it was shown to whoever approves it.
func (c *Client) Approve(ctx context.Context, event, shown, by string) (a cloudevent.Approval, err error) {
	err = c.post(ctx, "/approve", approvalRequest{event, shown, by}, &a)
	return a, err
}

// List lists at most n deliveries.
func (c *Client) List(ctx context.Context, sel outbox.Selection, n int) (found Rows[ListedDelivery], err error) {
	q := url.Values{"sink": {sel.Route}, "state": {sel.State}, "event": {sel.Group}, "limit": {strconv.Itoa(n)}}
	err = c.ask(ctx, "/outbox", q, &found, func(o *outbox.Outbox) error {
		found = list(o, sel, n)
		return checkSinks(append(o.Routes(), c.Sinks...), sel.Route)
	})
	return found, err
}

// Show shows the delivery of that key, ErrUnknownKey if there is none.
func (c *Client) Show(ctx context.Context, key string) (shown ShownDelivery, err error) {
	err = c.ask(ctx, "/outbox/entry", url.Values{"key": {key}}, &shown, func(o *outbox.Outbox) (err error) {
		shown, err = show(o, key)
		return err
	})
	return shown, err
}

// History is what is on record of the newest n events of the period.
func (c *Client) History(ctx context.Context, period bridge.Period, n int) (lives Rows[bridge.Life], err error) {
	q := url.Values{
		"event": {period.Event}, "vm": {period.VM}, "since": {period.Since.Format(time.RFC3339)},
		"limit": {strconv.Itoa(n)},
	}
	err = c.ask(ctx, "/history", q, &lives, func(o *outbox.Outbox) (err error) {
		lives, err = history(o, period, n)
		return err
	})
	return lives, err
}

// Replay makes dead letters pending again, and returns them.
func (c *Client) Replay(ctx context.Context, m Mutation) ([]outbox.Delivery, error) {
	return c.mutate(ctx, "/outbox/replay", m, func(o *outbox.Outbox, keys []string) ([]outbox.Delivery, error) {
		return o.Replay(keys, m.To)
	})
}

// Drop removes deliveries for good, and returns them.
func (c *Client) Drop(ctx context.Context, m Mutation) ([]outbox.Delivery, error) {
	return c.mutate(ctx, "/outbox/drop", m, func(o *outbox.Outbox, keys []string) ([]outbox.Delivery, error) {
		return o.Drop(keys, m.By)
	})
}

func (c *Client) mutate(
	ctx context.Context, path string, m Mutation, do func(o *outbox.Outbox, keys []string) ([]outbox.Delivery, error),
) (changed []outbox.Delivery, err error) {
	err = c.post(ctx, path, m, &changed)
	if errors.Is(err, ErrNotRunning) {
		err = c.write(func(o *outbox.Outbox) (err error) {
			if err := checkSinks(append(o.Routes(), c.Sinks...), m.Sink, m.To); err != nil {
				return err
			}
			m.find(o)
			changed, err = do(o, m.Keys)
			return err
		})
	}
	return changed, err
}

// ask gets path from the running forewarn into v. Where none runs, read does the same on the outbox's file.
func (c *Client) ask(ctx context.Context, path string, query url.Values, v any, read func(*outbox.Outbox) error) error {
	err := c.get(ctx, path, query, v)
	if errors.Is(err, ErrNotRunning) {
		return c.read(read)
	}
	return err
}

// read opens the outbox's file while no forewarn has it.
func (c *Client) read(f func(*outbox.Outbox) error) error {
	o, err := outbox.OpenReadOnly(c.State)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("no forewarn runs, and there is no outbox in %s; name the settings with --config", c.State)
		return &UnavailableError{Err: err}
	case errors.Is(err, outbox.ErrLocked):
		err = fmt.Errorf("a forewarn holds the outbox in %s but does not answer on its control socket", c.State)
		return &UnavailableError{Err: err, Busy: true}
	case err != nil:
		return err
	}
	return errors.Join(f(o), o.Close())
}

// write opens the outbox's file to change it, while no forewarn has it.
func (c *Client) write(f func(*outbox.Outbox) error) error {
	if err := c.read(func(*outbox.Outbox) error { return nil }); err != nil {
		return err
	}
	o, err := outbox.Open(c.State, outbox.Options{Log: c.Log})
	if err != nil {
		return &UnavailableError{Busy: true, Err: err}
	}
	return errors.Join(f(o), o.Close())
}

// get gets path from the running forewarn into v.
func (c *Client) get(ctx context.Context, path string, query url.Values, v any) error {
	return c.call(ctx, http.MethodGet, path+"?"+query.Encode(), nil, decodeInto(v))
}

// post posts a request to the running forewarn, and takes the answer into v.
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

// call makes a request of the running forewarn and gives the body of its answer to read.
func (c *Client) call(ctx context.Context, method, path string, body []byte, read func(io.Reader) error) error {
	var refused error
	for _, socket := range c.sockets() {
		client := &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true, ResponseHeaderTimeout: 10 * time.Second,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, socket) },
		}}
		req, err := http.NewRequestWithContext(ctx, method, "http://forewarn"+path, bytes.NewReader(body))
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			var absent *net.OpError
			if errors.Is(err, fs.ErrPermission) {
				refused = fmt.Errorf("control socket %s: permission denied; %s", socket, wording.TryElevated)
			} else if !errors.As(err, &absent) || absent.Op != "dial" {
				bare := errors.Unwrap(err) // without the URL
				refused = fmt.Errorf("a forewarn listens on %s but %w: %w", socket, ErrSilent, bare)
			}
			continue
		}
		defer resp.Body.Close()
		switch resp.StatusCode {
		case http.StatusOK:
			return read(resp.Body)
		case http.StatusNotFound:
			return ErrUnknownKey
		}
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return errors.New(strings.TrimSpace(string(text)))
	}
	if refused != nil {
		return &UnavailableError{Err: refused}
	}
	return &UnavailableError{Err: fmt.Errorf(
		"%w (looked for %s); start it with forewarn run, or name its settings with --config",
		ErrNotRunning, strings.Join(c.sockets(), ", "))}
}
