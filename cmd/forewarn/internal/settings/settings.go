// Package settings reads the settings file. It is strict: it refuses unknown keys and values of the wrong type. An
// error names the file, line and column, the value and what was expected. It shows a value only if its key is known
// and not secret.
//
// A file becomes a document of nodes with their positions (document.go). Nodes become Go values (decode.go), and those
// become Settings with open sinks (settings.go, sinks.go, rules.go). The settings of a kind of sink are defined beside
// the sink: Loader.Parse hands their section to the Open of that kind. The JSON Schema is made from the same structs
// (schema.go). When the file is broken, Salvage still reads where the running forewarn is (salvage.go).
package settings

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/cmd/forewarn/internal/wording"
	"forewarn/sinks"
)

// Settings is a checked settings file, with its sinks open.
type Settings struct {
	Path   string // "" for the built-in defaults
	Broken error  // set by Salvage: what is wrong with the file; nil otherwise
	Hash   string // of everything but secrets; see hash

	IMDS struct {
		Endpoint   string        `yaml:"endpoint" default:"http://169.254.169.254" form:"endpoint" doc:"address of the metadata service"`
		APIVersion string        `yaml:"api_version" default:"2020-07-01" form:"date" doc:"API version to ask for first"`
		Interval   time.Duration `yaml:"interval" default:"1s" min:"100ms" max:"5s" doc:"time between polls, 100ms to 5s"`
		VMName     string        `yaml:"vm_name" doc:"name of this VM in Azure's events (default: from instance metadata)"`
	} `yaml:"imds" restart:"" relay:"a relay polls nothing; expected either imds or nats" doc:"the endpoint that is polled"`
	Relay    *RelaySettings `yaml:"nats" restart:"" doc:"of a relay, in place of imds: the servers and the stream that it reads"`
	State    sinks.Path     `yaml:"state" restart:"" form:"directory" doc:"directory of the outbox, which holds what is pending (default: /var/lib/forewarn)"`
	Control  sinks.Path     `yaml:"control" restart:"" doc:"control socket, on Windows a named pipe (default: control.sock in state, of a relay relay.sock)"`
	Listen   string         `yaml:"listen" restart:"" default:"127.0.0.1:8169" form:"address" doc:"address of the page and metrics; \"\" is off"`
	Metrics  string         `yaml:"metrics" restart:"" form:"address" doc:"second address, for metrics and health checks only (default: none)"`
	Zone     string         `yaml:"timezone" default:"UTC" form:"zone" doc:"time zone in texts for people, beside UTC"`
	Identity struct {
		ClientID string `yaml:"client_id" form:"client id" doc:"which managed identity of the VM reads secrets from Key Vault, if it has several"`
	} `yaml:"azure_identity" doc:"for secrets in Key Vault"`
	Source   string       `yaml:"cloudevents_source" restart:"" form:"uri" relay:"a relay makes no CloudEvents about Azure; expected this key in the settings of the bridges" doc:"source of CloudEvents about Azure (default: the VM's)"`
	Include  []sinks.Path `yaml:"include" doc:"more files with sinks and approve: patterns such as conf.d/*.yaml"`
	Services []sinks.Path `yaml:"services" doc:"files with presets of your own for sinks, such as services/ours.yaml"`

	Timezone *time.Location // Zone, loaded
	Rules    []bridge.Rule  // of approve
	Names    []string       // names of the sinks, also when Loader.Kinds is nil
	Routes   []bridge.Route // the sinks, in the order of the file
	Notes    []string       // warnings about valid settings, for forewarn check
	Files    []File         // all that were read, the settings file first; none for the built-in settings
	// Incidents names the sinks whose destination keeps an incident open until it hears the end of the event.
	Incidents []string
	// Keep reads the secrets in Key Vault that are not in memory or older than an hour; see sinks.Opened.
	Keep []func(context.Context) error

	secrets func() *secretValues // of the files; nil for the built-in settings
}

// A Loader loads settings. Its fields are all that settings depend on besides the file.
type Loader struct {
	Kinds    map[string]sinks.Kind // nil to leave the sinks and rules out
	Host     sinks.Host
	Defaults Defaults
}

// Load loads the settings file at path, which must exist. With path "" it loads the default file, or the built-in
// settings if there is none.
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

// Reload is Load for a running program: a missing default file is an error, and does not mean the built-in settings.
func (l Loader) Reload(path string) (*Settings, error) {
	path, data, err := l.read(path)
	if err != nil {
		return nil, err
	}
	return l.Parse(path, data)
}

// read returns the path and content of the settings file; path "" means the default file.
func (l Loader) read(path string) (string, []byte, error) {
	path = cmp.Or(path, l.Defaults.Settings)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w; give the user that forewarn runs as read access, or %s", err, wording.TryElevated)
	}
	if err != nil {
		return path, nil, fmt.Errorf("settings: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if info, _ := f.Stat(); err != nil && info != nil && info.IsDir() {
		return path, nil, fmt.Errorf("settings: %s is a directory; expected a file such as %s",
			path, filepath.Join(path, "forewarn.yaml"))
	} else if err != nil {
		return path, nil, fmt.Errorf("settings: %w", err)
	}
	return path, data, nil
}

// Parse checks the settings in data and opens the sinks. The path is used in errors, and relative paths in data are
// relative to its directory. Parse reads no other files than the kinds do when they open a sink: secrets, certificates
// and templates. An error about the text of the file is
// of type Problems and holds everything that is wrong with it.
func (l Loader) Parse(path string, data []byte) (*Settings, error) {
	doc, err := parseDocument(path, data)
	if err != nil {
		return nil, err
	}
	if path != "" {
		doc.dir = directoryOf(path)
	}
	s := &Settings{Path: path}
	s.State = sinks.Path(l.Defaults.State)
	setDefaults(reflect.ValueOf(s).Elem())
	doc.report(doc.decode(doc.root, s, "", "sinks", "approve"))
	if doc.root.kind != aTable {
		return nil, doc.err()
	}
	s.IMDS.Endpoint = strings.TrimRight(s.IMDS.Endpoint, "/")
	s.Timezone, err = time.LoadLocation(s.Zone)
	if err != nil {
		s.Timezone = time.UTC // decode has refused it
	}
	if s.Metrics != "" && s.Metrics == s.Listen && !strings.HasSuffix(s.Listen, ":0") {
		s.Notes = append(s.Notes, "metrics: the address of listen, which has them anyway; leave metrics out, or one of the "+
			"two can't listen")
	}
	s.Notes = append(s.Notes, exposureNotes(s)...)
	l.relay(doc, s)
	docs := append([]*document{doc}, l.include(doc, s.Include)...)
	s.Names = sinkNames(docs)
	if l.Kinds == nil {
		return s, l.errorsOf(docs)
	}
	kinds, presets := l.services(doc, s.Services)
	l.Kinds = kinds
	s.Routes = l.routes(docs, s)
	s.Rules = l.rules(docs, s)
	docs = append(docs, presets...)
	if err := l.errorsOf(docs); err != nil {
		return s, err
	}
	s.Hash = hash(docs)
	s.secrets = func() *secretValues { return l.secretsOf(docs) }
	for _, doc := range docs {
		if doc.path != "" {
			s.Files = append(s.Files, File{doc.path, doc.inline})
		}
	}
	return s, nil
}

// keep adds to Keep what is not nil.
func (s *Settings) keep(read func(context.Context) error) {
	if read != nil {
		s.Keep = append(s.Keep, read)
	}
}

// directoryOf returns the absolute path of the directory in which a file stands, or, without a working directory, the
// relative one. A link to the settings file stands where its name says, as links of Kubernetes do.
func directoryOf(path string) string {
	dir := filepath.Dir(path)
	if full, err := filepath.Abs(dir); err == nil {
		return full
	}
	return dir
}

var (
	sinkName   = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
	apiVersion = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}(-preview)?$`)
)

// IsEndpoint reports whether s is a URL that imds.endpoint accepts: http or https with a host, and perhaps a path, but
// without the /metadata/... of a request.
func IsEndpoint(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" &&
		u.User == nil && u.RawQuery == "" && !u.ForceQuery && u.Fragment == "" && !strings.Contains(u.Path+"/", "/metadata/")
}

func isListen(s string) bool {
	host, port, err := net.SplitHostPort(s)
	_, portErr := strconv.ParseUint(port, 10, 16)
	return err == nil && portErr == nil && !strings.ContainsAny(host, "/@ ")
}

// exposureNotes names the addresses on which whoever reaches this machine may read, and what.
func exposureNotes(s *Settings) (notes []string) {
	for _, on := range []struct{ key, address, shows, remedy string }{
		{"listen", s.Listen, "the page, with VMs, events, sinks and their errors,",
			"or put an authenticating proxy in front of 127.0.0.1:8169"},
		{"metrics", s.Metrics, "the metrics, which name VMs and sinks,",
			"or let a firewall admit only what collects them"},
	} {
		if isExposed(on.address) {
			notes = append(notes, fmt.Sprintf("%s: %s shows %s to whoever reaches this machine; "+
				"bind it to a private address such as 10.0.0.4, %s", on.key, on.address, on.shows, on.remedy))
		}
	}
	return notes
}

// isExposed reports whether a listener on an address can be reached over every network of this machine, or over a public
// one.
func isExposed(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(strings.Split(host, "%")[0])
	switch {
	case host == "":
		return true
	case ip == nil: // a name, which stands for an address that somebody chose
		return false
	}
	return !ip.IsLoopback() && !ip.IsPrivate() && !ip.IsLinkLocalUnicast()
}

func isURI(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.IsAbs() && len(s) > len(u.Scheme+"://") &&
		!strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}
