package templates

// A FuncDoc documents one function. Example is a template that uses no fields; executing it writes Result.
type FuncDoc struct {
	Name, Doc, Example, Result string
}

// FuncDocs documents every function, grouped by subject: texts, lists and maps, choices, times, links.
var FuncDocs = []FuncDoc{
	{"upper", "upper case", `{{upper "vm"}}`, "VM"},
	{"lower", "lower case", `{{lower "VM"}}`, "vm"},
	{"title", "first letter of each word in upper case", `{{title "live migration"}}`, "Live Migration"},
	{"trim", "without white space at both ends", `{{trim " vm "}}`, "vm"},
	{"trimPrefix", "without a beginning", `{{trimPrefix "vm-" "vm-db"}}`, "db"},
	{"trimSuffix", "without an end", `{{trimSuffix "-db" "vm-db"}}`, "vm"},
	{"replace", "each occurrence replaced", `{{replace "_" "-" "vm_0"}}`, "vm-0"},
	{"trunc", "cut to that many characters", `{{trunc 5 "maintenance"}}`, "main…"},
	{"contains", "whether it contains a text", `{{contains "db" "vm-db"}}`, "true"},
	{"hasPrefix", "whether it begins with a text", `{{hasPrefix "vm" "vm-db"}}`, "true"},
	{"hasSuffix", "whether it ends with a text", `{{hasSuffix "db" "vm-db"}}`, "true"},
	{"quote", "in quotes, as in Go", `{{quote "a\nb"}}`, `"a\nb"`},
	{"indent", "each line indented by that many spaces", `{{indent 2 "vm"}}`, "  vm"},
	{"line", "on one line, without control characters", `{{line "a\nb"}}`, "a b"},
	{"json", "as JSON; use it for every value in a JSON body", `{{json "a\"b"}}`, `"a\"b"`},

	{"list", "a list of its arguments", `{{list "a" "b" | len}}`, "2"},
	{"dict", "a map of names and values", `{{(dict "vm" "db").vm}}`, "db"},
	{"dig", "value below names in a map, or the last text if it is missing",
		`{{dict "a" (dict "b" 1) | dig "a" "b" "none"}}`, "1"},
	{"join", "items of a list with a separator", `{{list "a" "b" | join ", "}}`, "a, b"},
	{"split", "list of the parts of a text", `{{split "," "a,b" | last}}`, "b"},
	{"first", "first item of a list", `{{list "a" "b" | first}}`, "a"},
	{"last", "last item of a list", `{{list "a" "b" | last}}`, "b"},
	{"without", "list without some items, ignoring case", `{{without (list "a" "b") "A" | join ","}}`, "b"},
	{"names", "first items of a list, and how many more", `{{list "a" "b" "c" | names 1}}`, "a and 2 more"},
	{"families", "whom the messages of a group hit; names that differ only in their number are one family", `{{list (dict "resources" (list "db-1" "db-2")) | families}}`, "2 of db-*"},

	{"default", "the first argument if the value is empty", `{{default "none" ""}}`, "none"},
	{"coalesce", "first value that isn't empty", `{{coalesce "" "b" "c"}}`, "b"},
	{"ternary", "one of two values, as the last is true or false", `{{ternary "yes" "no" true}}`, "yes"},
	{"required", "the value, or an error if it is empty", `{{required "name" "vm"}}`, "vm"},
	{"include", "text that a define makes", `{{define "a"}}vm-{{.}}{{end}}{{include "a" "db" | upper}}`, "VM-DB"},

	{"facts", "list of what to know about the event, each with Label, Text and Command (what to run, or empty)",
		`{{range facts (dict "resources" (list "a" "b" "c" "d"))}}{{.Label}}: {{.Text}}{{end}}`, "VMs: a, b, c, d"},
	{"links", "list of where to read on, each with Text and URL",
		`{{range links (dict "runbook" "https://r.example.com")}}{{.Text}}: {{.URL}}{{end}}`, "Runbook: https://r.example.com"},

	{"toTime", "a time, read from RFC 3339, Azure's form or seconds since 1970",
		`{{(toTime "2026-11-21T04:10:00Z").Year}}`, "2026"},
	{"date", "a time in a layout of Go", `{{date "15:04" "2026-11-21T04:10:00Z"}}`, "04:10"},
	{"tz", "a time in a time zone", `{{tz "Europe/Berlin" "2026-11-21T04:10:00Z" | date "15:04 MST"}}`, "05:10 CET"},
	{"unixEpoch", "seconds since 1970", `{{unixEpoch "2026-11-21T04:10:00Z"}}`, "1795234200"},
	{"secondsBetween", "seconds from one time to another",
		`{{secondsBetween "2026-11-21T04:10:00Z" "2026-11-21T04:25:00Z"}}`, "900"},
	{"humanizeDuration", "a number of seconds for people", `{{humanizeDuration 900}}`, "15 min"},
	{"clock", "time of day in the zone of the fields", `{{clock (dict "zone" "UTC") "2026-11-21T04:10:00Z"}}`,
		"04:10 UTC"},
	{"clockSeconds", "the same with seconds", `{{clockSeconds (dict "zone" "UTC") "2026-11-21T04:10:04Z"}}`,
		"04:10:04 UTC"},
	{"fullTime", "day and time in the zone of the fields, and in UTC",
		`{{fullTime (dict "zone" "UTC") "2026-11-21T04:10:00Z"}}`, "Sat 21 Nov 2026 at 04:10 UTC"},
	{"fullTimeSeconds", "the same with seconds", `{{fullTimeSeconds (dict "zone" "UTC") "2026-11-21T04:10:04Z"}}`,
		"Sat 21 Nov 2026 at 04:10:04 UTC"},

	{"slack", "the fields with every text escaped for Slack", `{{(slack (dict "a" "<b>")).a}}`, "&lt;b&gt;"},
	{"slackEscape", "a text escaped for Slack", `{{slackEscape "<!here>"}}`, "&lt;!here&gt;"},
	{"slackTime", "a time that Slack shows in each reader's zone",
		`{{slackTime "{time}" "04:10 UTC" "2026-11-21T04:10:00Z"}}`, "<!date^1795234200^{time}|04:10 UTC>"},
	{"portalURL", "page of a resource in Azure's portal", `{{portalURL "/subscriptions/s"}}`,
		"https://portal.azure.com/#@/resource/subscriptions/s"},
	{"activityLogURL", "page that says who did what to a resource",
		`{{activityLogURL "/subscriptions/s"}}`, "https://portal.azure.com/#@/resource/subscriptions/s/eventlogs"},
}
