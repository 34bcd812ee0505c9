package main

import (
	"encoding"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/spf13/cobra"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/sinks"
	"forewarn/templates"
)

func (p *program) schemaCommand() *cobra.Command {
	var ofSettings bool
	c := &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of the data of our CloudEvents, or of the settings file",
		Example: "  forewarn schema > forewarn-v1.json\n  forewarn schema --settings > forewarn-settings.json   # for an editor",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if ofSettings {
				return printJSON(p.out, settingsSchema(sinks.Kinds))
			}
			_, err := p.out.Write(bridge.Schema)
			return err
		},
	}
	c.Flags().BoolVar(&ofSettings, "settings", false, "that of the settings file")
	return c
}

// settingsSchema is the JSON Schema of the settings file, read off the structs that it is decoded into. It knows keys
// and types; what else must hold is checked by check.
func settingsSchema(kinds map[string]sinks.Kind) map[string]any {
	root := schemaOf(reflect.TypeFor[settings]())
	root["$schema"], root["title"] = "https://json-schema.org/draft/2020-12/schema", "forewarn settings"
	sink := schemaOf(reflect.TypeFor[sinkSettings]())
	props := sink["properties"].(map[string]any)
	var oneKind []any
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		// A kind shows the type of its settings by what it wants decoded.
		_, _ = kinds[name].Open(func(to any) error {
			props[name] = schemaOf(reflect.TypeOf(to).Elem())
			return errors.ErrUnsupported
		}, sinks.Host{})
		oneKind = append(oneKind, map[string]any{"required": []string{name}})
	}
	sink["required"], sink["oneOf"] = []string{"name"}, oneKind
	for key, values := range map[string][]string{"types": bridge.TypesValues, "sources": bridge.SourcesValues, "changes": bridge.ChangesValues} {
		for _, match := range []string{"only", "except"} {
			list := props[match].(map[string]any)["properties"].(map[string]any)
			list[key] = map[string]any{"type": "array", "items": map[string]any{"enum": values}}
			list["vms"] = map[string]any{"enum": bridge.VMsValues}
		}
	}
	props["late"] = map[string]any{"enum": []delivery.Late{delivery.LateSend, delivery.LateLatest, delivery.LateDrop}}
	props["bridge"] = map[string]any{"enum": []bridge.Level{bridge.LevelNone, bridge.LevelTrouble, bridge.LevelAll}}
	rule := schemaOf(reflect.TypeFor[ruleSettings]())
	ruleProps := rule["properties"].(map[string]any)
	ruleProps["only"] = map[string]any{"allOf": []any{props["only"], map[string]any{
		"required": []string{"types"}, "properties": map[string]any{"types": map[string]any{"minItems": 1}},
	}}}
	ruleProps["except"], rule["required"] = props["except"], []string{"only"}
	root["properties"].(map[string]any)["sinks"] = map[string]any{"type": "array", "items": sink}
	root["properties"].(map[string]any)["approve"] = map[string]any{"type": "array", "items": rule}
	return root
}

// schemaOf is the schema of what decodes into a t.
func schemaOf(t reflect.Type) map[string]any {
	pointer := reflect.PointerTo(t)
	switch {
	case t.Kind() == reflect.Pointer:
		return schemaOf(t.Elem())
	case pointer.Implements(reflect.TypeFor[interface{ UnmarshalYAML(func(any) error) error }]()):
		return map[string]any{"type": []string{"string", "number", "object"}} // a text, or {file: …}, or {env: …}
	case t == reflect.TypeFor[time.Duration]():
		return map[string]any{"type": []string{"string", "number"}, "description": "a duration such as 500ms, 30s, 5m, 2h or 7d"}
	case pointer.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()), t.Kind() == reflect.String:
		return map[string]any{"type": []string{"string", "number"}}
	}
	switch t.Kind() {
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	case reflect.Struct:
		props := map[string]any{}
		fields := map[string]reflect.Value{}
		for _, key := range collect(reflect.New(t).Elem(), fields) {
			props[key] = schemaOf(fields[key].Type())
		}
		return map[string]any{"type": "object", "properties": props, "additionalProperties": false}
	}
	return map[string]any{"type": "integer"}
}

// fieldsTopic is what help fields prints: the names that when and templates see.
func (p *program) fieldsTopic() *cobra.Command {
	c := &cobra.Command{Use: "fields", Short: "The names that when and the templates of the settings see"}
	c.SetHelpFunc(func(*cobra.Command, []string) {
		fmt.Fprintln(p.out, "In when, and in templates with a dot before them, these names are known. Every one is always there; what a CloudEvent\n"+
			"lacks is empty, false, 0 or, for durations, -1.")
		p.printFields(fieldDocs(bridge.Fields(event.New()), bridge.FieldDocs))
		fmt.Fprintln(p.out, "\nTemplates see these too:")
		p.printFields(fieldDocs(messageFields(), sinks.MessageDocs))
		for _, kind := range slices.Sorted(maps.Keys(sinks.Kinds)) {
			if own := ownFields(kind); len(own) > 0 {
				fmt.Fprintf(p.out, "\nThose of %s see, beside the first:\n", kind)
				p.printFields(own)
			}
		}
		fmt.Fprintln(p.out, "\nInside data stands what forewarn schema describes, such as data.event.Description, data.outcome or data.notBefore.\n"+
			"Where it may be missing, dig is safe: {{dig \"event\" \"Description\" \"none\" .data}}.")
		fmt.Fprintf(p.out, "\nBeside those of Go's templates there are these functions, most as in Alertmanager and sprig:\n%s\n",
			wrapped(templates.FuncNames(), 110))
	})
	return c
}

// messageFields are the fields of a message about nothing, for their kinds.
func messageFields() map[string]any {
	return sinks.MessageFields(delivery.Delivery{Event: event.New()}, time.UTC, time.Time{})
}

// ownFields explains what only the templates of a kind see.
func ownFields(kind string) []fieldDoc {
	fields, docs := map[string]any{}, map[string]string{}
	for name, f := range sinks.Kinds[kind].Fields {
		fields[name], docs[name] = f.Zero, f.Doc
	}
	return fieldDocs(fields, docs)
}

// A fieldDoc explains a name.
type fieldDoc struct{ name, kind, doc string }

// fieldDocs are the explanations of the fields that have one in docs, by name.
func fieldDocs(fields map[string]any, docs map[string]string) []fieldDoc {
	var all []fieldDoc
	for _, name := range slices.Sorted(maps.Keys(docs)) {
		all = append(all, fieldDoc{name, kindOf(fields[name]), docs[name]})
	}
	return all
}

func (p *program) printFields(docs []fieldDoc) {
	fmt.Fprintln(p.out)
	t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	for _, d := range docs {
		fmt.Fprintf(t, "%s\t%s\t%s\n", d.name, d.kind, d.doc)
	}
	t.Flush()
}

// wrapped is words in lines of at most width characters.
func wrapped(words []string, width int) string {
	var b strings.Builder
	n := 0
	for i, w := range words {
		switch {
		case i == 0:
		case n+1+len(w) > width:
			b.WriteString("\n")
			n = 0
		default:
			b.WriteString(" ")
			n++
		}
		b.WriteString(w)
		n += len(w)
	}
	return b.String()
}

func kindOf(v any) string {
	switch v.(type) {
	case string:
		return "text"
	case bool:
		return "boolean"
	case int, float64:
		return "number"
	case []string, []map[string]any:
		return "list"
	}
	return "map"
}
