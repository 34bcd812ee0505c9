package sinks

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"forewarn/templates"
)

// hidden is printed in place of a secret.
const hidden = templates.Hidden

// A Secret is a text that is never revealed by printing, logging or encoding it: all of them show [secret]. The zero
// value holds no text, and shows the same. The text is behind a pointer because some printers read unexported fields
// without calling any method.
type Secret struct{ text *string }

// NewSecret returns a Secret that holds s.
func NewSecret(s string) Secret { return Secret{&s} }

// plain returns the text, or "" if there is none.
func (s Secret) plain() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// UnmarshalText stores the text unchanged.
func (s *Secret) UnmarshalText(text []byte) error {
	*s = NewSecret(string(text))
	return nil
}

// Format writes [secret] for every verb.
func (s Secret) Format(w fmt.State, _ rune) { io.WriteString(w, hidden) }

// String returns [secret].
func (s Secret) String() string { return hidden }

// MarshalText returns [secret]. JSON and YAML use it too.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// LogValue returns [secret].
func (s Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// A Value is a setting that may be a secret: the text itself, or the file, the environment variable or the secret in
// Azure Key Vault that holds it. Inside lists and maps it is written as a text, {file: PATH}, {env: NAME} or {vault: URL}.
// Elsewhere each of the four has a key of its own, such as url, url_file, url_env and url_vault.
type Value struct {
	Text  Secret
	File  Path
	Env   string
	Vault string
}

// UnmarshalYAML reads a Value inside a list or map. It fails if the value has none of the four forms.
func (v *Value) UnmarshalYAML(unmarshal func(any) error) error {
	if unmarshal(&v.Text) == nil && v.Text.text != nil {
		return nil
	}
	var from struct {
		File  Path   `yaml:"file"`
		Env   string `yaml:"env"`
		Vault string `yaml:"vault"`
	}
	if err := unmarshal(&from); err != nil {
		return err
	}
	v.File, v.Env, v.Vault = from.File, from.Env, from.Vault
	if !v.given() {
		return errors.New("expected a text, {file: PATH}, {env: NAME} or {vault: URL}")
	}
	return nil
}

// given reports whether the settings have the value, in any of its forms.
func (v Value) given() bool {
	return v.Text.text != nil || v.File != "" || v.Env != "" || v.Vault != ""
}

// Current returns the value, and "" if it can't be read. Of a variable that isn't set it is the name, which may be a secret
// in the wrong place.
func (v Value) Current(h Host) string {
	text, err := source{Value: v}.read(h)
	if err != nil && v.File == "" {
		return v.Env
	}
	return text
}

// A source is a Value and its place in the settings, for errors about it. The value is read each time it is used. The
// key of the text is key; those of the others are key and sep with file, env or vault after it.
type source struct {
	Value
	key, sep string
	name     string // its name in a map, else ""
	open     bool   // it is no secret, wherever it comes from
}

// keyedSource returns the source of a value that has a key for each of its forms.
func keyedSource(key string, text Secret, file Path, env, vault string) source {
	return source{Value: Value{text, file, env, vault}, key: key, sep: "_"}
}

// keys returns the keys under which the settings have the value: none, one, or wrongly several.
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
	if s.Vault != "" {
		all = append(all, s.key+s.sep+"vault")
	}
	return all
}

// from returns the key under which the settings have the value, and that of its text if they have none.
func (s source) from() string { return append(s.keys(), s.key)[0] }

// check returns a *KeyError if the settings have the value in two forms, or what can't be a variable's name or the URL of
// a secret in place of one. That may be the secret itself, so it is not shown.
func (s source) check() error {
	keys := s.keys()
	if len(keys) > 1 {
		return &KeyError{keys[1], says("%s is given too; expected only one of them", keys[0])}
	}
	if s.Vault != "" {
		if err := checkVaultURL(s.Vault); err != nil {
			return &KeyError{s.from(), err}
		}
	}
	if s.Env == "" || isVariable(s.Env) {
		return nil
	}
	remedy := "name the file in " + s.key + s.sep + "file"
	if s.sep == "." { // in a list or map, whose names may be secret too
		remedy = "write {file: PATH}"
	}
	return &KeyError{s.from(), says("expected the name of an environment variable, of letters, digits and "+
		"underscores; a value itself belongs into a file: %s", Own(remedy))}
}

// read returns the current value, without a newline at its end unless it stands in the settings. An empty value is
// an error. Errors are *KeyError, and never show the value. They name its file, but no variable that isn't set: its
// name may be a secret in the wrong place. What is in Key Vault is taken from memory; until load has read it, the error
// is errUnread.
func (s source) read(h Host) (text string, err error) {
	switch {
	case s.Vault != "":
		text, known := h.Vault.value(h, s.Vault)
		if !known {
			return "", &KeyError{s.from(), errUnread}
		}
		return text, nil
	case s.File != "":
		var raw []byte
		raw, err = readText(s.File)
		text, err = trimNewline(string(raw)), cmp.Or(err, fmt.Errorf("%s is empty", s.File))
	case s.Env != "":
		text, err = trimNewline(h.Getenv(s.Env)), errUnset
	default:
		text, err = s.Text.plain(), says("is empty")
	}
	if text == "" {
		return "", &KeyError{s.from(), err}
	}
	return text, nil
}

var errUnset = says("names an environment variable that is not set, or empty; set it where forewarn is started")

// wrong returns err as a *KeyError at the key of the value. It names the file, variable or secret that holds it.
func (s source) wrong(err error) error {
	if s.File != "" || s.Env != "" || s.Vault != "" {
		err = says("%s: %w", string(s.File)+s.Env+s.Vault, err)
	}
	return &KeyError{s.from(), err}
}

// place returns for people where the value comes from: the file, the variable, the secret in Key Vault, or the key of the
// settings file. kind is that of the sink, whose settings have the key.
func (s source) place(kind string) string {
	switch {
	case s.File != "":
		return string(s.File)
	case s.Env != "":
		return "the environment variable " + s.Env
	case s.Vault != "":
		return "the secret " + s.Vault
	}
	return fmt.Sprintf("the settings file (%s.%s)", kind, s.key)
}

// sources are the sources of several values, some of which the settings may not have.
type sources []source

// listSources returns the sources of a list in the settings.
func listSources(key string, values []Value) (all sources) {
	for i, v := range values {
		all = append(all, source{Value: v, key: key + "." + strconv.Itoa(i), sep: "."})
	}
	return all
}

// mapSources returns the sources of a map in the settings, sorted by name.
func mapSources(key string, values map[string]Value) (all sources) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		all = append(all, source{Value: values[name], key: key + "." + name, sep: ".", name: name})
	}
	return all
}

// check returns a *KeyError for each value that the settings have in two forms.
func (all sources) check() error {
	var wrong KeyErrors
	for _, s := range all {
		wrong.add(s.check())
	}
	return wrong.err()
}

// files returns the files that hold values. When one of them changes, there are new credentials.
func (all sources) files() (names []string) {
	for _, s := range all {
		names = append(names, nonEmpty(s.File)...)
	}
	return names
}

// nonEmpty returns the paths that are not empty.
func nonEmpty(paths ...Path) (given []string) {
	for _, p := range paths {
		if p != "" {
			given = append(given, string(p))
		}
	}
	return given
}

// trimNewline removes the newline that editors and echo leave at the end of a file.
func trimNewline(s string) string { return strings.TrimSuffix(strings.TrimSuffix(s, "\n"), "\r") }

// unreadable returns the error of a file of the settings that can't be opened, with the remedy.
func unreadable(path string, err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		err = p.Err
	}
	remedy := ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
		remedy = "; create it, or correct the path"
	case errors.Is(err, fs.ErrPermission):
		remedy = "; let the user of forewarn read it"
	}
	return fmt.Errorf("%s: %w%s", path, err, remedy)
}

const maxTextFile = 1 << 20 // bytes

// readText reads a text file that the settings name, without its byte order mark. It refuses more than 1 MiB, a file
// that is not regular, because reading a pipe may never end, and the UTF-16 that PowerShell's > writes.
func readText(at Path) ([]byte, error) {
	path := string(at)
	info, err := os.Stat(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxTextFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxTextFile {
		return nil, fmt.Errorf("%s is larger than 1 MiB", path)
	}
	if bytes.HasPrefix(text, []byte("\xff\xfe")) || bytes.HasPrefix(text, []byte("\xfe\xff")) {
		return nil, fmt.Errorf("%s is in UTF-16; expected UTF-8, which in PowerShell Set-Content -Encoding ascii writes",
			path)
	}
	return bytes.TrimPrefix(text, []byte("\ufeff")), nil
}
