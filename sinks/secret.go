package sinks

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
)

// hidden stands wherever a secret would be shown.
const hidden = "[secret]"

// Secret is a text that never shows itself, however it is printed, logged or encoded. It is kept behind a pointer for
// the sake of printers that reach into unexported fields and ask no method.
type Secret struct{ text *string }

// NewSecret makes a Secret of s.
func NewSecret(s string) Secret { return Secret{&s} }

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

// files is the file that the value stands in, if any.
func (v Value) files() []string {
	if v.File == "" {
		return nil
	}
	return []string{v.File}
}

// A source is where a value of the settings comes from each time it is used, with the names of its keys.
type source struct {
	Value
	key, fileKey, envKey string
}

// spelled returns the source of a value that has three keys.
func spelled(key string, text Secret, file, env string) source {
	return source{Value{text, file, env}, key, key + "_file", key + "_env"}
}

// nested returns the source of a value inside a list or map.
func nested(key string, v Value) source { return source{v, key, key + ".file", key + ".env"} }

// A namedSource is the source of a value in a map.
type namedSource struct {
	source
	name string
}

// namedSources returns the sources of a map of the settings, sorted by name.
func namedSources(key string, values map[string]Value) (all []namedSource) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		all = append(all, namedSource{nested(key+"."+name, values[name]), name})
	}
	return all
}

// check refuses a value that is given twice.
func (s source) check() error {
	switch {
	case s.File != "" && s.Text.text != nil:
		return &KeyError{s.fileKey, fmt.Errorf("%s is given too; expected only one of them", s.key)}
	case s.Env != "" && s.Text.text != nil:
		return &KeyError{s.envKey, fmt.Errorf("%s is given too; expected only one of them", s.key)}
	case s.Env != "" && s.File != "":
		return &KeyError{s.envKey, fmt.Errorf("%s is given too; expected only one of them", s.fileKey)}
	}
	return nil
}

// read returns the value as it is now. Its errors are *KeyError and name the file or variable, never the value.
func (s source) read(getenv func(string) string) (string, error) {
	switch {
	case s.File != "":
		text, err := readSecret(s.File)
		if err != nil {
			return "", &KeyError{s.fileKey, err}
		}
		return text, nil
	case s.Env != "":
		text := trimNewline(getenv(s.Env))
		if text == "" {
			return "", &KeyError{s.envKey, fmt.Errorf("the environment variable %s is not set or empty", s.Env)}
		}
		return text, nil
	case s.Text.text == nil || *s.Text.text == "":
		return "", &KeyError{s.key, errors.New("is empty")}
	}
	return *s.Text.text, nil
}

// sources are values of one section of the settings, given or not.
type sources []source

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
		names = append(names, s.Value.files()...)
	}
	return names
}

// from returns the key that gives the value.
func (s source) from() string {
	switch {
	case s.File != "":
		return s.fileKey
	case s.Env != "":
		return s.envKey
	}
	return s.key
}

// wrong returns an error about the value, at the key that gives it.
func (s source) wrong(err error) error {
	if s.File+s.Env != "" {
		err = fmt.Errorf("%s: %w", s.File+s.Env, err)
	}
	return &KeyError{s.from(), err}
}

// readSecret reads a secret's file.
func readSecret(path string) (string, error) {
	text, err := readSmall(path)
	if err != nil {
		return "", err
	}
	s := trimNewline(string(text))
	if s == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return s, nil
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
