package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/outbox"
	"forewarn/bridge/relay"
	"forewarn/cmd/forewarn/internal/wording"
)

// RelayHandler serves the requests of Client for a running relay, in the words of a bridge's.
func RelayHandler(r *relay.Relay, reload Reload) http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = wording.PrintJSON(w, v)
	}
	fail := func(w http.ResponseWriter, err error, status int) { http.Error(w, saidByRelay(err).Error(), status) }
	mux.HandleFunc("POST /reload", serveReload(reload))
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { answerStatus(w, r.Status()) })
	mux.HandleFunc("GET /outbox", func(w http.ResponseWriter, req *http.Request) {
		q := req.URL.Query()
		if err := checkSinks(r.Sinks(), q.Get("sink")); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		entries, more, err := r.List(req.Context(),
			relay.Selection{Sink: q.Get("sink"), State: q.Get("state"), Event: q.Get("event")}, limit(q))
		if err != nil {
			fail(w, err, http.StatusServiceUnavailable)
			return
		}
		rows := Rows[ListedDelivery]{More: more, Rows: []ListedDelivery{}}
		for _, e := range entries {
			rows.Rows = append(rows.Rows, ListedDelivery{Delivery: deliveryOf(e), Resources: e.Resources})
		}
		answerRows(w, rows)
	})
	mux.HandleFunc("GET /outbox/entry", func(w http.ResponseWriter, req *http.Request) {
		e, err := r.Show(req.Context(), req.URL.Query().Get("key"))
		switch {
		case errors.Is(err, relay.ErrUnknownKey):
			http.Error(w, "no such key", http.StatusNotFound)
		case err != nil:
			fail(w, err, http.StatusInternalServerError)
		default:
			answer(w, ShownDelivery{deliveryOf(e), e.CloudEvent})
		}
	})
	for _, change := range []struct {
		path string
		do   func(context.Context, Mutation) ([]relay.Entry, error)
	}{
		{"POST /outbox/replay", func(ctx context.Context, m Mutation) ([]relay.Entry, error) {
			return r.Replay(ctx, m.Keys, m.To, m.By)
		}},
		{"POST /outbox/drop", func(ctx context.Context, m Mutation) ([]relay.Entry, error) {
			return r.Drop(ctx, m.Keys, m.By)
		}},
	} {
		mux.HandleFunc(change.path, func(w http.ResponseWriter, req *http.Request) {
			var m Mutation
			if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, 32<<20)).Decode(&m); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			err := checkSinks(r.Sinks(), m.Sink, m.To)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			if m.All {
				if err := r.CatchUp(req.Context()); err != nil {
					fail(w, err, http.StatusServiceUnavailable)
					return
				}
				dead, _, listErr := r.List(req.Context(), relay.Selection{Sink: m.Sink, State: outbox.StateDead}, limit(nil))
				for _, e := range dead {
					if change.path != "POST /outbox/replay" || !r.Over(e, cmp.Or(m.To, e.Sink)) {
						m.Keys = append(m.Keys, e.Key)
					}
				}
				err = listErr
			}
			var entries []relay.Entry
			if err == nil {
				entries, err = change.do(req.Context(), m)
			}
			if err != nil && len(entries) > 0 {
				err = fmt.Errorf("%d of %d done, then: %w", len(entries), len(m.Keys), err)
			}
			if err != nil {
				fail(w, withHint(err), http.StatusConflict)
				return
			}
			changed := []outbox.Delivery{}
			for _, e := range entries {
				changed = append(changed, deliveryOf(e))
			}
			answer(w, changed)
		})
	}
	mux.HandleFunc("POST /replay", func(w http.ResponseWriter, req *http.Request) {
		var past relay.ReplayRequest
		err := json.NewDecoder(http.MaxBytesReader(w, req.Body, 64<<10)).Decode(&past)
		if err == nil {
			err = checkSinks(r.Sinks(), past.Sink)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		part, err := r.ReplayPast(req.Context(), past)
		if err != nil {
			fail(w, err, http.StatusServiceUnavailable)
			return
		}
		answer(w, part)
	})
	mux.HandleFunc("GET /history", func(w http.ResponseWriter, req *http.Request) {
		q := req.URL.Query()
		since, _ := time.Parse(time.RFC3339, q.Get("since"))
		all, _, err := r.Histories(req.Context(), bridge.Period{Event: q.Get("event"), VM: q.Get("vm"), Since: since})
		if err != nil {
			fail(w, err, http.StatusServiceUnavailable)
			return
		}
		older := max(0, len(all)-limit(q))
		answerRows(w, Rows[bridge.EventHistory]{More: older, Rows: all[older:]})
	})
	handleMutes(mux, r, answer, saidByRelay)
	for _, path := range []string{"GET /tail", "POST /approve"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "a relay does not do this; ask the forewarn of a VM", http.StatusBadRequest)
		})
	}
	return inTime(true, mux)
}

// saidByRelay returns an error of a relay as commands print it: its servers may say nothing at all.
func saidByRelay(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("NATS does not answer; nobody knows whether it was done: %w", err)
	}
	return err
}

// deliveryOf returns a relay's delivery as commands print it.
func deliveryOf(e relay.Entry) outbox.Delivery {
	d := outbox.Delivery{
		Key: e.Key, Route: e.Sink, Item: e.Item, State: e.State, Reason: e.Reason, Overtaken: e.Overtaken, Bytes: e.Bytes,
		DeadSince: e.DeadSince,
	}
	if e.Mute.Active() {
		d.Muted = e.Mute.Until
	}
	return d
}
