package sinks

import (
	"encoding/json"
	"maps"
	"strings"
	"sync"

	"forewarn/bridge/cloudevent"
	"forewarn/templates"
)

// messageShape returns the shape of a message's fields, including own, those of one kind.
func messageShape(own map[string]Field) *templates.Shape {
	s := shapeOf(cloudevent.FieldDocs, MessageDocs)
	s.Names["fallbackFor"] = names("sink", "kind", "error")
	s.Names["missed"] = &templates.Shape{Items: names("change", "time")}
	one := &templates.Shape{Names: maps.Clone(s.Names)}
	delete(one.Names, "group")
	s.Names["group"] = &templates.Shape{Items: one}
	addNames(s, own)
	return s
}

// shapeOf returns the shape of fields with the names in docs, and of data.
func shapeOf(docs ...map[string]string) *templates.Shape {
	s := names()
	for _, d := range docs {
		addNames(s, d)
	}
	s.Names["data"] = dataShape()
	return s
}

// addNames adds the names of fields to a shape. Their values may be anything.
func addNames[V any](s *templates.Shape, fields map[string]V) {
	for name := range fields {
		s.Names[name] = nil
	}
}

// names returns the shape of a map with these names, whose values may be anything.
func names(all ...string) *templates.Shape {
	s := &templates.Shape{Names: make(map[string]*templates.Shape)}
	for _, name := range all {
		s.Names[name] = nil
	}
	return s
}

// A schema is the part of a JSON Schema that says which names there are.
type schema struct {
	Ref        string            `json:"$ref"`
	Defs       map[string]schema `json:"$defs"`
	Properties map[string]schema `json:"properties"`
	Items      *schema           `json:"items"`
}

// UnmarshalJSON reads a schema. It also accepts true and false, which are schemas without names.
func (s *schema) UnmarshalJSON(text []byte) error {
	type plain schema
	if text[0] != '{' {
		return nil
	}
	return json.Unmarshal(text, (*plain)(s))
}

// dataShape returns the shape of a CloudEvent's data, with the names of both kinds: about an Azure event and about the
// bridge.
var dataShape = sync.OnceValue(func() *templates.Shape {
	var root schema
	if err := json.Unmarshal(cloudevent.Schema, &root); err != nil {
		panic(err) // it is embedded
	}
	var shape func(s schema) *templates.Shape
	shape = func(s schema) *templates.Shape {
		if name, ok := strings.CutPrefix(s.Ref, "#/$defs/"); ok {
			s = root.Defs[name]
		}
		switch {
		case s.Items != nil:
			return &templates.Shape{Items: shape(*s.Items)}
		case s.Properties == nil:
			return nil
		}
		m := names()
		for name, below := range s.Properties {
			m.Names[name] = shape(below)
		}
		return m
	}
	all := shape(root)
	for _, about := range []string{"aboutAnEvent", "aboutTheBridge"} {
		maps.Copy(all.Names, shape(root.Defs[about]).Names)
	}
	all.Names["event"].More = true // Azure adds fields
	return all
})
