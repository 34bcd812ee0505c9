// Package sinks implements the destinations, each in a file of its own, and lists them in the table Kinds. A sink makes
// one attempt per call, as delivery.Sink requires; retries, their times and their order are the bridge's.
package sinks

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"forewarn/bridge/delivery"
)

// A Kind is a kind of destination.
type Kind struct {
	// Open makes a sink from its section of the settings, and checks everything that can be checked without contacting
	// the destination. decode must fill the settings struct it is given, and fail on unknown keys and on values that the
	// tags of its fields don't allow. Errors about keys are *KeyError, or KeyErrors if there are several.
	Open    func(decode func(any) error, h Host) (Opened, error)
	Title   string         // its name for people; "" for its key
	Terms   delivery.Terms // unless the settings have others
	For     Audience
	Purpose string   // one of Purposes
	About   string   // what it does, in a few words
	Example string   // an entry of sinks that works, in three lines or so
	Also    []string // what it is called elsewhere
	Service bool     // it is a preset of webhook
	// Fields are the fields that only the templates of this kind have, by name.
	Fields map[string]Field
}

// An Audience is who receives what a kind delivers. It decides what is delivered by default besides Azure's changes, and
// whether a mute of no sink by name holds it back: it does for people.
type Audience int

const (
	Machines Audience = iota // nothing else
	People                   // trouble of the bridge, and reminders before an event
	Actors                   // nothing else; each delivery starts something
	Either                   // nothing else; people if bridge: trouble says so, else machines
)

// A Field is a field that only the templates of one kind have.
type Field struct {
	Doc  string
	Zero any // its empty value
}

// addFields adds the fields in own to all, with their empty values.
func addFields(all map[string]any, own map[string]Field) {
	for name, f := range own {
		all[name] = f.Zero
	}
}

// Opened is the result of Kind.Open: a sink, and what the program needs to know about its settings.
type Opened struct {
	Sink    delivery.Sink // if it is an io.Closer, the program closes it after the last delivery
	Secrets []string      // paths of files that hold credentials or certificates; a change means new ones
	// Keep reads the secrets in Key Vault that are not in memory, older than an hour or expired, and returns why some
	// that are not in memory can't be read. It is nil if the settings name none.
	Keep     func(context.Context) error
	Parallel int           // replaces that of the kind's terms, unless 0
	Repeat   time.Duration // of the terms
	Incident bool          // the destination keeps an incident open until it is told the end of an event
	Notes    []string      // consequences of the settings that an operator may not expect; check prints them
}

// note adds a note, unless it is empty or does not apply.
func (o *Opened) note(holds bool, text string) {
	if holds && text != "" {
		o.Notes = append(o.Notes, text)
	}
}

// Kinds returns all kinds of destination by their key in the settings file: those with a file of their own here, and the
// services. The map must not be changed.
var Kinds = sync.OnceValue(func() map[string]Kind {
	all := maps.Clone(ownKinds)
	for _, name := range serviceNames() {
		all[name] = serviceKind(name)
	}
	return all
})

// UsualNames returns the keys of kinds by what they are called elsewhere.
var UsualNames = sync.OnceValue(func() map[string]string {
	names := make(map[string]string)
	add := func(kind string, also []string) {
		for _, name := range also {
			names[name] = kind
		}
	}
	for kind, k := range ownKinds {
		add(kind, k.Also)
	}
	for _, s := range Services() {
		add(s.Name, s.Also)
	}
	return names
})

// ownKinds are the kinds with a file of their own here.
var ownKinds = map[string]Kind{
	"email": {
		Open: opens(emailSettings{}, openEmail), Terms: emailTerms, For: People,
		Purpose: "people", About: "a mail for each change",
		Example: "- name: ops-mail\n  email:\n    host: smtp.example.com\n    from: azure@example.com\n    to: ops@example.com\n" +
			"    username: azure\n    password_file: /etc/forewarn/smtp-password\n",
		Also: []string{"smtp", "mail"},
	},
	"exec": {
		Open: opens(execDefaults, openExec), Terms: execTerms, For: Actors,
		Purpose: "automation", About: "a run of a command on this VM",
		Example: "- name: drain\n  only: {types: [Reboot, Redeploy]}\n  exec: {command: /usr/local/sbin/drain}\n",
		Also:    []string{"command", "script"},
	},
	"file": {
		Open: opens(fileSettings{}, openFile), Terms: fileTerms,
		Purpose: "logs", About: "a line of JSON in a file, or on standard output",
		Example: "- name: audit\n  only: {vms: all}\n  file: {path: /var/log/forewarn/audit.jsonl}\n",
		Also:    []string{"stdout"},
	},
	"nats": {
		Open: opens(natsSettings{}, openNATS), Title: "NATS", Terms: natsTerms, Fields: natsFields,
		Purpose: "logs", About: "a message to a stream of NATS JetStream, which keeps each change once",
		Example: "- name: central\n  only: {vms: all}\n  nats: {url: tls://nats.example.com, creds_file: /etc/forewarn/forewarn-creds}\n",
		Also:    []string{"jetstream"},
	},
	"slack": {
		Open: opens(slackSettings{}, openSlack), Title: "Slack", Terms: slackTerms, For: People, Fields: slackFields,
		Purpose: "people", About: "a message in a channel, kept up to date, with a thread",
		Example: "- name: ops-chat\n  slack: {token_file: /etc/forewarn/slack-token, channel: \"#ops\"}\n",
	},
	"syslog": {
		Open: opens(syslogSettings{}, openSyslog), Terms: syslogTerms,
		Purpose: "logs", About: "a message to a syslog server",
		Example: "- name: siem\n  only: {vms: all}\n  syslog: {url: tls://siem.example.com}\n",
		Also:    []string{"rsyslog"},
	},
	"webhook": {
		Open: opens(webhookSettings{}, openWebhook), Terms: webhookTerms, For: Either,
		Purpose: "own", About: "the CloudEvent, or a body of your own, to any URL",
		Example: "- name: hook\n  webhook: {url: https://hooks.example.com/azure, bearer_file: /etc/forewarn/hook-token}\n",
		Also:    []string{"http", "https", "logicapp"},
	},
}

// opens returns the Open function of a Kind whose settings are an S. open gets the section of the settings file, with
// defaults for the keys that it leaves out.
func opens[S any](defaults S, open func(s S, h Host) (Opened, error)) func(func(any) error, Host) (Opened, error) {
	return func(decode func(any) error, h Host) (Opened, error) {
		s := defaults
		if err := decode(&s); err != nil {
			return Opened{}, err
		}
		return open(s, h)
	}
}

// Host is what the program provides to a sink. Sinks get the environment, the standard streams and the network from it
// alone.
type Host struct {
	Name     string // of the sink that is opened, in the settings
	Getenv   func(string) string
	Stdout   io.Writer
	Proxy    func(*http.Request) (*url.URL, error) // the proxy that the environment names, as http.Transport.Proxy
	Log      *slog.Logger
	Hostname string         // of this machine, as os.Hostname returns it
	Agent    string         // the User-Agent header, such as forewarn/1.2.0
	Zone     *time.Location // for times in texts for people; nil means UTC
	NoEnd    bool           // the sink is not told when Azure closes an event, so no text promises that
	NoStart  bool           // the sink may not be told of an event before it begins
	ForAll   bool           // the sink is told of an event for all its VMs, whichever of them saw it
	Lead     time.Duration  // how long before an event begins the sink is told of it; 0 for at once
	Endpoint string         // URL of the metadata service, without a final slash
	ClientID string         // of the managed identity that reads secrets from Key Vault; "" if the VM has only one

	KindOf     map[string]string // the kinds of all sinks in the settings, for people, by their names
	Console    Console           // shows CloudEvents to a person, in place of lines on Stdout; nil for lines
	Dial       Dialer            // nil means the network
	SlackTurns *SlackTurns       // shared by all sinks that may post to the same channel; nil means one of the sink's own
	Known      *KnownSecrets     // shared by all sinks; nil means that a sink hides only its own secrets
	Vault      *Vault            // shared by all sinks; nil means that no secret is read from Key Vault
}

// A Console returns a sink that shows CloudEvents to a person, with times in a zone; nil means UTC.
type Console func(zone *time.Location) (delivery.Sink, error)

// A Dialer connects to an address, as net.Dialer.DialContext does.
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

// dialer returns Dial or, if that is nil, a Dialer for the network with a timeout of limit; 0 means no timeout.
func (h Host) dialer(limit time.Duration) Dialer {
	if h.Dial != nil {
		return h.Dial
	}
	return (&net.Dialer{Timeout: limit}).DialContext
}

// redactor returns a redactor for the texts of one attempt.
func (h Host) redactor() *redactor { return &redactor{known: h.Known, sink: h.Name} }

// A KeyError is the error about one key of a sink's settings. Key is its path below the kind, joined by dots, such as
// tls.ca_file. Items of lists count from 0, as in signing_secrets.0. Neither Key nor Err holds a secret.
type KeyError struct {
	Key string
	Err error
}

func (e *KeyError) Error() string { return e.Key + ": " + e.Err.Error() }
func (e *KeyError) Unwrap() error { return e.Err }

// KeyErrors are all the errors that were found in a sink's settings and in the files they name. Most are *KeyError.
type KeyErrors []error

func (e KeyErrors) Error() string {
	var texts []string
	for _, one := range e {
		texts = append(texts, one.Error())
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the errors, so that errors.Is and errors.As look at each.
func (e KeyErrors) Unwrap() []error { return e }

// add adds errors, and the parts of those that are KeyErrors. It ignores nil.
func (e *KeyErrors) add(errs ...error) {
	for _, err := range errs {
		if all, ok := err.(KeyErrors); ok {
			*e = append(*e, all...)
		} else if err != nil {
			*e = append(*e, err)
		}
	}
}

// when adds an error about a key if wrong is true.
func (e *KeyErrors) when(wrong bool, key, format string, args ...any) {
	if wrong {
		e.add(&KeyError{key, says(format, args...)})
	}
}

// err returns nil if there are no errors, the error itself if there is one, else e.
func (e KeyErrors) err() error {
	if len(e) > 1 {
		return e
	}
	return append(e, nil)[0]
}

// peopleGroup is Terms.DigestAbove of sinks for people: it combines the messages of a wave of events.
const peopleGroup = 5

const week = 7 * 24 * time.Hour
