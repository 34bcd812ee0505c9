package relay

import (
	"fmt"
	"testing"

	"forewarn/bridge/delivery"
)

// Of mutes that are no longer in the bucket a relay remembers nothing.
func TestWhatIsAnnouncedIsForgottenWithItsMute(t *testing.T) {
	r := New(Options{})
	for n := range 1000 {
		id := fmt.Sprint("m", n)
		r.setMutes([]*delivery.Mute{{ID: id}}, uint64(n))
		r.announced[id] = "announced"
	}
	r.setMutes([]*delivery.Mute{{ID: "m999"}, {ID: "m1000"}}, 1000)
	if len(r.announced) != 2 || r.announced["m999"] != "announced" {
		t.Errorf("it remembers %d announcements, that of m999 as %q; want that one and an empty one", len(r.announced),
			r.announced["m999"])
	}
}
