package sinks

import (
	"encoding/json"
	"strings"
)

// A denial is the body of an answer that has a status of success and yet says that nothing was taken. It means to come
// back later: nothing arrived, so nobody gets a message twice.
//
// Services that stand in for another answer in ways of their own. So a body is a denial only if it says so; one that
// says nothing, or something unknown, is none: its message would be posted again for days.

// isDenial reports whether a body is a denial of any service for messages: it is a web page, as of a proxy that wants a
// login, or has ok or success as false, or without a yes has an error or a status of failure.
func isDenial(body string) bool {
	if isUndelivered(body) || strings.HasPrefix(strings.TrimLeft(body, "\ufeff \t\r\n"), "<") {
		return true
	}
	fields := answerFields(body)
	for _, name := range []string{"ok", "success"} {
		switch fields[name] {
		case true, "true":
			return false
		case false, "false":
			return true
		}
	}
	status, _ := fields["status"].(string)
	failed := oneOf(strings.ToLower(status), "error", "fail", "failed", "failure")
	return failed || isFilled(fields["error"]) || isFilled(fields["errors"])
}

// isUndelivered reports whether a body is Microsoft's way to say that Teams, behind the webhook, has refused a message.
func isUndelivered(body string) bool {
	return strings.Contains(strings.ToLower(body), "webhook message delivery failed")
}

// answerFields returns the fields of a JSON object by their names in lower case, nil if body is something else. It reads
// as far as it can: of a body that breaks off, the fields before that.
func answerFields(body string) map[string]any {
	decoder := json.NewDecoder(strings.NewReader(strings.TrimPrefix(body, "\ufeff")))
	begin, _ := decoder.Token()
	if begin != json.Delim('{') {
		return nil
	}
	fields := make(map[string]any)
	for decoder.More() {
		token, _ := decoder.Token()
		name, isName := token.(string)
		var value any
		if !isName || decoder.Decode(&value) != nil {
			break
		}
		fields[strings.ToLower(name)] = value
	}
	return fields
}

// isFilled reports whether a value of JSON is a text, a list or an object that isn't empty.
func isFilled(value any) bool {
	switch v := value.(type) {
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return false
}
