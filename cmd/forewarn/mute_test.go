package main

import (
	"testing"
)

// Which sinks are for people, so that a mute of no sink by name holds them back, can be seen in the settings.
func TestSinksForPeople(t *testing.T) {
	const webhook = "webhook: {url: 'https://h.example/'"
	for kind, want := range map[string]bool{
		"slack: {webhook_url: 'https://h.example/'}":                                 true,
		"bridge: none, slack: {webhook_url: 'https://h.example/'}":                   true,
		"late: send, email: {host: h.example, from: a@h.example, to: [b@h.example]}": true,
		"teams: {url: 'https://h.example/'}":                                         true,
		"ntfy: {topic: x}":                                                           true,
		"bridge: none, pagerduty: {routing_key: x}":                                  true,
		"bridge: trouble, " + webhook + ", body_text: '{}'}":                         true,
		"bridge: Trouble, " + webhook + "}":                                          true,
		webhook + ", body_text: '{}'}":                                               false,
		"splunk: {url: 'https://h.example/', token: x}":                              false,
		"bridge: trouble, azure_automation: {url: 'https://h.example/'}":             false,
		webhook + "}":                                                             false,
		"bridge: all, " + webhook + "}":                                           false,
		"bridge: all, file: {path: '-'}":                                          false,
		"bridge: trouble, file: {path: '-'}":                                      false,
		"bridge: trouble, nats: {url: 'nats://h.example'}":                        false,
		"bridge: trouble, syslog: {url: 'udp://h.example'}":                       false,
		"bridge: trouble, only: {changes: [first]}, exec: {command: [/bin/true]}": false,
	} {
		s := loadSample(t, kind, "sinks: [{name: a, "+kind+"}]", "")
		if got := s.Routes[0].Terms.People; got != want {
			t.Errorf("%s is for people: %v, want %v", kind, got, want)
		}
	}
}
