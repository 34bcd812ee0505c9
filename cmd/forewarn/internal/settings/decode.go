package settings

import (
	"cmp"
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"forewarn/sinks"
)

// decode fills the struct that to points at from the section n. Every key must belong to one of its fields, or to
// others, which it skips. Every value must have the type of its field, and be one that its tags allow. Fields that the
// file does not name keep their value. The error holds everything that is wrong. path names n in errors.
func (doc *document) decode(n *node, to any, path string, others ...string) error {
	return doc.fill(n, reflect.ValueOf(to).Elem(), path, others...)
}

// fill decodes n into v. What names a file is then relative to the directory of the settings file. It refuses what may
// be the content of a file in place of its path.
func (doc *document) fill(n *node, v reflect.Value, path string, others ...string) error {
	err := doc.fillAsWritten(n, v, path, others...)
	if named, ok := v.Addr().Interface().(interface{ RelativeTo(dir string) }); ok {
		named.RelativeTo(doc.dir)
	}
	file, ok := v.Addr().Interface().(*sinks.Path)
	if ok && *file != "" && err == nil && strings.HasSuffix(path, "file") && !file.MayBeShown(n.text) {
		below := ""
		if string(*file) != n.text { // it is relative
			below = " below " + doc.dir
		}
		n.secret = true
		return doc.errorAt(n.pos, "%s: no such file%s; expected the path of a file. It isn't shown, because it may be "+
			"a secret itself", path, below)
	}
	return err
}

func (doc *document) fillAsWritten(n *node, v reflect.Value, path string, others ...string) error {
	to := v.Addr().Interface()
	if u, ok := to.(interface{ UnmarshalYAML(func(any) error) error }); ok {
		return doc.keyError(entry{n.pos, path, n}, u.UnmarshalYAML(func(to any) error { return doc.decode(n, to, path) }))
	}
	if v.Kind() == reflect.Pointer { // an optional section
		v.Set(reflect.New(v.Type().Elem()))
		return doc.fill(n, v.Elem(), path)
	}
	want := map[reflect.Kind]kind{
		reflect.String: aText, reflect.Bool: aBoolean, reflect.Int: aWholeNumber, reflect.Int64: aWholeNumber,
		reflect.Map: aTable, reflect.Struct: aTable,
	}[v.Kind()]
	text, isText := to.(encoding.TextUnmarshaler)
	duration, isDuration := to.(*time.Duration)
	if isText {
		want = aText
	} else if isDuration {
		want = aDuration
	}
	_, secret := to.(*sinks.Secret)
	if want != "" && !n.is(want) {
		if secret && n.kind == aTable {
			return doc.errorAt(n.pos, "%s: expected text, got a section of keys; name a file in %[1]s_file", path)
		}
		return doc.kindError(n, path, want)
	}
	if secret {
		n.secret = true
	} else {
		n.open = true
	}
	switch {
	case isText:
		return doc.keyError(entry{n.pos, path, n}, text.UnmarshalText([]byte(n.text)))
	case isDuration:
		d, ok := ParseDuration(n.text)
		if !ok {
			want := "a number from 0 with its unit, such as 500ms, 30s, 5m, 2h or 7d"
			if isTooLong(n.text) {
				want = "at most 99999d"
			}
			return doc.valueError(n, path, want)
		}
		*duration = d
	case v.Kind() == reflect.Struct:
		return doc.fillStruct(n, v, path, others)
	case v.Kind() == reflect.Map:
		n.anyKeys = true
		v.Set(reflect.MakeMap(v.Type()))
		var problems Problems
		for _, e := range n.entries {
			value := reflect.New(v.Type().Elem()).Elem()
			problems = problems.with(doc.fill(e.value, value, path))
			v.SetMapIndex(reflect.ValueOf(e.key), value)
		}
		return problems.err()
	case v.Kind() == reflect.Slice:
		items := n.list()
		v.Set(reflect.MakeSlice(v.Type(), len(items), len(items)))
		var problems Problems
		for i, item := range items {
			problems = problems.with(doc.fill(item, v.Index(i), path))
		}
		return problems.err()
	case want == aText:
		v.SetString(n.text)
	case want == aBoolean:
		v.SetBool(strings.EqualFold(n.text, "true"))
	case want == aWholeNumber:
		i, err := strconv.ParseInt(n.text, 10, v.Type().Bits())
		if err != nil {
			return doc.valueError(n, path, string(want))
		}
		v.SetInt(i)
	default:
		panic("settings cannot hold a " + v.Type().String())
	}
	return nil
}

// is reports whether the node can be read as k. A number is also text, and a missing value is an empty list or section.
func (n *node) is(k kind) bool {
	switch n.kind {
	case aNumber:
		return k == aText || k == aDuration || k == aWholeNumber
	case aText:
		return k == aText || k == aDuration
	case nothing:
		return k == aList || k == aTable
	}
	return n.kind == k
}

func (doc *document) fillStruct(n *node, v reflect.Value, path string, others []string) error {
	fields := fieldsOf(v)
	known := slices.Concat(keysOf(fields), others)
	var problems Problems
	for _, e := range n.entries {
		i := slices.Index(known, e.key)
		switch {
		case i < 0 && slices.Contains(known, sinks.UsualNames()[e.key]):
			problems = problems.with(doc.errorAt(e.pos, "unknown key %q; expected %s", e.key, sinks.UsualNames()[e.key]))
		case i < 0 && replaced(join(path, e.key), e.value) != "":
			problems = problems.with(doc.errorAt(e.pos, "%s: %s", join(path, e.key), replaced(join(path, e.key), e.value)))
		case i < 0:
			message := strings.TrimPrefix(path+": ", ": ") + unknownWord("key", e.key, known, isKey(e.key))
			problems = problems.with(doc.errorAt(e.pos, "%s", message))
		case i < len(fields):
			below := join(path, e.key)
			err := doc.fill(e.value, fields[i].value, below)
			e.value.holds = holderOf(e.key, known, fields[i].value)
			if err == nil {
				err = doc.checkTags(e.value, fields[i], below)
			}
			problems = problems.with(err)
		}
	}
	return problems.err()
}

// holderOf returns what holds a secret, if a key names that: every secret has such a key for each of the three. The value
// of the key is v, decoded.
func holderOf(key string, known []string, v reflect.Value) (holder sinks.Value) {
	for _, kind := range []string{"file", "env", "vault"} {
		secret, ok := strings.CutSuffix(key, kind)
		switch {
		case !ok || !slices.Contains(known, secret+"vault"):
		case kind == "file":
			holder.File = sinks.Path(v.String())
		case kind == "env" && v.Kind() == reflect.String:
			holder.Env = v.String()
		case kind == "vault":
			holder.Vault = v.String()
		}
	}
	return holder
}

// replaced says of a key that there was what stands in its place; "" for any other.
func replaced(key string, value *node) string {
	name := cmp.Or(sinks.UsualNames()[value.text], value.text)
	isService := slices.ContainsFunc(sinks.Services(), func(s *sinks.Service) bool { return s.Name == name })
	switch {
	case key == "webhook.body" && isService:
		return fmt.Sprintf("a service is a kind of sink; expected %s in place of webhook, with its own keys below: "+
			"forewarn help sinks %[1]s", name)
	case key == "webhook.body":
		return "expected body_text, or the name of a service in place of webhook: forewarn help sinks lists them"
	case key == "webhook.body_secrets":
		return "secrets are keys of a service; expected its name in place of webhook, or a preset of your own in services"
	}
	return ""
}

func join(path, key string) string { return strings.TrimPrefix(path+"."+key, ".") }
