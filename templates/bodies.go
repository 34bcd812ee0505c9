package templates

import (
	"embed"
	"path"
	"strings"
)

//go:embed bodies/*.json
var bodies embed.FS

// A ReadyBody is what one service takes instead of a CloudEvent.
type ReadyBody struct {
	Text      string // a template of JSON
	BlockedOn []int  // statuses by which the service refuses credentials, beside 401, 403 and the like
	Incident  bool   // the service keeps something open until it hears the end
}

// blockedOn are the statuses of services whose credentials travel in the body or whose address ends, which they answer
// like a malformed request.
var blockedOn = map[string][]int{
	"azure-automation": {400}, // the webhook has expired or was disabled
	"pagerduty":        {400}, // the routing key is not known
}

// Body is the ready-made body of that name; ok is false for a name that is none.
func Body(name string) (b ReadyBody, ok bool) {
	file, err := bodies.ReadFile(path.Join("bodies", name+".json"))
	return ReadyBody{Text: string(file), BlockedOn: blockedOn[name], Incident: name == "pagerduty"}, err == nil
}

// BodyNames are the names of the ready-made bodies, sorted.
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
