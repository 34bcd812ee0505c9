package sinks

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

// hidden stands wherever a secret would be shown.
const hidden = "[secret]"

// Secret is a text that never shows itself, however it is printed, logged or encoded. It is kept behind a pointer for
// the sake of printers that reach into unexported fields and ask no method.
type Secret struct{ text *string }

// NewSecret makes a Secret of s.
func NewSecret(s string) Secret { return Secret{&s} }

// plain returns the text, or "" if there is none.
func (s Secret) plain() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// UnmarshalText takes the text as it is.
func (s *Secret) UnmarshalText(text []byte) error {
	*s = NewSecret(string(text))
	return nil
}

// Format writes [secret] for every verb.
func (s Secret) Format(w fmt.State, _ rune) { io.WriteString(w, hidden) }

// String is [secret].
func (s Secret) String() string { return hidden }

// MarshalText is [secret], in JSON and YAML too.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// LogValue is [secret].
func (s Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// A Value of the settings may be a secret. Inside lists and maps it is a text, {file: PATH} or {env: NAME}; elsewhere
// each of the three has a key of its own, such as url, url_file and url_env.
type Value struct {
	Text      Secret
	File, Env string
}

// UnmarshalYAML reads a Value inside a list or map.
func (v *Value) UnmarshalYAML(unmarshal func(any) error) error {
	if unmarshal(&v.Text) == nil && v.Text.text != nil {
		return nil
	}
	var from struct {
		File string `yaml:"file"`
		Env  string `yaml:"env"`
	}
	if err := unmarshal(&from); err != nil {
		return err
	}
	v.File, v.Env = from.File, from.Env
	if !v.given() {
		return errors.New("expected a text, {file: PATH} or {env: NAME}")
	}
	return nil
}

func (v Value) given() bool { return v.Text.text != nil || v.File != "" || v.Env != "" }

// A source is where a value of the settings comes from each time it is used: the text under key, or a file or a
// variable, whose keys are key, sep, and file or env.
type source struct {
	Value
	key, sep string
	name     string // in a map
}

// spelled returns the source of a value that has three keys.
func spelled(key string, text Secret, file, env string) source {
	return source{Value{text, file, env}, key, "_", ""}
}

// keys returns the keys that give the value.
func (s source) keys() (all []string) {
	if s.Text.text != nil {
		all = append(all, s.key)
	}
	if s.File != "" {
		all = append(all, s.key+s.sep+"file")
	}
	if s.Env != "" {
		all = append(all, s.key+s.sep+"env")
	}
	return all
}

// from returns the key that gives the value.
func (s source) from() string { return append(s.keys(), s.key)[0] }

// check refuses a value that is given twice.
func (s source) check() error {
	if keys := s.keys(); len(keys) > 1 {
		return &KeyError{keys[1], fmt.Errorf("%s is given too; expected only one of them", keys[0])}
	}
	return nil
}

// read returns the value as it is now. Its errors are *KeyError and name the file or variable, never the value.
func (s source) read(getenv func(string) string) (text string, err error) {
	switch {
	case s.File != "":
		var raw []byte
		raw, err = readSmall(s.File)
		text, err = trimNewline(string(raw)), cmp.Or(err, fmt.Errorf("%s is empty", s.File))
	case s.Env != "":
		text, err = trimNewline(getenv(s.Env)), fmt.Errorf("the environment variable %s is not set or empty", s.Env)
	default:
		text, err = s.Text.plain(), errors.New("is empty")
	}
	if text == "" {
		return "", &KeyError{s.from(), err}
	}
	return text, nil
}

// wrong returns an error about the value, at the key that gives it.
func (s source) wrong(err error) error {
	if s.File+s.Env != "" {
		err = fmt.Errorf("%s: %w", s.File+s.Env, err)
	}
	return &KeyError{s.from(), err}
}

// sources are values of one section of the settings, given or not.
type sources []source

// listed returns the sources of a list of the settings.
func listed(key string, values []Value) (all sources) {
	for i, v := range values {
		all = append(all, source{v, key + "." + strconv.Itoa(i), ".", ""})
	}
	return all
}

// named returns the sources of a map of the settings, sorted by name.
func named(key string, values map[string]Value) (all sources) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		all = append(all, source{values[name], key + "." + name, ".", name})
	}
	return all
}

// check refuses a value that is given twice.
func (all sources) check() error {
	var wrong KeyErrors
	for _, s := range all {
		wrong.add(s.check())
	}
	return wrong.err()
}

// files returns the files that hold the values. When one changes, there are new credentials.
func (all sources) files() (names []string) {
	for _, s := range all {
		names = append(names, filled(s.File)...)
	}
	return names
}

// filled returns the texts that are not empty.
func filled(texts ...string) []string {
	return slices.DeleteFunc(texts, func(s string) bool { return s == "" })
}

// trimNewline removes the newline that editors and echo leave at the end of a file.
func trimNewline(s string) string { return strings.TrimSuffix(strings.TrimSuffix(s, "\n"), "\r") }

const maxSmall = 1 << 20

// readSmall reads a text file of the settings, without a byte order mark. It refuses a file that is not regular,
// because reading a pipe would not end, and the UTF-16 that PowerShell's > writes.
func readSmall(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSmall+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxSmall {
		return nil, fmt.Errorf("%s is larger than 1 MiB", path)
	}
	if bytes.HasPrefix(text, []byte("\xff\xfe")) || bytes.HasPrefix(text, []byte("\xfe\xff")) {
		return nil, fmt.Errorf("%s is in UTF-16; expected UTF-8, which in PowerShell Set-Content -Encoding ascii writes",
			path)
	}
	return bytes.TrimPrefix(text, []byte("\ufeff")), nil
}
