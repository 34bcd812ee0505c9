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
	"time"
	"unicode"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/sinks"
)

// isKey reports whether a word is a key somewhere in the settings, and so no secret.
func isKey(word string) bool {
	text, _ := json.Marshal(Schema(sinks.Kinds))
	return bytes.Contains(text, []byte(strconv.Quote(word)+":"))
}

// Schema returns the JSON Schema of the settings file, made from the structs that it is decoded into: keys, types,
// defaults, and descriptions from the doc tags. It does not cover everything that Load checks.
func Schema(kinds map[string]sinks.Kind) map[string]any {
	sink := schemaOf(reflect.TypeFor[sinkSettings]())
	keys := sink["properties"].(properties)
	offerWords(keys.of("only"), bridge.VMsValues)
	offerWords(keys.of("except"), bridge.OwnVMsValues)
	for key, values := range map[string][]string{
		"late":   {string(delivery.LateSend), string(delivery.LateLatest), string(delivery.LateDrop)},
		"bridge": {string(bridge.LevelNone), string(bridge.LevelTrouble), string(bridge.LevelAll)},
	} {
		delete(keys.of(key), "type")
		maps.Copy(keys.of(key), oneOf(values))
	}
	for key, of := range termDefaults {
		keys.of(key)["description"] = fmt.Sprintf("%s (default: %s)", keys.of(key)["description"], defaultByKind(kinds, of))
	}
	var oneKind []any
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		// A kind reveals the type of its settings when it asks to decode them.
		_, _ = kinds[name].Open(func(to any) error {
			section := schemaOf(reflect.TypeOf(to).Elem())
			section["description"] = "a destination of this kind; see forewarn help sinks " + name
			keys = append(keys, property{name, section})
			return errors.ErrUnsupported
		}, sinks.Host{})
		oneKind = append(oneKind, map[string]any{"required": []string{name}})
	}
	sink["properties"], sink["required"], sink["oneOf"] = keys, []string{"name"}, oneKind

	rule := schemaOf(reflect.TypeFor[ruleSettings]())
	of := rule["properties"].(properties)
	offerWords(of.of("only"), bridge.OwnVMsValues)
	offerWords(of.of("except"), bridge.OwnVMsValues)
	of.of("only")["required"] = []string{"types"}
	types := of.of("only")["properties"].(properties).of("types")
	types["minItems"] = 1 // of a list; one type will do
	rule["required"] = []string{"only"}

	rules := oneOrMore(rule)
	rules["description"] = "rules of approval (default: none)"
	root := schemaOf(reflect.TypeFor[Settings]())
	root["$schema"], root["title"] = "https://json-schema.org/draft/2020-12/schema", "forewarn settings"
	root["properties"] = append(root["properties"].(properties),
		property{"sinks", map[string]any{"description": "the destinations", "type": "array", "items": sink}},
		property{"approve", rules})
	root["required"] = []string{"sinks"}
	return root
}

// offerWords adds the values of the keys to the schema of an only or an except. vms are those of its key vms.
func offerWords(schema map[string]any, vms []string) {
	for _, p := range schema["properties"].(properties) {
		switch p.key {
		case "vms":
			delete(p.schema, "type")
			maps.Copy(p.schema, oneOf(vms))
		case "severity":
			delete(p.schema, "type")
			maps.Copy(p.schema, oneOf(bridge.SeverityValues))
		case "types":
			offerEach(p.schema, bridge.TypesValues)
		case "sources":
			offerEach(p.schema, bridge.SourcesValues)
		case "changes":
			offerEach(p.schema, bridge.ChangesValues)
		}
	}
}

// offerEach makes the schema of a list that of one of the words, or of a list of them.
func offerEach(schema map[string]any, words []string) {
	delete(schema, "type")
	delete(schema, "items")
	one := oneOf(words)
	schema["anyOf"] = append(one["anyOf"].([]any), map[string]any{"type": "array", "items": one})
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

// termDefaults are the keys of a sink whose default depends on its kind, with functions that return it as text.
var termDefaults = map[string]func(bridge.Terms) string{
	"bridge":  func(t bridge.Terms) string { return string(t.Bridge) },
	"late":    func(t bridge.Terms) string { return string(t.Late) },
	"timeout": func(t bridge.Terms) string { return cmp.Or(writtenDuration(t.Timeout), "until NotBefore, at most 15m") },
	"max_age": func(t bridge.Terms) string { return cmp.Or(writtenDuration(t.MaxAge), "0") },
	"remind": func(t bridge.Terms) string {
		if len(t.Remind) == 0 {
			return "none"
		}
		var times []string
		for _, d := range t.Remind {
			times = append(times, writtenDuration(d))
		}
		return "[" + strings.Join(times, ", ") + "]"
	},
	"group": func(t bridge.Terms) string {
		if t.DigestAbove == 0 {
			return "none"
		}
		return fmt.Sprintf("{above: %d}", t.DigestAbove)
	},
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
		said = append(said, strings.Join(having[v], ", ")+" "+v)
	}
	most := values[len(values)-1]
	if len(said) == 0 {
		return most
	}
	return strings.Join(said, "; ") + "; others " + most
}

// properties are the keys of an object, in the order of the fields of its struct.
type properties []property

type property struct {
	key    string
	schema map[string]any
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
	case t.Kind() == reflect.Struct && pointer.Implements(ownForm) && len(collect(reflect.New(t).Elem(), map[string]reflect.Value{})) > 0:
		section := schemaOfStruct(t) // or a text alone
		section["type"] = []string{"string", "object"}
		return section
	case pointer.Implements(ownForm):
		// text, {file: PATH} or {env: NAME}
		return map[string]any{"type": []string{"string", "number", "object"}, "writeOnly": true}
	case t == reflect.TypeFor[time.Duration](): // of numbers only 0 needs no unit
		return map[string]any{"type": []string{"string", "number"}, "minimum": 0, "maximum": 0}
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

// schemaOfStruct returns the schema of a section with a key for each tagged field.
func schemaOfStruct(t reflect.Type) map[string]any {
	props := properties{}
	for f := range t.Fields() {
		if f.Anonymous {
			props = append(props, schemaOf(f.Type)["properties"].(properties)...)
		} else if key, ok := f.Tag.Lookup("yaml"); ok {
			props = append(props, property{key, described(f, schemaOf(f.Type))})
		}
	}
	for _, p := range props {
		describeForms(props, p)
	}
	return map[string]any{"type": "object", "properties": props, "additionalProperties": false}
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

// described adds the description and default from the tags of a field to its schema.
func described(f reflect.StructField, schema map[string]any) map[string]any {
	if doc, ok := f.Tag.Lookup("doc"); ok {
		schema["description"] = doc
	}
	if text, ok := f.Tag.Lookup("default"); ok {
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

// describeForms adds descriptions to the forms _file and _env of a secret, and to the form _file of a template.
func describeForms(props properties, p property) {
	for _, form := range []string{"_file", "_env"} {
		i := slices.IndexFunc(props, func(other property) bool { return other.key == p.key+form })
		switch {
		case i < 0:
		case p.schema["writeOnly"] == nil:
			props[i].schema["description"] = "file with " + p.key + ", read when the settings are loaded"
		case form == "_file":
			props[i].schema["description"] = "file with " + p.key + ", read again on each use"
		default:
			props[i].schema["description"] = "environment variable with " + p.key
		}
	}
}
