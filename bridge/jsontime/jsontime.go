// Package jsontime keeps times within the years that JSON and RFC 3339 can say, 0 to 9999. A clock that is stepped beyond
// them while forewarn runs must neither end it nor keep it from telling anything: it is then told with the last time that
// can be said.
package jsontime

import (
	"reflect"
	"time"
)

// The first and the last time that can be said.
var (
	first = time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)
	last  = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// Bound returns t or, if it can't be said, the nearest time that can.
func Bound(t time.Time) time.Time {
	switch year := t.Year(); {
	case year < 0 || t.UTC().Year() < 0:
		return first
	case year > 9999 || t.UTC().Year() > 9999:
		return last
	}
	return t
}

// BoundAll returns a copy of v with every exported time in it bounded. It is for values that encoding/json refuses; it
// is slow, and changes nothing in v.
func BoundAll(v any) any {
	if v == nil {
		return nil
	}
	return boundAll(reflect.ValueOf(v)).Interface()
}

func boundAll(v reflect.Value) reflect.Value {
	to := reflect.New(v.Type()).Elem()
	to.Set(v)
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			to.Set(reflect.New(v.Type().Elem()))
			to.Elem().Set(boundAll(v.Elem()))
		}
	case reflect.Interface:
		if !v.IsNil() {
			to.Set(boundAll(v.Elem()))
		}
	case reflect.Slice:
		if !v.IsNil() {
			to.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
			for i := range v.Len() {
				to.Index(i).Set(boundAll(v.Index(i)))
			}
		}
	case reflect.Map:
		if !v.IsNil() {
			to.Set(reflect.MakeMapWithSize(v.Type(), v.Len()))
			for _, key := range v.MapKeys() {
				to.SetMapIndex(key, boundAll(v.MapIndex(key)))
			}
		}
	case reflect.Struct:
		if t, ok := v.Interface().(time.Time); ok {
			to.Set(reflect.ValueOf(Bound(t)))
			break
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				to.Field(i).Set(boundAll(v.Field(i)))
			}
		}
	}
	return to
}
