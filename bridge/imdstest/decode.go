package imdstest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A keyError says what is wrong with the value of a key. Its path leads from the outermost object to the key.
type keyError struct {
	path []string
	text string
}

func (e *keyError) Error() string {
	if len(e.path) == 0 {
		return e.text
	}
	return strings.Join(e.path, ".") + ": " + e.text
}

// keyErrorf formats a keyError for the value at the path.
func keyErrorf(path []string, format string, args ...any) error {
	return &keyError{slices.Clone(path), fmt.Sprintf(format, args...)}
}

// decode reads a JSON object into the struct that into points to, by the names in its json tags. It is strict: it
// refuses an unknown key, a null and a value of another type with a keyError that says what was expected. A
// time.Duration is a text such as "30s".
func decode(data []byte, into any) error {
	if !json.Valid(data) {
		var v any
		return keyErrorf(nil, "broken JSON: %v", json.Unmarshal(data, &v))
	}
	return set(nil, data, reflect.ValueOf(into).Elem())
}

var durationType = reflect.TypeFor[time.Duration]()

// set sets v to a valid JSON value.
func set(path []string, data json.RawMessage, v reflect.Value) error {
	refuse := func() error { return keyErrorf(path, "expected %s, got %.60s", expected(v.Type()), data) }
	if string(data) == "null" {
		return refuse()
	}
	switch {
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return set(path, data, v.Elem())
	case v.Type() == durationType:
		var text string
		if json.Unmarshal(data, &text) != nil {
			return refuse()
		}
		d, err := parseDuration(text)
		if err != nil {
			return refuse()
		}
		v.SetInt(int64(d))
	case v.Kind() == reflect.Struct:
		return setFields(path, data, v)
	case v.Kind() == reflect.Slice:
		var items []json.RawMessage
		if json.Unmarshal(data, &items) != nil {
			return refuse()
		}
		v.Set(reflect.MakeSlice(v.Type(), len(items), len(items)))
		for i, item := range items {
			if err := set(append(path, strconv.Itoa(i)), item, v.Index(i)); err != nil {
				return err
			}
		}
	default:
		if json.Unmarshal(data, v.Addr().Interface()) != nil {
			return refuse()
		}
	}
	return nil
}

func setFields(path []string, data json.RawMessage, v reflect.Value) error {
	var object map[string]json.RawMessage
	if json.Unmarshal(data, &object) != nil {
		return keyErrorf(path, "expected %s, got %.60s", expected(v.Type()), data)
	}
	fields := make(map[string]int)
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		fields[name] = i
	}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		below := append(path, key)
		i, known := fields[key]
		if !known {
			return keyErrorf(below, "unknown key, expected one of %s", strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		}
		if err := set(below, object[key], v.Field(i)); err != nil {
			return err
		}
	}
	return nil
}

// expected describes a value of that type for an error.
func expected(t reflect.Type) string {
	switch {
	case t == durationType:
		return "a duration such as 30s or 15m, not negative"
	case t.Kind() == reflect.Pointer:
		return expected(t.Elem())
	case t.Kind() == reflect.Int:
		return "a whole number"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Slice:
		return "a list"
	case t.Kind() == reflect.Struct:
		return "keys and values"
	}
	return "text"
}

// maxDuration is the longest duration that parseDuration takes: the year of a date so far ahead must have four digits.
const maxDuration = 10 * 365 * 24 * time.Hour

// parseDuration reads a duration as Go writes it, with optional days in front: 7d or 1d12h.
func parseDuration(text string) (time.Duration, error) {
	var d time.Duration
	if days, rest, found := strings.Cut(text, "d"); found {
		n, err := strconv.ParseUint(days, 10, 12)
		if err != nil {
			return 0, err
		}
		d, text = time.Duration(n)*24*time.Hour, rest
	}
	if text != "" || d == 0 {
		rest, err := time.ParseDuration(text)
		if err != nil {
			return 0, err
		}
		d += rest
	}
	if d < 0 || d > maxDuration {
		return 0, errors.New("out of range")
	}
	return d, nil
}
