package control

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/cmd/forewarn/internal/wording"
)

// A MuteRequest asks for a mute, with its duration.
type MuteRequest struct {
	bridge.Mute
	For time.Duration `json:"for"`
}

// A MuteAnswer is a mute, and the names of the sinks that it is for.
type MuteAnswer struct {
	bridge.Mute
	Sinks []string `json:"sinks"`
}

// An UnmuteRequest asks for the end of mutes.
type UnmuteRequest struct {
	IDs []string `json:"ids"`
	All bool     `json:"all"` // all mutes, instead of ids
	By  string   `json:"by"`  // the user, for the record
}

// Mute makes the running forewarn hold deliveries back, and returns the mute with its id and its sinks.
func (c *Client) Mute(ctx context.Context, r MuteRequest) (m MuteAnswer, err error) {
	err = c.post(ctx, "/mute", r, &m)
	return m, err
}

// Unmute ends mutes, and returns them.
func (c *Client) Unmute(ctx context.Context, r UnmuteRequest) (ended []bridge.Mute, err error) {
	err = c.post(ctx, "/unmute", r, &ended)
	return ended, err
}

// muter is a bridge, or a relay.
type muter interface {
	Sinks() []string
	Status() bridge.Status
	Mute(m bridge.Mute, d time.Duration) (bridge.Mute, error)
	Unmute(ids []string, every bool, by string) ([]bridge.Mute, error)
}

// handleMutes serves Mute and Unmute. Which mutes there are is part of the status.
func handleMutes(mux *http.ServeMux, b muter, answer func(http.ResponseWriter, any), said func(error) error) {
	mux.HandleFunc("POST /mute", handleMute(answer, said, func(r MuteRequest) (any, error) {
		if err := checkSinks(b.Sinks(), r.Sink); err != nil {
			return nil, err
		}
		sinks := b.Status().Sinks
		named := wording.MutedSinks(r.Mute, sinks)
		if r.People && len(named) == 0 {
			return nil, noSinkForPeople(sinks)
		}
		m, err := b.Mute(r.Mute, r.For)
		return MuteAnswer{m, append([]string{}, named...)}, err
	}))
	mux.HandleFunc("POST /unmute", handleMute(answer, said, func(r UnmuteRequest) (any, error) {
		ended, err := b.Unmute(r.IDs, r.All, r.By)
		return append([]bridge.Mute{}, ended...), err
	}))
}

// handleMute serves a request that changes mutes.
func handleMute[R any](
	answer func(http.ResponseWriter, any), said func(error) error, do func(R) (any, error),
) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		var r R
		err := json.NewDecoder(http.MaxBytesReader(w, req.Body, 64<<10)).Decode(&r)
		var done any
		if err == nil {
			done, err = do(r)
		}
		if err != nil {
			http.Error(w, said(err).Error(), http.StatusBadRequest)
			return
		}
		answer(w, done)
	}
}

// noSinkForPeople is the answer to a mute that would hold nothing back.
func noSinkForPeople(sinks []bridge.SinkStatus) error {
	var names []string
	for _, k := range sinks {
		names = append(names, k.Name)
	}
	return fmt.Errorf("no sink is for people (there are: %s); name one with --sink, or mute all with --everything",
		cmp.Or(strings.Join(names, ", "), "none"))
}
