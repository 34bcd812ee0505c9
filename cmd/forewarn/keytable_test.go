package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A schemaKey is a key of the settings with what the schema says of it, its own keys in their order.
type schemaKey struct {
	name, description string
	fallback          any // its default
	enum              []any
	secret            bool
	keys              []*schemaKey
	items, values     *schemaKey
}

func (k *schemaKey) below(name string) *schemaKey {
	i := slices.IndexFunc(k.keys, func(k *schemaKey) bool { return k.name == name })
	return k.keys[i]
}

// orderedSchema reads a JSON Schema.
func orderedSchema(t *testing.T, text []byte) *schemaKey {
	t.Helper()
	var in struct {
		Description string `json:"description"`
		Default     any    `json:"default"`
		AnyOf       []struct{ Enum []any }
		WriteOnly   bool            `json:"writeOnly"`
		Properties  json.RawMessage `json:"properties"`
		Items       json.RawMessage `json:"items"`
		Values      json.RawMessage `json:"additionalProperties"`
	}
	if err := json.Unmarshal(text, &in); err != nil {
		t.Fatal(err)
	}
	k := &schemaKey{description: in.Description, fallback: in.Default, secret: in.WriteOnly}
	if len(in.AnyOf) > 0 {
		k.enum = in.AnyOf[0].Enum
	}
	if len(in.Items) > 0 {
		k.items = orderedSchema(t, in.Items)
	}
	if bytes.HasPrefix(in.Values, []byte("{")) {
		k.values = orderedSchema(t, in.Values)
	}
	d := json.NewDecoder(bytes.NewReader(in.Properties))
	for token, err := d.Token(); err == nil; token, err = d.Token() {
		name, ok := token.(string)
		if !ok {
			continue // a brace
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			t.Fatal(err)
		}
		below := orderedSchema(t, value)
		below.name = name
		k.keys = append(k.keys, below)
	}
	return k
}

// plainKey returns the key whose other spelling a key may be.
func plainKey(name string) string {
	return strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_file"), "_env"), "_vault")
}

// keyTable has a row for each key below one, but those that are left out. The other spellings of a secret or a template
// have none of their own.
func keyTable(of *schemaKey, without ...string) string {
	var rows [][]string
	var add func(path string, keys []*schemaKey)
	add = func(path string, keys []*schemaKey) {
		has := func(name string) bool {
			return slices.ContainsFunc(keys, func(k *schemaKey) bool { return k.name == name })
		}
		for _, k := range keys {
			base := plainKey(k.name)
			if path == "" && slices.Contains(without, k.name) || base != k.name && has(base) {
				continue
			}
			name := strings.TrimPrefix(path+"."+k.name, ".")
			below := k.keys
			if path == "" && (k.name == "only" || k.name == "except") {
				below = nil // which have a table of their own
			}
			text, fallback := k.description, ""
			if before, after, ok := strings.Cut(text, " (default: "); ok {
				text, fallback = before, strings.TrimSuffix(after, ")")
			} else if len(below) > 0 {
				add(name, below)
				continue
			}
			if k.fallback != nil {
				fallback = fmt.Sprintf("`%v`", k.fallback)
			}
			values := k.enum
			if k.items != nil && len(k.items.enum) > 0 {
				values = k.items.enum
			}
			if len(values) > 0 && !strings.Contains(text, ":") {
				text += ": " + joined(values)
			}
			switch {
			case k.secret, k.items != nil && k.items.secret, k.values != nil && k.values.secret:
				text += " (secret)"
			case has(k.name + "_file"):
				text += " (template)"
			}
			rows = append(rows, []string{"`" + name + "`", fallback, marked(text)})
			add(name, below)
		}
	}
	add("", of.keys)
	return markdownTable([]string{"key", "default", "what it is"}, rows)
}
