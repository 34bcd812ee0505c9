package templates

import (
	"embed"
	"path"
	"slices"
	"strings"
)

//go:embed bodies/*.json
var bodies embed.FS

// A ReadyBody is the request body that one service expects instead of a CloudEvent.
type ReadyBody struct {
	Text      string // a template that produces JSON
	BlockedOn []int  // statuses with which the service refuses credentials, besides the usual ones such as 401 and 403
	People    bool   // the service shows it to people
	Incident  bool   // the service opens an incident, and keeps it open until the end of the event is delivered
}

// blockedOn holds the statuses of services that answer refused credentials like a malformed request, because the
// credentials travel in the body or are the address itself.
var blockedOn = map[string][]int{
	"azure-automation": {400}, // the webhook has expired or was disabled
	"ntfy":             {400}, // the topic is invalid or not allowed
	"pagerduty":        {400}, // the routing key is not known
	"teams":            {400}, // the workflow is turned off or deleted
}

// forPeople names the bodies of services that page people or write to them.
var forPeople = []string{"ntfy", "pagerduty", "teams"}

// Body returns the ready-made body of that name. ok is false if there is none.
func Body(name string) (b ReadyBody, ok bool) {
	file, err := bodies.ReadFile(path.Join("bodies", name+".json"))
	return ReadyBody{
		Text: string(file), BlockedOn: blockedOn[name], People: slices.Contains(forPeople, name),
		Incident: name == "pagerduty",
	}, err == nil
}

// BodyNames returns the names of the ready-made bodies, sorted.
func BodyNames() []string {
	files, err := bodies.ReadDir("bodies")
	if err != nil {
		panic(err) // they are embedded
	}
	var all []string
	for _, f := range files {
		all = append(all, strings.TrimSuffix(f.Name(), ".json"))
	}
	return all
}
