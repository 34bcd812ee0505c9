package sinks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"forewarn/bridge/delivery"
)

// slackAPI are the calls of Slack that the sink makes, with the credentials of one attempt. slack-go knows what blocks
// are; its client is left out, because the linker keeps all of its hundreds of methods, and because it takes {"ok":false}
// for success and an answer with a block that it does not know for a failure.
type slackAPI struct {
	url    string // of the API, with a slash at its end
	token  string
	hook   *url.URL // instead of url and token
	fetch  func(*http.Request, *veil) (response, error)
	veil   *veil
	agent  string
	remedy func(code string) string // what the operator can do about an error of Slack

	inClear bool // anybody on the way can read the secret
}

// slackMessage is what a message shows.
type slackMessage struct {
	text   string
	blocks []json.RawMessage
}

// posted is where Slack keeps a message.
type posted struct {
	channel, ts string
	threaded    bool
}

// post posts a message, into the thread of another if that is given.
func (a *slackAPI) post(ctx context.Context, channel string, m slackMessage, thread string, broadcast bool) (posted, error) {
	form, err := m.form(channel)
	if err != nil {
		return posted{}, err
	}
	form.Set("unfurl_links", "false")
	form.Set("unfurl_media", "false")
	if thread != "" {
		form.Set("thread_ts", thread)
	}
	if broadcast {
		form.Set("reply_broadcast", "true")
	}
	r, err := a.call(ctx, "chat.postMessage", form)
	var message struct {
		ThreadTS string `json:"thread_ts"`
	}
	_ = json.Unmarshal(r.Message, &message) // says only in which thread it is
	return posted{r.Channel, r.TS, message.ThreadTS != ""}, err
}

// update makes a message show something else. Without blocks it takes away those that it had.
func (a *slackAPI) update(ctx context.Context, channel, ts string, m slackMessage) error {
	form, err := m.form(channel)
	if err != nil {
		return err
	}
	if len(m.blocks) == 0 {
		form.Set("blocks", "[]")
	}
	form.Set("ts", ts)
	_, err = a.call(ctx, "chat.update", form)
	return err
}

// who says whom the token belongs to.
func (a *slackAPI) who(ctx context.Context) (string, error) {
	r, err := a.call(ctx, "auth.test", url.Values{})
	if err != nil {
		return "", err
	}
	if r.User == "" || r.Team == "" {
		return "", errors.New("no answer of Slack: it does not say whom the token belongs to")
	}
	return a.veil.line("as @"+r.User+" in "+r.Team, false, 200), nil
}

func (m slackMessage) form(channel string) (url.Values, error) {
	form := url.Values{"channel": {channel}, "text": {m.text}}
	if len(m.blocks) > 0 {
		blocks, err := compact(m.blocks)
		if err != nil {
			return nil, err
		}
		form.Set("blocks", string(blocks))
	}
	return form, nil
}

// call calls a method of the API. It gives an answer only when Slack did what it was asked.
func (a *slackAPI) call(ctx context.Context, method string, form url.Values) (slackReply, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url+method, strings.NewReader(form.Encode()))
	if err != nil {
		return slackReply{}, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Authorization", "Bearer "+a.token)
	req.Header.Set("User-Agent", a.agent)
	r, err := a.fetch(req, a.veil)
	if err != nil {
		return slackReply{}, err
	}
	var reply slackReply
	if json.Unmarshal([]byte(r.body), &reply) != nil {
		reply = slackReply{} // no answer of Slack's
	}
	chat := strings.HasPrefix(method, "chat.")
	if r.status != http.StatusOK || !reply.OK || chat && (!a.mayKeep(reply.Channel) || !a.mayKeep(reply.TS)) {
		return slackReply{}, a.judge(req, r, reply)
	}
	return reply, nil
}

// postHook posts a message to an incoming webhook.
func (a *slackAPI) postHook(ctx context.Context, m slackMessage) error {
	body, err := compact(struct {
		Text   string            `json:"text"`
		Blocks []json.RawMessage `json:"blocks,omitempty"`
		Links  bool              `json:"unfurl_links"`
		Media  bool              `json:"unfurl_media"`
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
	req.Header.Set("User-Agent", a.agent)
	r, err := a.fetch(req, a.veil)
	if err != nil {
		return err
	}
	text := strings.TrimSpace(r.body)
	if r.status == http.StatusOK && text == "ok" {
		return nil
	}
	if strings.Trim(text, "abcdefghijklmnopqrstuvwxyz_") != "" || len(text) > 64 {
		text = ""
	}
	return a.judge(req, r, slackReply{Error: text})
}

// slackReply is what is read of an answer of Slack's API.
type slackReply struct {
	OK      bool            `json:"ok"`
	Error   string          `json:"error,omitempty"`
	Needed  string          `json:"needed,omitempty"` // scope
	Channel string          `json:"channel,omitempty"`
	TS      string          `json:"ts,omitempty"`
	Team    string          `json:"team,omitempty"`
	User    string          `json:"user,omitempty"`
	Message json.RawMessage `json:"message,omitempty"`
	Meta    json.RawMessage `json:"response_metadata,omitempty"`
}

// mayKeep says whether an id can be one, and holds nothing that nobody may see.
func (a *slackAPI) mayKeep(id string) bool { return validSlackID(id) && a.veil.over(id) == id }

// validSlackID says whether something can be the id of a channel or message.
func validSlackID(s string) bool {
	return s != "" && len(s) <= 64 && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7F })
}

// slackError is an error that Slack has a name for.
type slackError struct {
	code  string
	class error // nil for try again
	text  string
}

func (e *slackError) Error() string { return e.text }
func (e *slackError) Unwrap() error { return e.class }

// judge says what it means that Slack did not do what it was asked.
func (a *slackAPI) judge(req *http.Request, r response, reply slackReply) error {
	if ended := context.Cause(req.Context()); ended != nil && r.cut {
		return fmt.Errorf("no answer from %s: %w", a.veil.over(origin(req.URL)), ended)
	}
	code := reply.Error
	class, known := classOfSlack(code)
	if r.status < 200 || r.status > 299 {
		_, err := judge(r, origin(req.URL), a.veil)
		if !known || classOfStatus(r.status) == nil { // what a busy Slack says is of no weight
			return err
		}
	}
	if code == "" {
		text := fmt.Sprintf("%s from %s, but it is no answer of Slack", statusLine(r.status), a.veil.over(origin(req.URL)))
		if excerpt := a.veil.line(r.body, r.cut, 200); excerpt != "" {
			text += ": " + excerpt
		}
		return errors.New(text)
	}
	code = a.veil.line(code, false, 64)
	text := "Slack answered " + code
	if needed := a.veil.line(reply.Needed, false, 100); needed != "" {
		text += ", needed is " + needed
	}
	if why := a.veil.line(strings.Join(reply.messages(), "; "), false, 200); why != "" {
		text += " (" + why + ")"
	}
	if remedy := a.remedy(code); remedy != "" {
		text += ": " + remedy
	}
	var err error = &slackError{code, class, say(class, text).Error()}
	if after, ok := retryAfter(r.header.Get("Retry-After"), sentAt(r.header)); ok {
		err = &delivery.RetryAfter{After: after, Err: err}
	}
	return err
}

// messages are what Slack says beside an error, such as which block is wrong.
func (r slackReply) messages() []string {
	var meta struct {
		Messages []string `json:"messages"`
	}
	_ = json.Unmarshal(r.Meta, &meta) // of no weight
	return meta.Messages
}

// Slack's errors by what has to be done. What is in none of them passes by itself, or nobody knows.
var (
	tokenErrors = []string{"invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired", "not_allowed_token_type",
		"bad_token", "user_removed_from_team"}
	teamErrors = []string{"org_login_required", "ekm_access_denied", "team_access_not_granted", "enterprise_is_restricted", "access_denied",
		"accesslimited", "two_factor_setup_required", "two_factor_required", "team_disabled", "user_is_restricted", "app_missing_action_url",
		"action_prohibited", "messages_tab_disabled", "posting_to_general_channel_denied", "as_user_not_supported"}
	scopeErrors   = []string{"missing_scope", "no_permission", "no_scopes", "invalid_scopes"}
	memberErrors  = []string{"not_in_channel"}
	unknownErrors = []string{"channel_not_found", "invalid_channel", "user_not_found"}
	archiveErrors = []string{"is_archived", "channel_is_archived"}
	hookErrors    = []string{"no_service", "no_service_id", "no_team", "no_active_hooks", "invalid_token", "service_disabled"}
	addressErrors = []string{"unknown_method", "method_deprecated", "deprecated_endpoint", "insecure_request"}

	messageErrors = []string{"msg_too_long", "no_text", "markdown_text_conflict", "too_many_attachments", "invalid_arguments",
		"invalid_arg_name", "invalid_array_arg", "invalid_charset", "invalid_form_data", "invalid_post_type", "missing_post_type",
		"invalid_json", "json_not_object", "missing_charset", "superfluous_charset", "invalid_payload", "missing_text_or_fallback_or_attachments"}
	blocksErrors = []string{"invalid_blocks", "invalid_blocks_format", "msg_blocks_too_long"}
)

// classOfSlack says what an error of Slack means; known is false for one that is not in the lists.
func classOfSlack(code string) (class error, known bool) {
	for _, list := range [][]string{tokenErrors, teamErrors, scopeErrors, memberErrors, unknownErrors, archiveErrors, hookErrors, addressErrors} {
		if slices.Contains(list, code) {
			return delivery.ErrBlocked, true
		}
	}
	if strings.HasPrefix(code, "restricted_action") {
		return delivery.ErrBlocked, true
	}
	if slices.Contains(messageErrors, code) || slices.Contains(blocksErrors, code) {
		return delivery.ErrRejected, true
	}
	return nil, false
}

// hasCode says whether Slack answered one of these errors.
func hasCode(err error, codes ...string) bool {
	e, ok := errors.AsType[*slackError](err)
	return ok && slices.Contains(codes, e.code)
}
