package main

import (
	"encoding/csv"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
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
