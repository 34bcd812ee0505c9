package sinks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/slack-go/slack"

	"forewarn/bridge/delivery"
	"forewarn/templates"
)

// A fetcher makes one request, as caller.fetch does.
type fetcher func(*http.Request, *redactor) (response, error)

// A slackAPI makes the calls to Slack with the credentials of one attempt. The calls of a bot are slack-go's, which
// sends them through Do; Do also reads the answers. slack-go's function for an incoming webhook neither limits nor reads
// the answer, so postHook replaces it.
type slackAPI struct {
	sink    *slackSink
	client  *slack.Client
	hook    *url.URL // instead of client
	fetch   fetcher
	redact  *redactor
	to      *url.URL   // of the API, or hook
	inClear bool       // anybody on the way can read the secret
	last    response   // the newest response
	reply   slackReply // the newest answer of the API
}

// A slackMessage is the content of a message. Without blocks, Slack shows the text.
type slackMessage struct {
	text   string
	blocks []slack.Block
}

// A posted is the place of a message that was posted.
type posted struct {
	channel, ts string // Slack's ids of the channel and the message
	threaded    bool   // the message is a reply in a thread
}

// post posts a message to a channel, in the thread of the message with the id thread unless that is "".
func (a *slackAPI) post(ctx context.Context, channel string, m slackMessage, thread string,
	broadcast bool) (posted, error) {
	options := []slack.MsgOption{
		slack.MsgOptionText(m.text, false), slack.MsgOptionParse(false),
		slack.MsgOptionDisableLinkUnfurl(), slack.MsgOptionDisableMediaUnfurl(),
	}
	if len(m.blocks) > 0 {
		options = append(options, slack.MsgOptionBlocks(m.blocks...))
	}
	if thread != "" {
		options = append(options, slack.MsgOptionTS(thread))
	}
	if broadcast {
		options = append(options, slack.MsgOptionBroadcast())
	}
	_, _, err := a.client.PostMessageContext(ctx, channel, options...)
	return posted{a.reply.Channel, a.reply.TS, a.reply.Message.ThreadTS != ""}, err
}

// update replaces the text and the blocks of a message. It sets parse=none, without which Slack turns bare words into
// links and mentions here.
func (a *slackAPI) update(ctx context.Context, channel, ts string, m slackMessage) error {
	_, _, _, err := a.client.UpdateMessageContext(ctx, channel, ts,
		slack.MsgOptionText(m.text, false), slack.MsgOptionParse(false), slack.MsgOptionBlocks(m.blocks...))
	return err
}

// who asks Slack whom the token belongs to, and returns that for people.
func (a *slackAPI) who(ctx context.Context) (string, error) {
	_, err := a.client.AuthTestContext(ctx)
	switch {
	case err != nil:
		return "", err
	case a.reply.User == "" || a.reply.Team == "":
		return "", errors.New("no answer of Slack: it does not say whom the token belongs to")
	}
	return a.redact.line("as @"+a.reply.User+" in "+a.reply.Team, maxShown), nil
}

// A slackReply is the part that is read of an answer of Slack's API.
type slackReply struct {
	OK      bool   `json:"ok"`
	Error   string `json:"error"`
	Needed  string `json:"needed"` // scope
	Channel string `json:"channel"`
	TS      string `json:"ts"`
	Team    string `json:"team"`
	User    string `json:"user"`
	Message struct {
		ThreadTS string `json:"thread_ts"`
	} `json:"message"`
	Meta struct {
		Messages []string `json:"messages"` // such as which block is wrong
	} `json:"response_metadata"`
}

// readSlackReply reads an answer. Values of another type than Slack documents are left out; what isn't JSON is an empty
// reply.
func readSlackReply(body string) (reply slackReply) {
	err := json.Unmarshal([]byte(body), &reply)
	if _, mistyped := errors.AsType[*json.UnmarshalTypeError](err); err != nil && !mistyped {
		return slackReply{}
	}
	return reply
}

// Do makes a request for slack-go and keeps the reply. slack-go itself reads only that it was a yes: it would take
// {"ok":false} for one, and would fail on a posted message that Slack sends back with something new in it, which would
// then be posted again.
func (a *slackAPI) Do(req *http.Request) (*http.Response, error) {
	r, _, err := a.call(req, func(body string) string {
		a.reply = readSlackReply(body)
		return a.reply.Error
	})
	isChat := strings.Contains(req.URL.Path, "/chat.")
	switch {
	case err != nil:
		return nil, err
	case !a.reply.OK && a.reply.Error != "":
		return nil, a.refusal(a.reply)
	case !a.reply.OK || r.status != http.StatusOK, isChat && !(a.mayKeep(a.reply.Channel) && a.mayKeep(a.reply.TS)):
		return nil, a.notSlack(req, r)
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(`{"ok":true}`))}, nil
}

// call makes a request and returns the response. read extracts the name of Slack's error from the body; known reports
// whether it is one of slackErrors. A status other than 2xx is an error, unless the body has a known error and the
// status does not ask for a retry.
func (a *slackAPI) call(req *http.Request, read func(body string) string) (r response, known bool, err error) {
	req.Header.Set("User-Agent", a.sink.Agent)
	r, err = a.fetch(req, a.redact)
	if err != nil {
		return r, false, err
	}
	a.last = r
	_, known = slackErrors.find(read(r.body))
	class := classOfStatus(r.status)
	switch {
	case r.cut && ended(req.Context()):
		err = noAnswer(req.Context(), origin(req.URL))
	case r.status/100 != 2 && (!known || class == nil):
		_, err = judge(class, r, origin(req.URL), a.redact)
	}
	return r, known, err
}

// mayKeep reports whether an id is valid and holds no long secret, so that it can be stored.
func (a *slackAPI) mayKeep(id string) bool { return validSlackID(id) && !a.redact.repeatsLong(id) }

// validSlackID reports whether s can be the id of a channel or message.
func validSlackID(s string) bool {
	return s != "" && len(s) <= 64 && isVisible(s)
}

// notSlack returns the error for an answer that is not Slack's.
func (a *slackAPI) notSlack(req *http.Request, r response) error {
	text := fmt.Sprintf("%s from %s, but it is no answer of Slack", statusLine(r.status), origin(req.URL))
	if excerpt := a.redact.line(r.body, maxShown); excerpt != "" {
		text += ": " + excerpt
	}
	return errors.New(text)
}

// postHook posts a message to an incoming webhook. Services that are compatible with Slack answer in ways of their own,
// so a status of 2xx is success unless the body is an error of Slack's or a denial.
func (a *slackAPI) postHook(ctx context.Context, m slackMessage) error {
	body, err := compact(struct {
		Text   string        `json:"text"`
		Blocks []slack.Block `json:"blocks,omitempty"`
		Links  bool          `json:"unfurl_links"`
		Media  bool          `json:"unfurl_media"`
	}{m.text, m.blocks, false, false})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.URL = a.hook
	req.Header.Set("Content-Type", "application/json; charset=utf-8")
	var code string
	r, known, err := a.call(req, func(body string) string {
		code = strings.TrimSpace(body)
		if fields := answerFields(body); fields != nil {
			code, _ = fields["error"].(string)
		}
		return code
	})
	switch {
	case err != nil:
		return err
	case known:
		return a.refusal(slackReply{Error: code})
	case isDenial(r.body):
		return r.withRetryAfter(a.notSlack(req, r))
	}
	return nil
}

// A slackError is an error with Slack's name for it.
type slackError struct {
	code string
	error
}

func (e *slackError) Unwrap() error { return e.error }

// hasCode reports whether err is one of Slack's errors in codes, which are separated by spaces.
func hasCode(err error, codes string) bool {
	e, ok := errors.AsType[*slackError](err)
	return ok && slices.Contains(strings.Fields(codes), e.code)
}

// refusal returns the error for an answer that names one, with its class and the remedy.
func (a *slackAPI) refusal(answer slackReply) error {
	code := a.redact.line(answer.Error, 64)
	kind, _ := slackErrors.find(code)
	text := "Slack answered " + code
	if needed := a.redact.line(answer.Needed, 128); needed != "" {
		text += ", needed is " + needed
	}
	if details := a.redact.line(strings.Join(answer.Meta.Messages, "; "), maxShown); details != "" {
		text += " (" + details + ")"
	}
	if kind.remedy != "" && (a.sink.channel != "" || !strings.Contains(kind.remedy, "CHANNEL")) {
		text += ": " + strings.NewReplacer("SECRET", a.sink.secret.place("slack"), "CHANNEL", a.sink.channel).Replace(kind.remedy)
	}
	return a.last.withRetryAfter(&slackError{code, withClass(kind.class, text)})
}

// slackErrorKinds groups Slack's errors by what an operator has to do, which is nothing about the last ones.
type slackErrorKinds []slackErrorKind

type slackErrorKind struct {
	class  error
	remedy string // with SECRET and CHANNEL in place of those of the settings
	codes  string // separated by spaces
}

// find returns the kind of an error. That of an unknown error is the zero value, so that it is retried.
func (all slackErrorKinds) find(code string) (kind slackErrorKind, known bool) {
	if strings.HasPrefix(code, "restricted_action") {
		code = "restricted_action"
	}
	for _, k := range all {
		if slices.Contains(strings.Fields(k.codes), code) {
			return k, true
		}
	}
	return slackErrorKind{}, false
}

var slackErrors = slackErrorKinds{
	{delivery.ErrBlocked, "put a new token into SECRET", "invalid_auth not_authed account_inactive token_revoked " +
		"token_expired not_allowed_token_type bad_token user_removed_from_team"},
	{delivery.ErrBlocked, "make a new incoming webhook and put its URL into SECRET", "no_service no_service_id no_team " +
		"no_active_hooks invalid_token service_disabled"},
	{delivery.ErrBlocked, "give the app the scope chat:write and install it again", "missing_scope no_permission " +
		"no_scopes invalid_scopes"},
	{delivery.ErrBlocked, "invite the app into CHANNEL with /invite", "not_in_channel"},
	{delivery.ErrBlocked, "there is no CHANNEL that the app can see; if it is private, invite the app with /invite",
		"channel_not_found invalid_channel user_not_found"},
	{delivery.ErrBlocked, "the channel is archived; bring it back or choose another", "is_archived channel_is_archived"},
	{delivery.ErrBlocked, "api_url is not the URL of Slack's API", "unknown_method method_deprecated " +
		"deprecated_endpoint insecure_request"},
	{delivery.ErrBlocked, "an administrator of the workspace has to allow it", "restricted_action org_login_required " +
		"ekm_access_denied team_access_not_granted enterprise_is_restricted access_denied accesslimited " +
		"two_factor_setup_required two_factor_required team_disabled user_is_restricted app_missing_action_url " +
		"action_prohibited messages_tab_disabled posting_to_general_channel_denied as_user_not_supported"},
	{delivery.ErrRejected, "", "msg_too_long no_text markdown_text_conflict too_many_attachments invalid_arguments " +
		"invalid_arg_name invalid_array_arg invalid_charset invalid_form_data invalid_post_type missing_post_type " +
		"invalid_json json_not_object missing_charset superfluous_charset invalid_payload " +
		"missing_text_or_fallback_or_attachments"},
	{delivery.ErrRejected, "", blocksErrors},
	{nil, "", "rate_limited ratelimited rollup_error internal_error fatal_error service_unavailable"},
}

// Slack's errors that the sink handles itself: the blocks are refused, so the text is sent alone; the root is lost or
// accepts no replies, so a new root is posted; the root is too old to be edited. If one of lostErrors has another
// reason, posting the new root gets the same error.
const (
	blocksErrors = "invalid_blocks invalid_blocks_format msg_blocks_too_long"
	lostErrors   = "message_not_found thread_not_found cant_update_message channel_not_found is_archived"
	threadErrors = "cannot_reply_to_message restricted_action_non_threadable_channel restricted_action_thread_locked"
	closedErrors = "edit_window_closed"
)

// Slack's limits, in characters unless the comment says otherwise. Texts are cut to them, because Slack refuses a whole
// message if one text is too long.
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
	maxMarkdown   = 12000
)

// parseBlocks parses a JSON array of blocks and cuts it to Slack's limits. Empty blocks are left out.
func parseBlocks(text string) ([]slack.Block, error) {
	d := json.NewDecoder(strings.NewReader(strings.ToValidUTF8(text, "\ufffd")))
	d.UseNumber()
	var blocks []map[string]any
	if err := d.Decode(&blocks); err != nil {
		return nil, fmt.Errorf("is not a JSON array of blocks: %w; put values in with {{json .name}}", err)
	}
	if d.More() {
		return nil, fmt.Errorf("has text after the JSON array of blocks")
	}
	var all []slack.Block
	left := maxBlocksText
	for _, b := range blocks {
		if len(all) == maxBlocks {
			break
		}
		if typ, _ := b["type"].(string); typ == "" || !fitBlock(b, &left) {
			continue
		}
		raw, err := compact(b)
		if err != nil {
			return nil, err
		}
		block, err := slack.BlockFromJSON(string(raw)) // keeps fields that slack-go does not know
		if err != nil {
			return nil, err
		}
		all = append(all, block)
	}
	return all, nil
}

// compact returns v as JSON, with nothing escaped for HTML.
func compact(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// checkBlocks returns the first error that slack-go finds in a JSON array of blocks.
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

// fitBlock cuts the texts of a block, and subtracts their length from left, the characters that all blocks together may
// still hold. It returns false for an empty block.
func fitBlock(b map[string]any, left *int) bool {
	switch b["type"] {
	case "header":
		return fitText(b["text"], maxHeader, left)
	case "section":
		text := fitText(b["text"], maxSection, left)
		if !text {
			delete(b, "text")
		}
		if !fitElement(b["accessory"]) {
			delete(b, "accessory")
		}
		return fitList(b, "fields", maxFields, func(v any) bool { return fitText(v, maxField, left) }) || text
	case "context":
		return fitList(b, "elements", maxElements, func(v any) bool {
			e, _ := v.(map[string]any)
			return e["type"] != "mrkdwn" && e["type"] != "plain_text" || fitText(v, maxField, left)
		})
	case "actions":
		return fitList(b, "elements", maxActions, fitElement)
	case "markdown":
		return fitText(b, maxMarkdown, left)
	}
	return true
}

// fitElement cuts the text of a button. It returns false for a button that leads nowhere.
func fitElement(v any) bool {
	e, ok := v.(map[string]any)
	if !ok {
		return false
	}
	if to, given := e["url"].(string); given && (to == "" || utf8.RuneCountInString(to) > maxLink) {
		return false
	}
	left := maxButton
	return e["type"] != "button" || fitText(e["text"], maxButton, &left)
}

// fitText cuts a text object to n characters, and keeps Slack from turning bare words in it into links and mentions. It
// returns false for an empty one.
func fitText(v any, n int, left *int) bool {
	o, _ := v.(map[string]any)
	text, _ := o["text"].(string)
	text = templates.Cut(text, min(n, *left))
	if strings.TrimSpace(text) == "" {
		return false
	}
	*left -= utf8.RuneCountInString(text)
	o["text"] = text
	if o["type"] == "mrkdwn" && o["verbatim"] == nil {
		o["verbatim"] = true
	}
	return true
}

// fitList keeps the first limit items of a block's list for which fit returns true. If there are none, it removes the
// list and returns false.
func fitList(b map[string]any, key string, limit int, fit func(any) bool) bool {
	list, _ := b[key].([]any)
	var all []any
	for _, item := range list {
		if len(all) < limit && fit(item) {
			all = append(all, item)
		}
	}
	b[key] = all
	if len(all) == 0 {
		delete(b, key)
	}
	return len(all) > 0
}
