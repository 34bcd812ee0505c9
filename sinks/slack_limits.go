package sinks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/slack-go/slack"

	"forewarn/templates"
)

// What Slack takes, in characters where nothing else is said. A message over one of these is refused as a whole, so
// what is too long is cut.
const (
	maxSlackText  = 4000
	maxBlocks     = 50 // in number
	maxBlocksText = 13000
	maxSection    = 3000
	maxHeader     = 150
	maxFields     = 10 // in number
	maxField      = 2000
	maxElements   = 10 // in number, of a context
	maxActions    = 25 // in number
	maxButton     = 75
	maxSlackURL   = 3000
	maxMarkdown   = 12000
)

// parseBlocks reads a JSON array of blocks and makes it one that Slack takes.
func parseBlocks(text string) ([]json.RawMessage, error) {
	d := json.NewDecoder(strings.NewReader(strings.ToValidUTF8(text, "\ufffd")))
	d.UseNumber()
	var blocks []map[string]any
	if err := d.Decode(&blocks); err != nil {
		return nil, fmt.Errorf("is no JSON array of blocks: %w; put values in with {{json .name}}", err)
	}
	if d.More() {
		return nil, fmt.Errorf("holds something behind the JSON array of blocks")
	}
	var all []json.RawMessage
	left := maxBlocksText
	for _, b := range blocks {
		if len(all) == maxBlocks {
			break
		}
		if len(b) == 0 || !fitBlock(b, &left) {
			continue
		}
		raw, err := compact(b)
		if err != nil {
			return nil, err
		}
		all = append(all, raw)
	}
	return all, nil
}

// compact is v as JSON, with nothing escaped for HTML.
func compact(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// checkBlocks says what slack-go finds wrong in blocks.
func checkBlocks(text string) error {
	var blocks slack.Blocks
	if err := json.Unmarshal([]byte(text), &blocks); err != nil {
		return fmt.Errorf("are no blocks of Slack: %w", err)
	}
	for i, b := range blocks.BlockSet {
		if b.BlockType() == "" {
			return fmt.Errorf("block %d has no type", i)
		}
		if v, ok := b.(interface{ Validate() error }); ok {
			if err := v.Validate(); err != nil {
				return fmt.Errorf("block %d: %w", i, err)
			}
		}
	}
	return nil
}

// fitBlock cuts the texts of a block; left is how much all blocks may still hold. It is false for a block that has
// nothing to show.
func fitBlock(b map[string]any, left *int) bool {
	switch b["type"] {
	case "header":
		return fitText(b["text"], maxHeader, left)
	case "section":
		fit := fitText(b["text"], maxSection, left)
		if !fit {
			delete(b, "text")
		}
		if fields := fitList(b["fields"], maxFields, func(v any) bool { return fitText(v, maxField, left) }); len(fields) > 0 {
			b["fields"], fit = fields, true
		} else {
			delete(b, "fields")
		}
		if !fitElement(b["accessory"]) {
			delete(b, "accessory")
		}
		return fit
	case "context":
		elements := fitList(b["elements"], maxElements, func(v any) bool {
			if e, _ := v.(map[string]any); e["type"] != "mrkdwn" && e["type"] != "plain_text" {
				return true
			}
			return fitText(v, maxField, left)
		})
		b["elements"] = elements
		return len(elements) > 0
	case "actions":
		elements := fitList(b["elements"], maxActions, fitElement)
		b["elements"] = elements
		return len(elements) > 0
	case "markdown":
		text, _ := b["text"].(string)
		text = templates.Cut(text, min(maxMarkdown, *left))
		*left -= utf8.RuneCountInString(text)
		b["text"] = text
		return strings.TrimSpace(text) != ""
	}
	return true
}

// fitElement cuts what stands on a button. A button that leads nowhere is left out.
func fitElement(v any) bool {
	e, ok := v.(map[string]any)
	if !ok {
		return false
	}
	if to, given := e["url"].(string); given && (to == "" || utf8.RuneCountInString(to) > maxSlackURL) {
		return false
	}
	left := maxButton
	return e["type"] != "button" || fitText(e["text"], maxButton, &left)
}

// fitText cuts a text object; it is false when nothing is in it.
func fitText(v any, n int, left *int) bool {
	o, _ := v.(map[string]any)
	text, _ := o["text"].(string)
	text = templates.Cut(text, min(n, *left))
	if strings.TrimSpace(text) == "" {
		return false
	}
	*left -= utf8.RuneCountInString(text)
	o["text"] = text
	return true
}

// fitList are the first n items of a list that fit.
func fitList(v any, n int, fit func(any) bool) []any {
	list, _ := v.([]any)
	var all []any
	for _, item := range list {
		if len(all) < n && fit(item) {
			all = append(all, item)
		}
	}
	return all
}
