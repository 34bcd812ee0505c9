package trouble_test

import (
	"testing"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/internal/trouble"
)

// An attempt that goes on for longer than its timeout and a second hangs. One that may go on for ever never does.
func TestAnAttemptThatOutlastsItsTimeoutHangs(t *testing.T) {
	began := time.Date(2026, 3, 14, 15, 9, 26, 0, time.UTC)
	for _, tt := range []struct {
		state          delivery.State
		timeout, after time.Duration
		want           string
	}{
		{delivery.State{}, 10 * time.Second, time.Hour, ""},
		{delivery.State{Since: began}, 10 * time.Second, 11 * time.Second, ""},
		{delivery.State{Since: began}, 10 * time.Second, 11*time.Second + 1, "the attempt of 15:09:26 UTC does not end"},
		{delivery.State{Since: began}, 0, time.Hour, ""},
		{delivery.State{Retrying: true, Error: "refused"}, 0, 0, "refused"},
	} {
		said := ""
		if why := trouble.WhySilent(tt.state, tt.timeout, began.Add(tt.after), time.UTC); why != nil {
			said = why.Error()
		}
		if said != tt.want {
			t.Errorf("%+v with a timeout of %v, after %v: %q, want %q", tt.state, tt.timeout, tt.after, said, tt.want)
		}
	}
}
