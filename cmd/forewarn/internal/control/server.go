package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/wording"
)

// A Reload reads the settings again for a user. The error says why that was not tried.
type Reload func(ctx context.Context, by string) (Reloaded, error)

// Reloaded says what came of a reload.
type Reloaded struct {
	Error     string   `json:"error,omitempty"`     // why the old settings stay in force
	Sinks     int      `json:"sinks"`               // how many there are now
	NextStart []string `json:"nextStart,omitempty"` // keys that were changed and take effect at the next start
}

// reloadRequest is the body of POST /reload.
type reloadRequest struct {
	By string `json:"by"` // the user, for the record
}

// serveReload reloads the settings for a command.
func serveReload(reload Reload) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var request reloadRequest
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		done, err := reload(r.Context(), request.By)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = wording.PrintJSON(w, done)
	}
}

// Handler serves the requests of Client for a running bridge.
func Handler(b *bridge.Bridge, o *outbox.Outbox, reload Reload) http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = wording.PrintJSON(w, v)
	}
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { answerStatus(w, b.Status()) })
	mux.HandleFunc("GET /outbox", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if err := checkSinks(b.Sinks(), q.Get("sink")); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answerRows(w, list(o, outbox.Selection{Route: q.Get("sink"), State: q.Get("state"), Group: q.Get("event")}, limit(q)))
	})
	mux.HandleFunc("GET /outbox/entry", func(w http.ResponseWriter, r *http.Request) {
		shown, err := show(o, r.URL.Query().Get("key"))
		switch {
		case errors.Is(err, ErrUnknownKey):
			http.Error(w, "no such key", http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		default:
			answer(w, shown)
		}
	})
	mux.HandleFunc("GET /history", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		since, _ := time.Parse(time.RFC3339, q.Get("since"))
		histories, err := history(o, bridge.Period{Event: q.Get("event"), VM: q.Get("vm"), Since: since}, limit(q))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		answerRows(w, histories)
	})
	mux.HandleFunc("GET /tail", atMost(maxFollowers,
		fmt.Sprintf("%d commands follow this forewarn; end one of them first", maxFollowers),
		func(w http.ResponseWriter, r *http.Request) { tail(w, r, o) }))
	change := func(replay bool, do func(m Mutation) ([]outbox.Delivery, error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var m Mutation
			if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 32<<20)).Decode(&m); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			if err := checkSinks(b.Sinks(), m.Sink, m.To); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			m.addKeys(o, replay)
			entries, err := do(m)
			if err != nil {
				http.Error(w, withHint(err).Error(), http.StatusConflict)
				return
			}
			answer(w, append([]outbox.Delivery{}, entries...))
		}
	}
	mux.HandleFunc("POST /outbox/replay", change(true, func(m Mutation) ([]outbox.Delivery, error) {
		return b.Replay(m.Keys, m.To, m.By)
	}))
	mux.HandleFunc("POST /outbox/drop", change(false, func(m Mutation) ([]outbox.Delivery, error) {
		return b.Drop(m.Keys, m.By)
	}))
	mux.HandleFunc("POST /approve", serveApproval(b))
	mux.HandleFunc("POST /reload", serveReload(reload))
	handleMutes(mux, b, answer, func(err error) error { return err })
	mux.HandleFunc("POST /replay", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "only a relay has a stream to replay; forewarn outbox replay delivers dead letters again",
			http.StatusBadRequest)
	})
	return inTime(false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(headerRelay) != "" { // or the mute of a relay would be that of the VM on which it runs
			http.Error(w, "no relay", http.StatusMisdirectedRequest)
			return
		}
		mux.ServeHTTP(w, r)
	}))
}

// headerRelay marks requests that only a relay may answer.
const headerRelay = "Forewarn-Relay"

// limit returns the number of rows that a request asks for; without a limit, all of them.
func limit(q url.Values) int {
	n, err := strconv.Atoi(q.Get("limit"))
	if err != nil {
		return math.MaxInt
	}
	return max(0, n)
}

// answerStatus encodes a status without indentation, which for 100,000 VMs would take three times the memory.
func answerStatus(w http.ResponseWriter, s bridge.Status) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // fails only when the client is gone
}

// answerRows encodes one row at a time, because together they can be large.
func answerRows[T any](w http.ResponseWriter, list Rows[T]) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	fmt.Fprintf(w, `{"more":%d,"rows":[`, list.More)
	for i, row := range list.Rows {
		if i > 0 {
			fmt.Fprint(w, ",")
		}
		if enc.Encode(row) != nil {
			return // the client is gone
		}
	}
	fmt.Fprint(w, "]}")
}

// tail streams the CloudEvents that are committed from now on, one per line, until the client is gone or too slow.
func tail(w http.ResponseWriter, r *http.Request, o *outbox.Outbox) {
	rc := http.NewResponseController(w)
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
				return // the client was too slow
			}
			// All followers share the body, so it must not be appended to.
			if _, err := fmt.Fprintf(w, "%s\n", body); err != nil || rc.Flush() != nil {
				return
			}
		}
	}
}

// approvalLimit is the time that the endpoint has to answer an approval. It is less than the time limit of the request.
const approvalLimit = 8 * time.Second

// approvalRequest is the body of POST /approve.
type approvalRequest struct {
	Event string `json:"event"`
	Shown string `json:"shown"` // digest of the event as the user saw it
	By    string `json:"by"`    // the user, for the record
}

// serveApproval approves an event for a command. It records the result even if the command goes away meanwhile.
func serveApproval(b *bridge.Bridge) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var request approvalRequest
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ctx, interrupt := context.WithCancelCause(context.WithoutCancel(r.Context()))
		defer context.AfterFunc(r.Context(), func() {
			interrupt(errors.New("the command was interrupted before the answer"))
		})()
		ctx, cancel := context.WithTimeoutCause(ctx, approvalLimit, fmt.Errorf("no answer within %v", approvalLimit))
		defer cancel()
		a := b.ApproveNow(ctx, request.Event, request.Shown, request.By)
		w.Header().Set("Content-Type", "application/json")
		_ = wording.PrintJSON(w, a)
	}
}
