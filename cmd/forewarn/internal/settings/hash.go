package settings

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"sort"
)

// hash identifies the settings of the documents, once they are decoded: 12 hex digits of the SHA-256 of all keys and all values that are
// not secret. Comments, quotes and the order of keys make no difference, so machines with the same settings have the
// same hash. Secrets, among them the URLs of destinations, are left out: the hash is shown and sent, and a short
// secret could be guessed from it.
//
// Relays of one stream compare theirs, so the keys that say where one of them runs are left out too.
func hash(docs []*document) string {
	sum := sha256.New()
	root := docs[0].root
	if _, relay := root.find("nats"); relay {
		root = root.without("state", "control", "listen", "metrics")
		for i, e := range root.entries {
			if e.key == "nats" {
				root.entries[i].value = e.value.without("name")
			}
		}
	}
	root.writeOpen(sum)
	for _, doc := range docs[1:] {
		doc.root.writeOpen(sum)
	}
	return hex.EncodeToString(sum.Sum(nil)[:6])
}

// without returns a section without some of its keys.
func (n *node) without(keys ...string) *node {
	rest := *n
	rest.entries = nil
	for _, e := range n.entries {
		if !slices.Contains(keys, e.key) {
			rest.entries = append(rest.entries, e)
		}
	}
	return &rest
}

// writeOpen writes an unambiguous form of n without secret values.
func (n *node) writeOpen(w io.Writer) {
	switch {
	case n.kind == aTable:
		entries := slices.Clone(n.entries)
		sort.Slice(entries, func(i, j int) bool { return entries[i].key < entries[j].key }) // see HistoryBuilder.Add
		fmt.Fprintf(w, "{%d", len(entries))
		for _, e := range entries {
			fmt.Fprintf(w, "%q:", e.key)
			e.value.writeOpen(w)
		}
	case n.kind == aList:
		fmt.Fprintf(w, "[%d", len(n.items))
		for _, item := range n.items {
			item.writeOpen(w)
		}
	case n.open && !n.secret:
		fmt.Fprintf(w, "%q", n.text)
	default:
		io.WriteString(w, "-")
	}
}
