package settings

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"forewarn/bridge"
	"forewarn/sinks"
)

// isKey reports whether a word is a key somewhere in the settings, and so no secret.
func isKey(word string) bool {
	return bytes.Contains(schemaText(), []byte(strconv.Quote(word)+":"))
}

// schemaText is the schema with every kind of sink, made once: that takes as long as to read a settings file.
var schemaText = sync.OnceValue(func() []byte {
	text, _ := json.Marshal(Schema(sinks.Kinds()))
	return text
})

// Schema returns the JSON Schema of the settings file, made from the structs that it is decoded into and their tags. It
// does not cover everything that Load checks.
func Schema(kinds map[string]sinks.Kind) map[string]any {
	sink := schemaOf(reflect.TypeFor[sinkSettings]())
	keys := sink["properties"].(properties)
	describeTerms(keys, kinds)
	own := keys.keys()
	var oneKind []any
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		// A kind reveals the type of its settings when it asks to decode them.
		_, _ = kinds[name].Open(func(to any) error {
			section := schemaOf(reflect.TypeOf(to).Elem())
			section["description"] = "a destination of this kind; see forewarn help sinks " + name
			keys = append(keys, property{name, section})
			return errors.ErrUnsupported
		}, sinks.Host{})
		oneKind = append(oneKind, required(name))
	}
	sink["properties"] = keys
	// Of an unknown kind an editor says only that there is no such key, and not that another one is missing.
	sink["allOf"] = append(sink["allOf"].([]any),
		map[string]any{"if": map[string]any{"anyOf": oneKind}, "then": map[string]any{"oneOf": oneKind}},
		map[string]any{"if": map[string]any{"propertyNames": map[string]any{"enum": own}}, "then": map[string]any{"anyOf": oneKind}})

	rule := schemaOf(reflect.TypeFor[ruleSettings]())
	only := rule["properties"].(properties).of("only")
	only["required"] = []string{"types"}
	only["properties"].(properties).of("types")["minItems"] = 1 // of a list; one type will do

	rules := oneOrMore(rule)
	rules["description"] = "rules of approval (default: none)"
	root := schemaOf(reflect.TypeFor[Settings]())
	root["$schema"], root["title"] = "https://json-schema.org/draft/2020-12/schema", "forewarn settings"
	root["$id"] = "https://forewarn.dev/schema/settings.json"
	root["properties"] = append(root["properties"].(properties),
		property{"sinks", map[string]any{"description": "the destinations", "type": "array", "items": sink}},
		property{"approve", rules})
	root["required"] = []string{"sinks"}
	return root
}

// required returns the schema of a section that has a key.
func required(key string) map[string]any { return map[string]any{"required": []string{key}} }

// offer restricts a schema to some words, or to a list of them. Of a list, each item may be one.
func offer(schema map[string]any, words []string) {
	one := oneOf(words)["anyOf"].([]any)
	delete(schema, "type")
	if schema["items"] != nil {
		delete(schema, "items")
		one = append(one, map[string]any{"type": "array", "items": oneOf(words)})
	}
	schema["anyOf"] = one
}

// oneOf returns the schema of one of some words, in any case: editors offer the words as they are, and accept all.
func oneOf(words []string) map[string]any {
	var pattern strings.Builder
	for _, r := range strings.Join(words, "|") {
		if lower, upper := unicode.ToLower(r), unicode.ToUpper(r); lower != upper {
			fmt.Fprintf(&pattern, "[%c%c]", upper, lower)
		} else {
			pattern.WriteRune(r)
		}
	}
	return map[string]any{"anyOf": []any{
		map[string]any{"enum": words}, map[string]any{"type": "string", "pattern": "^(" + pattern.String() + ")$"},
	}}
}

// describeTerms adds the default of each kind to the descriptions of the keys whose default depends on it.
func describeTerms(keys properties, kinds map[string]sinks.Kind) {
	describe := func(key string, of func(bridge.Terms) string) {
		schema := keys.of(key)
		schema["description"] = fmt.Sprintf("%s (default: %s)", schema["description"], defaultByKind(kinds, of))
	}
	describe("bridge", func(t bridge.Terms) string { return string(t.Bridge) })
	describe("late", func(t bridge.Terms) string { return string(t.Late) })
	describe("timeout", func(t bridge.Terms) string {
		return cmp.Or(writtenDuration(t.Timeout), "until NotBefore, at most 15m")
	})
	describe("max_age", func(t bridge.Terms) string { return cmp.Or(writtenDuration(t.MaxAge), "0") })
	describe("remind", func(t bridge.Terms) string {
		if len(t.Remind) == 0 {
			return "none"
		}
		var times []string
		for _, d := range t.Remind {
			times = append(times, writtenDuration(d))
		}
		return "[" + strings.Join(times, ", ") + "]"
	})
	describe("group", func(t bridge.Terms) string {
		if t.DigestAbove == 0 {
			return "none"
		}
		return fmt.Sprintf("{above: %d}", t.DigestAbove)
	})
}

// defaultByKind lists the default of each kind, the most common one last.
func defaultByKind(kinds map[string]sinks.Kind, of func(bridge.Terms) string) string {
	having := make(map[string][]string)
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		value := of(termsOf(kinds[name]))
		having[value] = append(having[value], name)
	}
	values := slices.SortedFunc(maps.Keys(having), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(having[a]), len(having[b])), cmp.Compare(having[a][0], having[b][0]))
	})
	var said []string
	for _, v := range values[:len(values)-1] {
		said = append(said, nameKinds(having[v], kinds)+": "+v)
	}
	most := values[len(values)-1]
	if len(said) == 0 {
		return most
	}
	return strings.Join(said, "; ") + "; others: " + most
}

// nameKinds says which of all kinds some are, in few words.
func nameKinds(some []string, all map[string]sinks.Kind) string {
	here, everywhere := make(map[string]int), make(map[string]int) // kinds by purpose
	for _, k := range all {
		everywhere[k.Purpose]++
	}
	for _, name := range some {
		here[all[name].Purpose]++
	}
	var names, purposes []string
	for _, name := range some {
		k := all[name]
		switch n := here[k.Purpose]; {
		case n > 1 && n == everywhere[k.Purpose] && k.Purpose != "":
			purposes = append(purposes, k.Purpose)
		case k.Service:
			names = append(names, "services for "+k.Purpose)
		default:
			names = append(names, name)
		}
	}
	slices.Sort(purposes)
	if len(purposes) > 0 {
		names = append(names, "sinks for "+strings.Join(slices.Compact(purposes), " and "))
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

// properties are the keys of an object, in the order of the fields of its struct.
type properties []property

type property struct {
	key    string
	schema map[string]any
}

func (p properties) keys() (keys []string) {
	for _, each := range p {
		keys = append(keys, each.key)
	}
	return keys
}

func (p properties) of(key string) map[string]any {
	i := slices.IndexFunc(p, func(p property) bool { return p.key == key })
	return p[i].schema
}

// MarshalJSON writes an object with its keys in order.
func (p properties) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	for i, each := range p {
		fmt.Fprintf(&b, "%c%q:", "{,"[min(i, 1)], each.key)
		if err := encoder.Encode(each.schema); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// schemaOf returns the schema of a value that is decoded into a t. A secret is writeOnly.
func schemaOf(t reflect.Type) map[string]any {
	pointer := reflect.PointerTo(t)
	switch {
	case t.Kind() == reflect.Pointer:
		return schemaOf(t.Elem())
	case t.Kind() == reflect.Struct && pointer.Implements(ownForm) && len(fieldsOf(reflect.New(t).Elem())) > 0:
		section := schemaOfStruct(t) // or a text alone
		section["type"] = []string{"string", "object"}
		return section
	case pointer.Implements(ownForm):
		// text, {file: PATH}, {env: NAME} or {vault: URL}
		return map[string]any{"type": []string{"string", "number", "object"}, "writeOnly": true}
	case t == reflect.TypeFor[time.Duration](): // of numbers only 0 needs no unit
		return map[string]any{"type": []string{"string", "number"}, "minimum": 0, "maximum": 0, "pattern": durationPattern}
	case t == reflect.TypeFor[sinks.Secret]():
		return map[string]any{"type": []string{"string", "number"}, "writeOnly": true}
	case pointer.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()), t.Kind() == reflect.String:
		return map[string]any{"type": []string{"string", "number"}}
	}
	switch t.Kind() {
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Slice:
		return oneOrMore(schemaOf(t.Elem()))
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	case reflect.Struct:
		return schemaOfStruct(t)
	}
	return map[string]any{"type": "integer"}
}

// ownForm is what a type has that is written in a form of its own.
var ownForm = reflect.TypeFor[interface{ UnmarshalYAML(func(any) error) error }]()

// durationPattern is of what ParseDuration takes.
const durationPattern = `^\+?([0-9]{1,5}d)?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))*$|^\+?0$`

// schemaOfStruct returns the schema of a section with a key for each tagged field.
func schemaOfStruct(t reflect.Type) map[string]any {
	fields := fieldsOf(reflect.New(t).Elem())
	props := properties{}
	for _, f := range fields {
		props = append(props, property{f.key, described(f, schemaOf(f.value.Type()))})
	}
	for _, p := range props {
		describeForms(props, p)
	}
	section := map[string]any{"type": "object", "properties": props, "additionalProperties": false}
	if conditions := conditionsOf(fields); len(conditions) > 0 {
		section["allOf"] = conditions
	}
	return section
}

// conditionsOf returns which keys of a section must be given, and which not beside each other: the spellings of a key, as
// text, file, environment variable and secret in Key Vault, and the other keys that a tag names.
func conditionsOf(fields []field) (conditions []any) {
	known := keysOf(fields)
	for _, f := range fields {
		others, needed := f.tag.Lookup("required")
		var ways []any
		var given []string
		for _, key := range append([]string{f.key}, strings.Fields(others)...) {
			for _, form := range append([]string{""}, spellings...) {
				if slices.Contains(known, key+form) {
					ways, given = append(ways, required(key+form)), append(given, key+form)
				}
			}
		}
		switch {
		case needed && len(ways) == 1:
			conditions = append(conditions, ways[0])
		case needed:
			conditions = append(conditions, map[string]any{"oneOf": ways})
		case len(ways) > 1:
			var pairs []any
			for i, a := range given {
				for _, b := range given[i+1:] {
					pairs = append(pairs, map[string]any{"required": []string{a, b}})
				}
			}
			conditions = append(conditions, map[string]any{"not": map[string]any{"anyOf": pairs}})
		}
	}
	return conditions
}

// oneOrMore returns the schema of one value or a list of them.
func oneOrMore(one map[string]any) map[string]any {
	kinds, isList := one["type"].([]string)
	if !isList {
		kinds = []string{one["type"].(string)}
	}
	either := maps.Clone(one)
	either["type"], either["items"] = append(slices.Clone(kinds), "array"), one
	return either
}

// described adds what the tags of a field say to its schema.
func described(f field, schema map[string]any) map[string]any {
	if doc, ok := f.tag.Lookup("doc"); ok {
		schema["description"] = doc
	}
	if _, ok := f.tag.Lookup("restart"); ok && f.value.Kind() != reflect.Pointer { // a relay's nats has both
		sayRestart(schema)
	}
	if words := wordsOf(f.tag); len(words) > 0 {
		offer(schema, words)
	}
	if f.value.Kind() == reflect.Int {
		for tag, key := range map[string]string{"min": "minimum", "max": "maximum"} {
			if n, given := bound(f.tag, tag, f.value.Type()); given {
				schema[key] = n
			}
		}
	}
	if text, ok := f.tag.Lookup("default"); ok {
		var value any = text
		if n, err := strconv.Atoi(text); err == nil {
			value = n
		} else if yes, err := strconv.ParseBool(text); err == nil {
			value = yes
		}
		schema["default"] = value
	}
	return schema
}

// sayRestart adds to the description of a key, or of those below it, that a change takes effect at the next start.
func sayRestart(schema map[string]any) {
	if below, ok := schema["properties"].(properties); ok {
		for _, p := range below {
			sayRestart(p.schema)
		}
		return
	}
	text, byDefault, _ := strings.Cut(schema["description"].(string), " (default")
	schema["description"] = text + "; needs a restart"
	if byDefault != "" {
		schema["description"] = text + "; needs a restart (default" + byDefault
	}
}

// spellings are what a key of a secret may end in.
var spellings = []string{"_file", "_env", "_vault"}

// describeForms adds descriptions to the other spellings of a secret, and to the form _file of a template.
func describeForms(props properties, p property) {
	for _, form := range spellings {
		i := slices.IndexFunc(props, func(other property) bool { return other.key == p.key+form })
		switch {
		case i < 0:
		case p.schema["writeOnly"] == nil:
			props[i].schema["description"] = "file with " + p.key + ", read when the settings are loaded"
		case form == "_file":
			props[i].schema["description"] = "file with " + p.key + ", read again on each use"
		case form == "_vault":
			props[i].schema["description"] = "URL of a secret in Azure Key Vault with " + p.key
		default:
			props[i].schema["description"] = "environment variable with " + p.key
		}
	}
}
