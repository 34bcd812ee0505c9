package sinks

import (
	"encoding/json"
	"strings"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/templates"
)

// A pauseReceipt is what was mailed about a short pause.
type pauseReceipt struct {
	Early   bool `json:"early"`   // the first mail said that it may begin before its time
	Changed bool `json:"changed"` // a mail told of a change, so that all that follows is told
}

// pauseMailed returns what was mailed about a short pause, nil for nothing.
func pauseMailed(d delivery.Delivery) *pauseReceipt {
	var r *pauseReceipt
	if json.Unmarshal(d.Receipt, &r) != nil { // nothing was, or that is unreadable
		return nil
	}
	return r
}

// isPromisedSilence reports whether a message, whose fields are f, is about a short pause and says nothing that the first
// mail didn't: the pause has begun, or is over and did not last clearly longer than Azure said; or the message is about the
// time to come, and what the mail said of that still holds.
func isPromisedSilence(d delivery.Delivery, f map[string]any) bool {
	told := pauseMailed(d)
	if told == nil || told.Changed || !isShortPause(f) || len(f["missed"].([]map[string]any)) > 0 {
		return false
	}
	if oneOf[any](f["change"], string(imds.Approved), string(imds.Reminder)) {
		return f["azeventstatus"] == imds.StatusStarted || isEarly(f) == told.Early
	}
	data, _ := f["data"].(map[string]any)
	return saysNothingNew(f) && data["outcome"] != string(cloudevent.OutcomeCanceled)
}

// notePause returns what is mailed about a short pause once the batch, whose fields are f, is.
func notePause(batch []delivery.Delivery, f map[string]any) *pauseReceipt {
	again := false // a mail about it was sent before
	for _, d := range batch {
		again = again || pauseMailed(d) != nil
	}
	if !again && !isShortPause(f) {
		return nil
	}
	first := oneOf[any](f["change"], string(imds.Scheduled), string(imds.Started), string(imds.Reminder))
	return &pauseReceipt{Early: isEarly(f), Changed: again || !first}
}

// promiseSilence changes the fields f of a mail that is the first about a short pause: it says when another follows.
func promiseSilence(batch []delivery.Delivery, f map[string]any) {
	if r := notePause(batch, f); r == nil || r.Changed {
		return
	}
	for _, about := range []map[string]any{f, f["group"].([]map[string]any)[0]} {
		about["endFollows"], about["onlyIfLonger"] = false, true
	}
}

// isEarly reports whether a message says that the event may begin before its time.
func isEarly(f map[string]any) bool {
	var early strings.Builder
	err := templates.Say(&early, "early", f)
	return err == nil && early.String() != ""
}
