package sinks

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// In Alertmanager what came of an approval says so in the alert of its event, which stays what it is and open.
func TestWhatCameOfAnApprovalStaysInTheAlertOfItsEvent(t *testing.T) {
	type alert struct {
		Labels, Annotations map[string]string
		StartsAt, EndsAt    string
	}
	w := openService(t, serviceNamed(t, "alertmanager"), "http://alertmanager.example.com")
	alertOf := func(name string) alert {
		t.Helper()
		var alerts []alert
		err := json.Unmarshal([]byte(bodyOf(t, w, fieldsOf(t, situations()[name]))), &alerts)
		if err != nil || len(alerts) != 1 {
			t.Fatalf("%s: %d alerts, %v", name, len(alerts), err)
		}
		return alerts[0]
	}
	change := alertOf("reminder")
	for name, summary := range map[string]string{
		"approved":            "reboot approved, it may begin now",
		"approved-begun":      "reboot has begun",
		"approved-moot":       "not approved, it changed first",
		"approved-moot-begun": "reboot has begun",
		"approved-promised":   "starts by itself after all",
		"approved-refused":    "refused",
		"approved-unanswered": "approv",
		"approved-withheld":   `won't start early by its rules, sink "drain" failed`,
	} {
		got := alertOf(name)
		if !reflect.DeepEqual(got.Labels, change.Labels) || got.EndsAt != change.EndsAt || got.StartsAt != change.StartsAt {
			t.Errorf("%s is %+v, want the alert of the change, %+v", name, got, change)
		}
		if s := got.Annotations["summary"]; !strings.Contains(s, summary) {
			t.Errorf("%s says %q, want %q", name, s, summary)
		}
	}
}
