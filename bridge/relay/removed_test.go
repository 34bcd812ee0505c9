package relay_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
)

// A reload that failed is in the status until one succeeds.
func TestAFailedReloadIsInTheStatusOfARelay(t *testing.T) {
	f := newFleet(t)
	r, _ := f.start(relay.Options{Routes: []bridge.Route{route("hook", newRecorder())}})
	r.SettingsFailed(errors.New("line 3: no such key"))
	if got := r.Status().Settings.LastError; got != "line 3: no such key" {
		t.Errorf("the status says %q", got)
	}
	r.Reload([]bridge.Route{route("hook", newRecorder())}, bridge.SettingsInfo{})
	if got := r.Status().Settings.LastError; got != "" {
		t.Errorf("after a reload the status says %q", got)
	}
}

// Somebody may have removed the stream's last message. Nobody waits for it: a new sink begins, and the past is replayed.
func TestAMessageThatWasRemovedIsNotWaitedFor(t *testing.T) {
	f := newFleet(t)
	one, two := eventNo(1).say(t, imds.Scheduled, "vm-1"), eventNo(2).say(t, imds.Scheduled, "vm-2")
	f.publish(one, two)
	stream, err := f.js.Stream(t.Context(), "FOREWARN")
	if err == nil {
		err = stream.DeleteMsg(t.Context(), 2)
	}
	if err != nil {
		t.Fatal(err)
	}
	hook := newRecorder()
	r, _ := f.start(relay.Options{Routes: []bridge.Route{route("hook", hook)}})
	f.begin("hook")
	if got := f.hears(hook, 1); !slices.Equal(got, ids(one)) {
		t.Errorf("the new sink heard %q, want %q", got, ids(one))
	}
	part, err := r.ReplayPast(t.Context(), relay.ReplayRequest{Sink: "hook", Since: time.Now().Add(-time.Hour), By: "alice", Run: "1"})
	if err != nil || len(part.Replayed) != 1 || part.Replayed[0].ID != one.ID() {
		t.Errorf("ReplayPast = %+v, %v; want %s", part, err, one.ID())
	}
	for seq := uint64(1); seq <= 2; seq++ { // and now there is none at all but what is for one sink
		_ = stream.DeleteMsg(t.Context(), seq)
	}
	if part, err = r.ReplayPast(t.Context(), relay.ReplayRequest{Sink: "hook", Since: time.Now().Add(-time.Hour), Run: "2"}); err != nil {
		t.Errorf("ReplayPast = %+v, %v", part, err)
	}
}
