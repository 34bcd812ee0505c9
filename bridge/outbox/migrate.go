package outbox

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
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
		writes = append(writes, Write{bucket, strings.Clone(key), slices.Clone(value)})
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
	open := map[string]bool{}
	each(bucket1Open, func(key string, value []byte) {
		var state struct {
			Latest uint64 `json:"latest"`
		}
		if json.Unmarshal(value, &state) == nil {
			open[key] = true
			add(bucketGroups, key, encodeGroup(Group{State: value, Latest: state.Latest}))
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
	each(bucketEvents, func(key string, _ []byte) {
		if seq, err := strconv.ParseUint(key, 10, 64); err == nil {
			last = max(last, seq)
		}
	})
	heads := map[uint64]bool{}
	for _, bucket := range []string{bucketPending, bucketDead} {
		each(bucket, func(key string, value []byte) {
			var d Delivery
			_, seq, err := splitKey(key)
			if err != nil || json.Unmarshal(value, &d) != nil {
				return // reading it will say so
			}
			last = max(last, seq)
			if !heads[seq] {
				heads[seq] = true
				add(bucketHeads, seqKey(seq), encode(d.head()))
			}
		})
	}
	add(bucketMeta, metaLast, []byte(seqKey(last)))
	add(bucketMeta, metaFormat, []byte(strconv.Itoa(2)))
	return writes, err
}
