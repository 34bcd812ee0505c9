package streams

import (
	"errors"
	"fmt"
	"strings"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// errSubject means that a message says that it comes from elsewhere than its subject does.
var errSubject = errors.New("it is not on its own subject")

// Refusal returns the reason of the dead letter for a message that is refused with an error.
func Refusal(why error) string {
	if errors.Is(why, errSubject) {
		return delivery.ReasonSubject
	}
	return delivery.ReasonLost
}

// The beginnings of the default subjects. Next come the subscription, the resource group and the set of who publishes;
// then, after the last two, the VM. NATS lets each set publish under its own only, so they say who speaks.
const (
	eventsPrefix     = "forewarn.events."
	bridgePrefix     = "forewarn.bridge."
	heartbeatsPrefix = "forewarn.heartbeat."
)

// HeartbeatsSubject is where bridges publish heartbeats: forewarn.heartbeat.<subscription>.<group>.<set>.<vm>.
const HeartbeatsSubject = "forewarn.heartbeat.>"

// relaySubject begins the subjects of what a relay says about itself: forewarn.bridge.relay.<id>.
const relaySubject = bridgePrefix + "relay."

// checkSubject returns an error that wraps errSubject if a message says that it comes from elsewhere than its subject
// does. Subjects that only relays may use are right, and so are those that begin otherwise: who made them up knows
// what they mean, and a relay can't.
func checkSubject(subject string, m Message) error {
	tokens := strings.Split(subject, ".")
	byRelay := strings.HasPrefix(subject, SinkPrefix) || strings.HasPrefix(subject, relaySubject) && len(tokens) == 4
	if byRelay {
		return nil
	}
	said := []string{m.From.Subscription, m.From.Group, m.From.Set}
	switch {
	case strings.HasPrefix(subject, eventsPrefix):
	case strings.HasPrefix(subject, bridgePrefix), strings.HasPrefix(subject, heartbeatsPrefix):
		said = append(said, m.From.VM)
	default:
		return nil
	}
	if typ := m.CE.Type(); typ == cloudevent.ObserverSilent || typ == cloudevent.ObserverBack {
		return fmt.Errorf("%w: only a relay says %s", errSubject, typ)
	}
	names := tokens[2:]
	if got, want := strings.Join(names[:min(len(said), len(names))], "."), strings.Join(said, "."); got != want {
		return fmt.Errorf("%w: it comes from %s, and is about %s", errSubject, imds.Printable(got, 300), want)
	}
	return nil
}

// SetOf returns the set that may publish on a subject, <subscription>.<group>.<set>; "" if the subject doesn't say.
func SetOf(subject string) string {
	for _, prefix := range []string{eventsPrefix, bridgePrefix, heartbeatsPrefix} {
		if rest, ok := strings.CutPrefix(subject, prefix); ok {
			tokens := strings.Split(rest, ".")
			return strings.Join(tokens[:min(3, len(tokens))], ".")
		}
	}
	return ""
}

// GroupOf returns the group of what a set says about an Azure event, <event's id>.<set>. Whatever another set says about
// an event of the same id is another group.
func GroupOf(eventID, set string) string { return eventID + "." + set }

// CutGroup returns the parts of a group.
func CutGroup(group string) (eventID, set string) {
	at := len(group)
	for range 3 {
		at = max(0, strings.LastIndexByte(group[:at], '.'))
	}
	return group[:at], strings.TrimPrefix(group[at:], ".")
}

// EventOf returns the id of a group's Azure event; "" for none.
func EventOf(group string) string {
	id, _ := CutGroup(group)
	return id
}
