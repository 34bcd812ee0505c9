package outbox

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An image is what a file holds.
type image struct {
	last     uint64
	owner    string
	values   map[string][]byte
	groups   map[string]Group
	over     map[string]time.Time
	marks    map[string]Mark
	receipts map[string][]byte // by group/route
	routes   map[string]time.Time
	messages map[uint64]*message
	pending  []*entry // whose routes have only a name
	dead     []*deadLetter
}

// read reads the storage, with what the migration changes. A record that can't be understood doesn't hide the others.
func (o *Outbox) read(migrated layer) (*image, error) {
	i := &image{
		values: map[string][]byte{}, groups: map[string]Group{}, over: map[string]time.Time{}, marks: map[string]Mark{},
		receipts: map[string][]byte{}, routes: map[string]time.Time{}, messages: map[uint64]*message{},
	}
	routes := map[string]*route{}
	var err error
	each := func(bucket string, f func(key string, value []byte) error) {
		if err != nil {
			return
		}
		err = migrated.walk(o.storage, bucket, "", func(key string, value []byte) error {
			if err := f(key, value); err != nil {
				o.log.Error("the outbox holds something that cannot be understood", "bucket", bucket, "key", key, "err", err)
			}
			return nil
		})
	}
	each(bucketMeta, func(key string, value []byte) (err error) {
		switch key {
		case metaOwner:
			i.owner = string(value)
		case metaLast:
			i.last, err = strconv.ParseUint(string(value), 10, 64)
		}
		return err
	})
	each(bucketValues, func(key string, value []byte) error {
		i.values[key] = slices.Clone(value)
		return nil
	})
	each(bucketGroups, func(key string, value []byte) error {
		g, err := decodeGroup(value)
		if err == nil {
			i.groups[key] = g
			i.message(g.Latest, head{})
		}
		return err
	})
	each(bucketHeads, func(key string, value []byte) error {
		var h head
		seq, err := strconv.ParseUint(key, 10, 64)
		if err == nil {
			err = json.Unmarshal(value, &h)
		}
		if err == nil {
			i.message(seq, h)
		}
		return err
	})
	each(bucketOver, func(key string, value []byte) error { return decode(i.over, key, value) })
	each(bucketMarks, func(key string, value []byte) error { return decode(i.marks, key, value) })
	each(bucketReceipts, func(key string, value []byte) error {
		i.receipts[key] = slices.Clone(value)
		return nil
	})
	each(bucketRoutes, func(key string, value []byte) error {
		var gone time.Time
		if len(value) > 0 {
			if err := gone.UnmarshalText(value); err != nil {
				return err
			}
		}
		i.routes[key] = gone
		return nil
	})
	record := func(key string, value []byte) (d Delivery, m *message, err error) {
		name, seq, err := splitKey(key)
		if err == nil {
			err = json.Unmarshal(value, &d)
		}
		if err != nil {
			return d, nil, err
		}
		d.Key = key
		if routes[name] == nil {
			routes[name] = &route{name: name}
		}
		d.Route = routes[name].name
		i.last = max(i.last, seq)
		return d, i.message(seq, d.head()), nil
	}
	each(bucketPending, func(key string, value []byte) error {
		d, m, err := record(key, value)
		if err == nil {
			i.pending = append(i.pending, entryOf(d, m, routes[d.Route]))
		}
		return err
	})
	each(bucketDead, func(key string, value []byte) error {
		d, m, err := record(key, value)
		if err == nil {
			d.ID, d.Type, d.Group, d.Change, d.AzureType = m.id, m.typ, m.group, m.change, m.azureType
			i.dead = append(i.dead, &deadLetter{Delivery: d, message: m, stored: true})
		}
		return err
	})
	each(bucketSettled, func(key string, value []byte) error {
		digits, name, _ := strings.Cut(key, "/")
		seq, err := strconv.ParseUint(digits, 10, 64)
		m := i.messages[seq]
		if err != nil || m == nil {
			return err
		}
		var s settlement
		if err := json.Unmarshal(value, &s); err != nil {
			return err
		}
		m.became(name, Outcome{s.How, s.At})
		return nil
	})
	for seq, m := range i.messages {
		if m.id == "" && err == nil { // only a group has it; its size counts when somebody else gets it
			var body []byte
			body, err = o.storage.Read(bucketEvents, seqKey(seq))
			m.bytes = len(body)
		}
	}
	return i, err
}

// message is that of the sequence number, made if need be, with the head if it had none.
func (i *image) message(seq uint64, h head) *message {
	m := i.messages[seq]
	if m == nil {
		m = &message{seq: seq}
		i.messages[seq] = m
	}
	if m.id == "" {
		m.set(h)
	}
	return m
}

func decode[T any](into map[string]T, key string, value []byte) error {
	var v T
	err := json.Unmarshal(value, &v)
	if err == nil {
		into[key] = v
	}
	return err
}
