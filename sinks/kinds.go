// Package sinks holds the destinations: one file each, and the table that names them. A sink makes single attempts as
// delivery.Sink asks; whether, when and how often is the bridge's business.
package sinks

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"forewarn/bridge/delivery"
)

// A Kind is a kind of destination: how to open one, and the terms it comes with.
type Kind struct {
	// Open builds a sink from its section of the settings and checks whatever can be checked without touching the
	// destination. decode fills a settings struct strictly. An error about one key is a *KeyError, several are KeyErrors.
	Open  func(decode func(any) error, h Host) (Opened, error)
	Terms delivery.Terms
	For   Audience
	// Fields are the names that the templates of this kind see beside those that all see.
	Fields map[string]Field
}

// An Audience is who reads what a kind delivers. It decides what they get beside Azure's changes.
type Audience int

const (
	Machines Audience = iota // nothing else
	People                   // trouble of the bridge, and reminders before an event
	Actors                   // nothing else; a delivery runs something
)

// A Field is a name that only the templates of one kind can use.
type Field struct {
	Doc  string
	Zero any // its empty value
}

// addFields adds the empty fields of a kind to those of all kinds.
func addFields(all map[string]any, own map[string]Field) {
	for name, f := range own {
		all[name] = f.Zero
	}
}

// Opened is a sink and what the program must know of its settings.
type Opened struct {
	Sink     delivery.Sink // closed when nothing more will be delivered to it, if it is an io.Closer
	Secrets  []string      // files whose change means new credentials
	Parallel int           // instead of that of the kind's terms, unless 0
	Incident bool          // the destination keeps something open until it hears the end of an event
	Notes    []string      // what an operator may not expect of these settings; check prints them
}

func (o *Opened) note(holds bool, text string) {
	if holds && text != "" {
		o.Notes = append(o.Notes, text)
	}
}

// Kinds are all kinds of destination by their key in the settings file.
var Kinds = map[string]Kind{
	"email":   {Open: opens(emailSettings{}, openEmail), Terms: emailTerms, For: People},
	"exec":    {Open: opens(execDefaults, openExec), Terms: execTerms, For: Actors},
	"file":    {Open: opens(fileSettings{}, openFile), Terms: fileTerms},
	"nats":    {Open: opens(natsSettings{}, openNATS), Terms: natsTerms, Fields: natsFields},
	"slack":   {Open: opens(slackSettings{}, openSlack), Terms: slackTerms, For: People, Fields: slackFields},
	"syslog":  {Open: opens(syslogSettings{}, openSyslog), Terms: syslogTerms},
	"webhook": {Open: opens(webhookSettings{}, openWebhook), Terms: webhookTerms, Fields: webhookFields},
}

// opens makes a Kind's Open of open, which gets the settings: the section's, and the defaults for what it leaves out.
func opens[S any](defaults S, open func(s S, h Host) (Opened, error)) func(func(any) error, Host) (Opened, error) {
	return func(decode func(any) error, h Host) (Opened, error) {
		s := defaults
		if err := decode(&s); err != nil {
			return Opened{}, err
		}
		return open(s, h)
	}
}

// Host is what the program gives its sinks, so that they read no environment and write to no stream of the program.
type Host struct {
	Name     string // of the sink that is opened
	Getenv   func(string) string
	Stdout   io.Writer
	Proxy    func(*http.Request) (*url.URL, error) // the environment's proxy
	Log      *slog.Logger
	Hostname string         // of this machine, as it calls itself
	Agent    string         // User-Agent, such as forewarn/1.2.0
	Zone     *time.Location // of the texts for people; nil is UTC
	Endpoint string         // of the metadata service, without a slash at its end

	Dial       Dialer      // nil is the network
	SlackTurns *SlackTurns // of all sinks that may share a channel; nil is the sink's own
}

// A Dialer connects to an address, as net.Dialer.DialContext does.
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

// dialer returns Dial, or one for the network that connects within limit; 0 sets none.
func (h Host) dialer(limit time.Duration) Dialer {
	if h.Dial != nil {
		return h.Dial
	}
	return (&net.Dialer{Timeout: limit}).DialContext
}

// KeyError says which key of a sink's settings is wrong. Key is dotted below the kind, such as tls.ca_file; the items
// of lists count from 0, as in signing_secrets.0.
type KeyError struct {
	Key string
	Err error
}

func (e *KeyError) Error() string { return e.Key + ": " + e.Err.Error() }
func (e *KeyError) Unwrap() error { return e.Err }

// KeyErrors are all the errors in a sink's settings and in what they name.
type KeyErrors []error

func (e KeyErrors) Error() string {
	var texts []string
	for _, one := range e {
		texts = append(texts, one.Error())
	}
	return strings.Join(texts, "; ")
}

// Unwrap lets errors.Is and errors.As find each.
func (e KeyErrors) Unwrap() []error { return e }

// add adds errors; nil is none.
func (e *KeyErrors) add(errs ...error) {
	for _, err := range errs {
		if all, ok := err.(KeyErrors); ok {
			*e = append(*e, all...)
		} else if err != nil {
			*e = append(*e, err)
		}
	}
}

// when adds an error at a key if something is wrong there.
func (e *KeyErrors) when(wrong bool, key, format string, args ...any) {
	if wrong {
		e.add(&KeyError{key, fmt.Errorf(format, args...)})
	}
}

// err is nil when nothing is wrong.
func (e KeyErrors) err() error {
	if len(e) > 1 {
		return e
	}
	return append(e, nil)[0]
}

// peopleGroup makes one message for people of a wave of events.
var peopleGroup = delivery.Digest{Above: 5, Within: 20 * time.Second}

const week = 7 * 24 * time.Hour
