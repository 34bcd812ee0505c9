// Package settings reads the settings file. It is strict: every key must be known and every value of its type, and an error
// says the file, line and column, what stands there and what was expected. A value is shown only if its key is known and is
// not that of a secret.
//
// A file becomes a document of nodes with their places (document.go), nodes become Go values (decode.go), and those become
// Settings with their sinks open (settings.go, sinks.go, rules.go). A sink's own settings stand beside the sink: Loader.Parse
// hands its section to the Open of its kind. The structs that are decoded into also make the JSON Schema (schema.go).
package settings

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/imds"
	"forewarn/cmd/forewarn/internal/wording"
	"forewarn/sinks"
)

// Settings are the settings file, checked, with its destinations built.
type Settings struct {
	Path  string // "" when there is no file and the defaults count
	Wrong error  // why they hold only placeKeys and defaults; nil when they are right
	Hash  string // of all but secrets; see document.hash

	IMDS struct {
		Endpoint   string        `yaml:"endpoint" default:"http://169.254.169.254" doc:"metadata service, or discover"`
		APIVersion string        `yaml:"api_version" default:"2020-07-01" doc:"API version to ask for first"`
		Interval   time.Duration `yaml:"interval" default:"1s" doc:"time between polls"`
		VMName     string        `yaml:"vm_name" doc:"name of this VM in Azure's events (default: asked from the endpoint)"`
		Discover   bool          // the file has endpoint: discover; Endpoint is the default, which is tried first
	} `yaml:"imds" doc:"the endpoint that is polled"`
	State    string         `yaml:"state" doc:"directory of the outbox (default: /var/lib/forewarn)"`
	Control  string         `yaml:"control" doc:"control socket (default: control.sock in state)"`
	Listen   string         `yaml:"listen" default:"127.0.0.1:8169" doc:"address of the page and metrics; \"\" is off"`
	Metrics  string         `yaml:"metrics" doc:"second address, with metrics and health only (default: none)"`
	Zone     string         `yaml:"timezone" default:"UTC" doc:"time zone in texts for people, beside UTC"`
	Source   string         `yaml:"cloudevents_source" doc:"source of CloudEvents about Azure (default: the VM's)"`
	Timezone *time.Location // shown beside UTC
	Rules    []bridge.Rule  // of approval
	Names    []string       // of the sinks as they are written, also where the sinks themselves are not asked for
	Routes   []bridge.Route // the sinks, in the file's order
	Notes    []string       // what an operator may not expect of them
	Written  []string       // secrets that stand in the file itself, such as hook.bearer
	// Incidents are the sinks whose destination keeps something open until it hears the end of an event.
	Incidents []string
}

// A Loader turns a settings file into settings. Its fields are all that it takes from the world around it.
type Loader struct {
	Kinds    map[string]sinks.Kind // nil leaves the sinks unread
	Host     sinks.Host
	Defaults Defaults
}

// Load reads the settings from the file at path. Without a path it looks in the default place, and takes the built-in
// settings if nothing is there; a file that was named must exist.
func (l Loader) Load(path string) (*Settings, error) {
	named := path != ""
	path, data, err := l.read(path)
	switch missing := errors.Is(err, fs.ErrNotExist); {
	case missing && !named:
		return l.Parse("", []byte(Builtin))
	case missing:
		return nil, fmt.Errorf("%w; create it, or leave out --config to run with the defaults", err)
	case err != nil:
		return nil, err
	}
	return l.Parse(path, data)
}

// Reload is load for a program that runs: the built-in settings do not take the place of a file that is gone.
func (l Loader) Reload(path string) (*Settings, error) {
	path, data, err := l.read(path)
	if err != nil {
		return nil, err
	}
	return l.Parse(path, data)
}

// read returns the file at path, without one that in the default place, and its path.
func (l Loader) read(path string) (string, []byte, error) {
	path = cmp.Or(path, l.Defaults.Settings)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w; let the user that forewarn runs as read it, or %s", err, wording.TryElevated)
	}
	if err != nil {
		return path, nil, fmt.Errorf("settings: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if info, _ := f.Stat(); err != nil && info != nil && info.IsDir() {
		return path, nil, fmt.Errorf("settings: %s is a directory; expected the file in it, such as %s", path, filepath.Join(path, "forewarn.yaml"))
	} else if err != nil {
		return path, nil, fmt.Errorf("settings: %w", err)
	}
	return path, data, nil
}

// Parse checks the settings and builds the sinks. The path only names the file in errors. Nothing is read but what the
// kinds read when they open, the files of secrets. An error about the file's text is Problems: all that is wrong.
func (l Loader) Parse(path string, data []byte) (*Settings, error) {
	doc, err := parseDocument(path, data)
	if err != nil {
		return nil, err
	}
	s := &Settings{Path: path}
	s.IMDS.Endpoint = "http://169.254.169.254"
	s.IMDS.APIVersion = "2020-07-01"
	s.IMDS.Interval = time.Second
	s.State = l.Defaults.State
	s.Listen = "127.0.0.1:8169"
	s.Zone = "UTC"
	doc.report(doc.decode(doc.root, s, "", "sinks", "approve"))
	if doc.root.kind != aTable {
		return nil, doc.failed()
	}
	if s.IMDS.Endpoint == "discover" {
		s.IMDS.Discover, s.IMDS.Endpoint = true, imds.DefaultEndpoint
		s.Notes = append(s.Notes, "imds.endpoint: discover: run looks for the endpoint, at "+imds.DefaultEndpoint+" first; forewarn discover does so now")
	}
	s.IMDS.Endpoint = strings.TrimRight(s.IMDS.Endpoint, "/")
	s.Timezone, err = time.LoadLocation(s.Zone)
	for _, check := range []struct {
		key  string
		ok   bool
		want string
	}{
		{"imds.endpoint", IsEndpoint(s.IMDS.Endpoint), "http or https, a host and perhaps a path, such as http://169.254.169.254, or discover"},
		{"imds.api_version", apiVersion.MatchString(s.IMDS.APIVersion), "a date such as 2020-07-01"},
		{"imds.interval", s.IMDS.Interval >= 100*time.Millisecond, "100ms or more"},
		{"state", s.State != "", "a directory such as /var/lib/forewarn"},
		{"listen", s.Listen == "" || isListen(s.Listen), `host:port such as 127.0.0.1:8169, or "" to serve no page`},
		{"metrics", s.Metrics == "" || isListen(s.Metrics), `host:port such as 0.0.0.0:9169, or "" to serve them with the page only`},
		{"timezone", err == nil && s.Zone != "" && s.Zone != "Local", "an IANA name such as UTC or Europe/Berlin"},
		{"cloudevents_source", s.Source == "" || isURI(s.Source), "an absolute URI without spaces, such as " +
			"https://management.azure.com/subscriptions/... or urn:example:web"},
	} {
		if !check.ok {
			e, _ := doc.root.find(check.key)
			doc.report(doc.refuse(e.value, check.key, check.want))
		}
	}
	s.Names = sinkNames(doc)
	if l.Kinds == nil {
		return s, doc.failed() // only the rest was asked for
	}
	s.Routes = l.routes(doc, s)
	s.Rules = l.rules(doc, s)
	if err := doc.failed(); err != nil {
		return s, err
	}
	s.Hash = doc.hash()
	return s, nil
}

var (
	sinkName   = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
	apiVersion = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}(-preview)?$`)
)

func IsEndpoint(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" &&
		u.User == nil && u.RawQuery == "" && !u.ForceQuery && u.Fragment == ""
}

func isListen(s string) bool {
	host, port, err := net.SplitHostPort(s)
	_, portErr := strconv.ParseUint(port, 10, 16)
	return err == nil && portErr == nil && !strings.ContainsAny(host, "/@ ")
}

func isURI(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.IsAbs() && len(s) > len(u.Scheme+"://") &&
		!strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}
