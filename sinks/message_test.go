package sinks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"testing"

	"forewarn/templates"
)

// The texts for people can say every sample; the blocks are JSON.
func TestDefaultTextsSayEverySample(t *testing.T) {
	for name, text := range map[string]string{
		"slack text": templates.SlackText, "slack blocks": templates.SlackBlocks,
		"email subject": templates.EmailSubject, "email text": templates.EmailText,
	} {
		parsed, err := templates.Parse(name, text)
		if err != nil {
			t.Fatal(err)
		}
		if err := tryOn(true, func(f map[string]any) error {
			var b bytes.Buffer
			if err := parsed.Execute(&b, f); err != nil {
				return err
			}
			if bytes.Contains(b.Bytes(), []byte("<no value>")) {
				return fmt.Errorf("a value is missing in\n%s", b.Bytes())
			}
			if name == "slack blocks" {
				return json.Unmarshal(b.Bytes(), new(any))
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	html, err := templates.ParseHTML("email", templates.EmailHTML)
	if err != nil {
		t.Fatal(err)
	}
	if err := tryOn(true, func(f map[string]any) error { return html.Execute(io.Discard, f) }); err != nil {
		t.Error(err)
	}
}
