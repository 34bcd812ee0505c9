package bridge

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
)

// Test says the sample as a CloudEvent of type BridgeTest: laid out as the real one would be, told apart by its type,
// by an id of its own and by test: true in data.
func (s Sample) Test(o Observer, now time.Time) (event.Event, error) {
	ce, err := s.CloudEvent(o, now)
	if err != nil {
		return ce, err
	}
	marked, err := WrapBridge(BridgeTest, nil, o, now)
	if err != nil {
		return ce, err
	}
	ce.SetID(marked.ID())
	ce.SetType(marked.Type())
	ce.SetSource(marked.Source())
	ce.SetSubject(marked.Subject())
	var data map[string]json.RawMessage
	if err := json.Unmarshal(ce.Data(), &data); err != nil {
		return ce, fmt.Errorf("sample %s: %w", s.Name, err)
	}
	data["test"] = json.RawMessage("true")
	setData(&ce, data)
	return ce, ce.Validate()
}
