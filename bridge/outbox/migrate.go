package outbox

import (
	"encoding/json"
	"log/slog"
	"slices"
	"strconv"
	"strings"
)

// The buckets of format 1 that format 2 doesn't have.
const (
	bucket1Open = "open" // Azure event → its state, with the sequence number of its latest change
	bucket1IDs  = "ids"  // id → Mark
)

// migrate returns the writes that turn a storage of format 1 into one of format 2. What it can't read is left out and
// logged.
func migrate(s Storage, log *slog.Logger) ([]Write, error) {
	r := records{}
	var err error
	each := func(bucket string, f func(key string, value []byte)) {
		if err == nil {
			err = s.Walk(bucket, "", func(key string, value []byte) error { f(key, value); return nil })
		}
	}
	each(bucketMeta, func(key string, value []byte) {
		if key != metaFormat && key != metaOwner { // all others were values of the bridge
			r[place{bucketValues, key}] = slices.Clone(value)
			r[place{bucketMeta, key}] = nil
		}
	})
	latest := map[string]uint64{} // by open event
	heads := map[uint64]head{}    // of the CloudEvents that something refers to
	each(bucket1Open, func(key string, value []byte) {
		var state struct {
			Latest uint64 `json:"latest"`
		}
		if err := json.Unmarshal(value, &state); err != nil {
			log.Error("an open event of the outbox's first format cannot be read; it counts as new", "event", key, "err", err)
		} else {
			heads[state.Latest], latest[key] = head{}, state.Latest
			r[place{bucketGroups, key}] = append([]byte(seqKey(state.Latest)+" "), value...)
		}
		r[place{bucket1Open, key}] = nil
	})
	marks := map[string]Mark{}
	each(bucket1IDs, func(key string, value []byte) {
		var m Mark
		if r[place{bucket1IDs, key}] = nil; json.Unmarshal(value, &m) != nil {
			r[place{bucketMarks, key}] = slices.Clone(value) // load reports it
			return
		}
		marks[key] = m
	})
	for key, m := range marks {
		if cutShort(key, marks, latest) {
			m.Times--
		}
		if m.Times > 0 {
			r[place{bucketMarks, key}] = m
		}
	}
	var last uint64
	for _, bucket := range []string{bucketPending, bucketDead} {
		each(bucket, func(key string, value []byte) {
			var d Delivery
			_, seq, err := splitKey(key)
			if err == nil && json.Unmarshal(value, &d) == nil && d.Message != nil { // load reports the others
				last = max(last, seq)
				heads[seq] = head{*d.Message, d.Bytes}
			}
		})
	}
	each(bucketEvents, func(key string, value []byte) {
		seq, _ := seqOf(key)
		last = max(last, seq)
		if h, used := heads[seq]; used && h.Bytes == 0 {
			h.Bytes = len(value)
			heads[seq] = h
		}
	})
	for seq, h := range heads {
		r[place{bucketHeads, seqKey(seq)}] = h
	}
	r[place{bucketMeta, metaLast}] = []byte(seqKey(last))
	r[place{bucketMeta, metaFormat}] = []byte(strconv.Itoa(format))
	return r.encode(), err
}

// cutShort reports whether an id of a file of format 1 was last used by a change that a crash cut short. The program of
// that format wrote the marks of a change first, in any order, and the open event last. It told such a change again under
// another id. latest holds the latest change of each open event.
func cutShort(id string, marks map[string]Mark, latest map[string]uint64) bool {
	m := marks[id]
	times := func(change string) int { return marks[m.Group+change].Times }
	change := strings.TrimPrefix(id, m.Group)
	seq, open := latest[m.Group]
	switch {
	case strings.HasPrefix(change, "-approved"), strings.HasPrefix(change, "-reminder"): // the event stays as it is
		return false
	case open: // its own mark counts how often it came
		return change != "" && uint64(m.At.UnixMicro()) > seq
	}
	lives := max(times(""), times("-scheduled"), times("-started"))
	return m.Times == lives && times("-vanished") < lives
}
