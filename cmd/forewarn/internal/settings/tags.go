package settings

import (
	"fmt"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"forewarn/bridge"
	"forewarn/bridge/imds"
	"forewarn/sinks"
)

// What there is to say about a key stands in the tags of its field:
//
//	yaml       the key
//	doc        what it is, in one line
//	default    what counts without it
//	oneof      the words that it may have, in any case, or the name of a list in words; of a list each of its items
//	form       the form that it must have: a name in forms
//	min, max   the bounds of a number or a duration
//	zero       what 0 is for, below min
//	required   that it must be given, or one of the other keys that the tag names
//	restart    that a change of it takes effect at the next start only
//	relay      why a relay can't have it
//
// decode refuses what they don't allow. The schema, and with it the tables of the documents and help, is made of them.

// A field is a field of a struct of settings that has a key.
type field struct {
	key   string
	tag   reflect.StructTag
	value reflect.Value
}

// fieldsOf returns the fields of a struct that have a key, in order. Fields of an embedded struct count as its own.
func fieldsOf(v reflect.Value) (fields []field) {
	for f, value := range v.Fields() {
		if f.Anonymous {
			fields = append(fields, fieldsOf(value)...)
		} else if key, ok := f.Tag.Lookup("yaml"); ok {
			fields = append(fields, field{key, f.Tag, value})
		}
	}
	return fields
}

func keysOf(fields []field) (keys []string) {
	for _, f := range fields {
		keys = append(keys, f.key)
	}
	return keys
}

// keysWith returns the keys of the settings file whose fields have a tag.
func keysWith(tag string) (keys []string) {
	for _, f := range fieldsOf(reflect.ValueOf(new(Settings)).Elem()) {
		if _, ok := f.tag.Lookup(tag); ok {
			keys = append(keys, f.key)
		}
	}
	return keys
}

// setDefaults gives the fields below a struct the values of their tags.
func setDefaults(v reflect.Value) {
	for _, f := range fieldsOf(v) {
		text, ok := f.tag.Lookup("default")
		to := f.value.Addr().Interface()
		switch {
		case !ok:
			if f.value.Kind() == reflect.Struct {
				setDefaults(f.value)
			}
			continue
		case f.value.Type() == reflect.TypeFor[time.Duration]():
			d, _ := ParseDuration(text)
			f.value.SetInt(int64(d))
			continue
		}
		switch f.value.Kind() {
		case reflect.String:
			f.value.SetString(text)
		case reflect.Bool:
			f.value.SetBool(text == "true")
		default:
			panic(fmt.Sprintf("settings: no default for %s, a %T", f.key, to))
		}
	}
}

// words are the lists of words that tags name.
var words = map[string][]string{
	"vms": bridge.VMsValues, "own vms": bridge.OwnVMsValues, "types": bridge.TypesValues,
	"sources": bridge.SourcesValues, "changes": bridge.ChangesValues, "severities": bridge.SeverityValues,
	"facilities": sinks.SyslogFacilities,
}

// wordsOf returns the words that a tag oneof allows; none if there is no such tag.
func wordsOf(tag reflect.StructTag) []string {
	if list, ok := words[tag.Get("oneof")]; ok {
		return list
	}
	return strings.Fields(tag.Get("oneof"))
}

// A form is what a text must be like.
type form struct {
	fits func(string) bool
	want string
}

// forms are the forms that tags name.
var forms = map[string]form{
	"endpoint": {func(s string) bool { return IsEndpoint(strings.TrimRight(s, "/")) },
		"an http or https URL without /metadata/..., such as http://169.254.169.254"},
	"date":      {apiVersion.MatchString, "a date such as 2020-07-01"},
	"directory": {func(s string) bool { return s != "" }, "a directory such as /var/lib/forewarn"},
	"address":   {func(s string) bool { return s == "" || isListen(s) }, `host:port such as 127.0.0.1:8169, or "" for none`},
	"zone":      {isZone, "an IANA name such as UTC or Europe/Berlin"},
	"uri": {func(s string) bool { return s == "" || isURI(s) }, "an absolute URI without spaces, such as " +
		"https://management.azure.com/subscriptions/... or urn:example:web"},
	"pattern": {func(s string) bool { _, err := path.Match(s, ""); return err == nil && s != "" }, "a pattern such as vm-db-*"},
	"name": {func(s string) bool { return s == "" || sinkName.MatchString(s) },
		"only letters, digits, dots, dashes and underscores"},
	"client id": {func(s string) bool { return s == "" || uuid.Validate(s) == nil },
		"a client id such as 0c0c0c0c-1111-2222-3333-444444444444"},
	"token": {func(s string) bool { return s == "" || isToken(s, 200) }, "letters, digits, dashes and underscores"},
}

func isZone(s string) bool {
	_, err := time.LoadLocation(s)
	return err == nil && s != "" && s != "Local"
}

// checkTags refuses the values of a decoded field that its tags don't allow. A word is written as the tag has it.
func (doc *document) checkTags(n *node, f field, path string) error {
	if f.value.Kind() != reflect.Slice {
		return doc.checkValue(n, f.tag, f.value, path)
	}
	var problems Problems
	for i, item := range n.list() {
		problems = problems.with(doc.checkValue(item, f.tag, f.value.Index(i), path))
	}
	return problems.err()
}

func (doc *document) checkValue(n *node, tag reflect.StructTag, v reflect.Value, path string) error {
	if allowed := wordsOf(tag); len(allowed) > 0 && v.Kind() == reflect.String {
		i := slices.IndexFunc(allowed, func(word string) bool { return imds.SameWord(word, v.String()) })
		if i < 0 {
			return doc.refuse(n, v, path, "one of "+strings.Join(allowed, ", "))
		}
		v.SetString(allowed[i])
	}
	if form, ok := forms[tag.Get("form")]; ok && !form.fits(v.String()) {
		return doc.refuse(n, v, path, form.want)
	}
	if v.CanInt() && !inBounds(tag, v) {
		return doc.refuse(n, v, path, boundsText(tag))
	}
	return nil
}

// refuse returns the problem with a decoded value, and takes it back.
func (doc *document) refuse(n *node, v reflect.Value, path, want string) error {
	v.SetZero()
	problem := doc.valueError(n, path, want)
	problem.refused = true
	return problem
}

// inBounds reports whether a number or a duration is within the bounds of its tags.
func inBounds(tag reflect.StructTag, v reflect.Value) bool {
	n := v.Int()
	if _, zero := tag.Lookup("zero"); zero && n == 0 {
		return true
	}
	least, hasLeast := bound(tag, "min", v.Type())
	most, hasMost := bound(tag, "max", v.Type())
	return !(hasLeast && n < least) && !(hasMost && n > most)
}

func bound(tag reflect.StructTag, name string, t reflect.Type) (n int64, given bool) {
	text, given := tag.Lookup(name)
	if t == reflect.TypeFor[time.Duration]() {
		d, _ := ParseDuration(text)
		return int64(d), given
	}
	n, _ = strconv.ParseInt(text, 10, 64)
	return n, given
}

// boundsText says which values the bounds of tags allow.
func boundsText(tag reflect.StructTag) string {
	least, most := tag.Get("min"), tag.Get("max")
	text := least + " to " + most
	switch {
	case most == "":
		text = "at least " + least
	case least == "":
		text = "at most " + most
	}
	if zero := tag.Get("zero"); zero != "" {
		text += ", or 0 for " + zero
	}
	return text
}

// refuseOnRelay refuses the keys of a section that a relay can't have.
func (doc *document) refuseOnRelay(n *node, of any) error {
	var problems Problems
	for _, f := range fieldsOf(reflect.ValueOf(of).Elem()) {
		why, refused := f.tag.Lookup("relay")
		if e, given := n.find(f.key); refused && given {
			problems = problems.with(doc.errorAt(e.pos, "%s: %s", f.key, why))
		}
	}
	return problems.err()
}

// NeedRestart returns the keys that differ between settings and take effect at the next start only.
func NeedRestart(was, now *Settings) (keys []string) {
	before, after := fieldsOf(reflect.ValueOf(was).Elem()), fieldsOf(reflect.ValueOf(now).Elem())
	for i, f := range before {
		_, fixed := f.tag.Lookup("restart")
		same := reflect.DeepEqual(f.value.Interface(), after[i].value.Interface())
		if f.value.Type() == reflect.TypeFor[*RelaySettings]() {
			same = was.Relay == nil || was.Relay.IsSame(now.Relay)
		}
		if fixed && !same {
			keys = append(keys, f.key)
		}
	}
	return keys
}
