package outbox

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"
)

// The buckets of format 1 that format 2 has no more.
const (
	bucket1Open = "open" // Azure event → its state, with the sequence number of its latest change
	bucket1IDs  = "ids"  // id → Mark
)

// migrate gives what makes a storage of format 1 one of format 2.
func migrate(s Storage) (writes []Write, err error) {
	add := func(bucket, key string, value []byte) {
		writes = append(writes, Write{bucket, key, slices.Clone(value)})
	}
	each := func(bucket string, f func(key string, value []byte)) {
		if err == nil {
			err = s.Walk(bucket, "", func(key string, value []byte) error { f(key, value); return nil })
		}
	}
	each(bucketMeta, func(key string, value []byte) {
		if key != metaFormat && key != metaOwner { // they were the owner's
			add(bucketValues, key, value)
			add(bucketMeta, key, nil)
		}
	})
	heads := map[uint64]head{} // of what something refers to
	open := map[string]bool{}
	each(bucket1Open, func(key string, value []byte) {
		var state struct {
			Latest uint64 `json:"latest"`
		}
		if json.Unmarshal(value, &state) == nil {
			open[key], heads[state.Latest] = true, head{}
			add(bucketGroups, key, append([]byte(seqKey(state.Latest)+" "), value...))
		}
		add(bucket1Open, key, nil)
	})
	over := map[string]time.Time{}
	each(bucket1IDs, func(key string, value []byte) {
		var m Mark
		if json.Unmarshal(value, &m) == nil {
			add(bucketMarks, key, value)
			if m.Group != "" && !open[m.Group] {
				over[m.Group] = later(over[m.Group], m.At)
			}
		}
		add(bucket1IDs, key, nil)
	})
	for group, at := range over {
		add(bucketOver, group, encode(at))
	}
	var last uint64
	for _, bucket := range []string{bucketPending, bucketDead} {
		each(bucket, func(key string, value []byte) {
			var d Delivery
			_, seq, err := splitKey(key)
			if err == nil && json.Unmarshal(value, &d) == nil && d.Message != nil { // else reading it will say so
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
		add(bucketHeads, seqKey(seq), encode(h))
	}
	add(bucketMeta, metaLast, []byte(seqKey(last)))
	add(bucketMeta, metaFormat, []byte(strconv.Itoa(format)))
	return writes, err
}
