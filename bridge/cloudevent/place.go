package cloudevent

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/imds"
)

// MaxToken is the longest token of a subject. No name that Azure permits is longer.
const MaxToken = 90

// HeaderEventOver is the header of a NATS message whose publisher knew by then that the Azure event is over, when that is not
// what the message says. So a relay begins nothing because of it, although it hears of the end only later.
const HeaderEventOver = "Forewarn-Event-Over"

// A Place is where a CloudEvent comes from, as the default subjects of NATS name it. Its parts are tokens of a subject,
// in lower case: Azure ignores the case of names, and writes a group's name differently on different machines.
type Place struct {
	Subscription, Group string
	Set                 string // the scale set, or another set that the source names; a VM in none is its own
	VM                  string // that a CloudEvent about a bridge comes from; "" for one about an Azure event
}

// String returns the tokens of the set.
func (p Place) String() string { return p.Subscription + "." + p.Group + "." + p.Set }

// PlaceOf returns where a CloudEvent comes from. All VMs that see an Azure event agree on it: it is the set that the
// source names, the observer's scale set, or else the first of the event's Resources; the observer only if the event
// names no VM. About a bridge it is the observer, and its scale set if it is in one.
func PlaceOf(ce event.Event) Place {
	var d struct {
		Event    json.RawMessage `json:"event"`
		Observer imds.Observer   `json:"observer"`
	}
	_ = json.Unmarshal(ce.Data(), &d) // on an error, what could be read counts
	of, kind := resourceID(ce.Source())
	o := d.Observer
	o.Name = cmp.Or(o.Name, of.name)
	o.SubscriptionID, o.ResourceGroup = cmp.Or(o.SubscriptionID, of.subscription), cmp.Or(o.ResourceGroup, of.group)
	p := PlaceOfObserver(o)
	if !strings.HasPrefix(ce.Type(), EventPrefix) {
		return p
	}
	p.VM = ""
	e, _ := imds.UnmarshalEvent(d.Event) // on an error it names no VM
	switch {
	case kind != "" && !strings.EqualFold(kind, "virtualMachines"):
		p = Place{Subscription: SubjectToken(of.subscription), Group: SubjectToken(of.group), Set: SubjectToken(of.name)}
	case o.ScaleSet == "" && len(e.Resources) > 0:
		p.Set = SubjectToken(e.Resources[0])
	}
	return p
}

// PlaceOfObserver returns the place of a VM.
func PlaceOfObserver(o imds.Observer) Place {
	return Place{
		SubjectToken(o.SubscriptionID), SubjectToken(o.ResourceGroup), SubjectToken(cmp.Or(o.ScaleSet, o.Name)),
		SubjectToken(o.Name),
	}
}

// A resource is what an Azure resource id names.
type resource struct{ subscription, group, name string }

// resourceID reads the Azure resource id in a CloudEvent's source, and returns also the resource's kind, which is "" if
// there is none.
func resourceID(source string) (r resource, kind string) {
	_, path, found := strings.Cut(source, "/subscriptions/")
	if !found {
		return r, ""
	}
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if plain, err := url.PathUnescape(part); err == nil {
			parts[i] = plain
		}
	}
	// <subscription> resourceGroups <group> providers <namespace> <kind> <name> [<kind> <name>]…
	if len(parts) < 7 || len(parts)%2 == 0 || !strings.EqualFold(parts[1], "resourceGroups") {
		return r, ""
	}
	return resource{parts[0], parts[2], parts[len(parts)-1]}, parts[len(parts)-2]
}

// noToken stands for an empty text.
const noToken = "_"

// SubjectToken makes a name one token of a subject, in lower case; see Token.
func SubjectToken(name string) string { return Token(strings.ToLower(name)) }

// Token makes a text one token of a subject: letters, digits, _ and - stay, every other rune becomes _, and so does an
// empty text. A long text is cut and ends in a hash of the whole, so that two long ids stay different.
func Token(s string) string {
	token := strings.Map(func(r rune) rune {
		if inToken(r) {
			return r
		}
		return '_'
	}, s)
	switch {
	case token == "":
		return noToken
	case len(token) <= MaxToken:
		return token
	}
	sum := sha256.Sum256([]byte(s))
	return token[:MaxToken-9] + "-" + hex.EncodeToString(sum[:4])
}

// inToken reports whether a token may hold a rune.
func inToken(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || r == '-'
}
