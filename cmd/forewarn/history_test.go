package main

import (
	"encoding/csv"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
)

// A spreadsheet runs no text from outside as a formula, whichever separator it goes by. Other text stays as it is.
func TestHistoryAsCSVHoldsNoFormula(t *testing.T) {
	for text, want := range map[string]string{
		"=cmd|'/c calc'!A0":     "'=cmd|'/c calc'!A0",
		"+1":                    "'+1",
		"-1":                    "'-1",
		"@SUM(A1)":              "'@SUM(A1)",
		"\t=1":                  "'\t'=1",
		"\r=1":                  "'\r'=1",
		"＝cmd|x":                "'＝cmd|x",
		"＋1":                    "'＋1",
		"－1":                    "'－1",
		"＠SUM(A1)":              "'＠SUM(A1)",
		"﹦1":                    "'﹦1",
		"a;=cmd|x":              "a;'=cmd|x",
		"a;;＝cmd|x;@b":          "a;;'＝cmd|x;'@b",
		"a\t-1":                 "a\t'-1",
		"a\r\n=1":               "a\r\n'=1",
		`a;"=1"`:                `a;'"=1"`,
		" =1":                   "' =1",
		"\u200b\u00a0=1":        "'\u200b\u00a0=1",
		"'=1":                   "''=1",
		"=;=1":                  "'=;'=1",
		"503 no-thanks; a=b, c": "503 no-thanks; a=b, c",
		"vm-db-1 x@y 1+1":       "vm-db-1 x@y 1+1",
		"":                      "",
	} {
		var out strings.Builder
		life := bridge.EventHistory{Event: text, Resources: []string{text}, Changes: []bridge.HistoryChange{{
			Time: time.Unix(0, 0), Deliveries: []bridge.HistoryDelivery{{Route: "hook", Answer: text, Error: text}},
		}}}
		if err := printHistoryCSV(&out, []bridge.EventHistory{life}); err != nil {
			t.Fatal(err)
		}
		rows, err := csv.NewReader(strings.NewReader(strings.ReplaceAll(out.String(), "\r", "␍"))).ReadAll()
		if err != nil || len(rows) != 2 {
			t.Fatalf("%q: %d rows, %v", text, len(rows), err)
		}
		for i, column := range rows[0] {
			if column != "event" && column != "resources" && column != "answer" && column != "error" {
				continue
			}
			if got := strings.ReplaceAll(rows[1][i], "␍", "\r"); got != want {
				t.Errorf("the %s %q is printed as %q, want %q", column, text, got, want)
			}
		}
	}
}

// Of an event's time the history says what the message said: at the earliest, at the latest where it may begin sooner, or
// that it had passed. What has begun has none.
func TestHistorySaysOfATimeWhatTheMessageSaid(t *testing.T) {
	at := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	rules, asked := []cloudevent.Rule{{Name: "rule 1"}}, &cloudevent.Asked{By: "root", Time: at}
	for want, c := range map[string]bridge.HistoryChange{
		"announced, for 04:10:00 UTC at the earliest":                         {Change: imds.Scheduled, NotBefore: at.Add(10 * time.Minute)},
		"announced, for 04:10:00 UTC at the latest":                           {Change: imds.Scheduled, NotBefore: at.Add(10 * time.Minute), Rules: rules},
		"changed (Description), for 04:10:00 UTC at the latest":               {Change: imds.Updated, Fields: []string{"Description"}, NotBefore: at.Add(10 * time.Minute), Asked: asked},
		"announced, due since 03:50:00 UTC, found late":                       {Change: imds.Scheduled, NotBefore: at.Add(-10 * time.Minute), WhileAway: true, Rules: rules},
		"reminder, 1h before, for 05:00:00 UTC at the earliest, seen by vm-0": {Change: imds.Reminder, Lead: "1h", NotBefore: at.Add(time.Hour), Observer: "vm-0"},
		"reminder, 1h before, for 05:00:00 UTC at the earliest, seen by vm-1": {Change: imds.Reminder, Lead: "1h", NotBefore: at.Add(time.Hour), Observer: "vm-1",
			Rules: []cloudevent.Rule{{Name: "rule 1", VM: "vm-0"}}},
		"on vm-0: approved by rule 1, Azure answered 200 OK": {Change: imds.Approved, Observer: "vm-0",
			Approval: &cloudevent.Approval{Result: cloudevent.ResultApproved, By: "rule 1", Status: "200 OK"}},
		"begun": {Change: imds.Started, NotBefore: at.Add(time.Minute)},
	} {
		c.Time = at
		if got := changeWords(c, "", time.UTC); got != want {
			t.Errorf("the history says %q, want %q", got, want)
		}
	}
}
