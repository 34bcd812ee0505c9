package sinks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"forewarn/templates"
)

// The texts for people can say every sample; the blocks are JSON.
func TestDefaultTextsSayEverySample(t *testing.T) {
	for name, text := range map[string]*templates.Template{
		"slack text": templates.SlackText, "slack blocks": templates.SlackBlocks,
		"email subject": templates.EmailSubject, "email text": templates.EmailText, "email html": templates.EmailHTML,
	} {
		if err := tryOn(true, func(f map[string]any) error {
			var b bytes.Buffer
			if err := text.Execute(&b, f); err != nil {
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
}
