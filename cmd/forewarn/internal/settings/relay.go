package settings

import (
	"errors"
	"os"
	"reflect"
	"strings"

	"forewarn/bridge/imds"
	"forewarn/sinks"
)

// RelaySettings is the section nats, which makes the file that of a relay.
type RelaySettings struct {
	sinks.NATSSettings `yaml:",inline"`
	Stream             string               `yaml:"stream" default:"FOREWARN" form:"token" doc:"the stream to read"`
	Domain             string               `yaml:"domain" form:"token" doc:"JetStream domain (default: the account's)"`
	Name               string               `yaml:"name" doc:"name of this relay, for people (default: the host's name)"`
	Provision          sinks.StreamSettings `yaml:"provision" doc:"what forewarn relay --provision makes the stream like"`

	Servers *sinks.NATS // the way to the servers; nil when the sinks were left out
}

// isToken reports whether a text is 1 to n letters, digits, dashes and underscores. It needs no regular expression: one
// that counts to 200 takes two milliseconds to compile, whenever a command starts.
func isToken(s string, n int) bool {
	return s != "" && len(s) <= n && strings.Trim(s, tokenChars) == ""
}

const tokenChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

// relayRules is why a relay has no rules.
const relayRules = "a relay approves nothing, as only a VM can; expected rules in the settings of the bridges"

// relay checks the section nats and reads its credentials. Whoever polls has none.
func (l Loader) relay(doc *document, s *Settings) {
	section, ok := doc.root.find("nats")
	if !ok || s.Relay == nil {
		return
	}
	doc.report(doc.refuseOnRelay(doc.root, s))
	r := s.Relay
	p := r.Provision
	if r.Stream == "" {
		r.Stream = "FOREWARN"
	}
	if r.Name == "" {
		r.Name, _ = os.Hostname()
	}
	if p.MaxAge > 0 && p.Duplicates > p.MaxAge {
		e, _ := section.value.find("provision.duplicates")
		doc.report(doc.valueError(e.value, "nats.provision.duplicates", "a time no longer than max_age"))
	}
	if l.Kinds == nil {
		return
	}
	decoded := doc.isClean(section)
	host := l.Host
	host.Name, host.Endpoint, host.ClientID = "relay", s.IMDS.Endpoint, s.Identity.ClientID
	servers, err := sinks.NewNATS(r.NATSSettings, host)
	if err != nil {
		doc.report(doc.openErrors(section, err, decoded))
		return
	}
	r.Servers = servers
	s.keep(servers.Keep())
	s.Notes = append(s.Notes, placeholderNotes(section)...)
	for _, note := range servers.Notes() {
		s.Notes = append(s.Notes, "nats: "+note)
	}
	for _, key := range inlineSecrets(section.value) {
		doc.inline = append(doc.inline, "nats."+key)
	}
}

// IsSame reports whether a running relay can take over the other settings. It doesn't change its servers, its stream
// and its name.
func (r *RelaySettings) IsSame(other *RelaySettings) bool {
	a, b := *r, *other
	a.Servers, b.Servers = nil, nil
	a.Provision, b.Provision = sinks.StreamSettings{}, sinks.StreamSettings{}
	return reflect.DeepEqual(a, b)
}

// relaySink refuses what a sink of a relay can't have.
func relaySink(doc *document, n *node) error {
	var problems Problems
	for _, key := range []string{"only.vms", "except.vms"} {
		if e, ok := n.find(key); ok && !imds.SameWord(e.value.text, "all") {
			problems = problems.with(doc.errorAt(e.value.pos,
				"%s: a relay is none of the VMs, so there is no self and no leader; "+
					"expected all, or only.names and only.groups", key))
		}
	}
	return problems.err()
}

// ErrIsRelay and ErrNoRelay are returned for a file of the other kind.
var (
	ErrIsRelay = errors.New("these are the settings of a relay, because they have nats in place of imds; " +
		"start it with forewarn relay")
	ErrNoRelay = errors.New("these settings have no section nats, which names the servers and the stream " +
		"that a relay reads; expected it, or --config with those of a relay")
)
