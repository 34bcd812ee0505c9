package sinks

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/slack-go/slack"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/templates"
)

// slackSettings are the keys of Slack: a bot token with a channel or, with fewer features, an incoming webhook. Secrets
// have four keys; see Value.
type slackSettings struct {
	Token           Secret         `yaml:"token" doc:"bot token with the scope chat:write; needs channel"`
	TokenFile       Path           `yaml:"token_file"`
	TokenEnv        string         `yaml:"token_env"`
	TokenVault      string         `yaml:"token_vault"`
	Channel         string         `yaml:"channel" doc:"name or id of the channel; invite the app into it"`
	WebhookURL      Secret         `yaml:"webhook_url" doc:"incoming webhook, instead of token and channel"`
	WebhookURLFile  Path           `yaml:"webhook_url_file"`
	WebhookURLEnv   string         `yaml:"webhook_url_env"`
	WebhookURLVault string         `yaml:"webhook_url_vault"`
	APIURL          string         `yaml:"api_url" default:"https://slack.com/api/" doc:"address of the Slack API"`
	Mention         *mentionOption `yaml:"mention" doc:"who is mentioned (default: nobody)"`
	Broadcast       []string       `yaml:"broadcast" doc:"changes whose reply also goes to the channel; [] for none (default: see help sinks slack)"`
	RunbookURL      string         `yaml:"runbook_url" doc:"link to a runbook"`
	RunbookURLFile  Path           `yaml:"runbook_url_file"`
	Text            string         `yaml:"text" doc:"text of notifications and of replies in the thread"`
	TextFile        Path           `yaml:"text_file"`
	Blocks          string         `yaml:"blocks" doc:"the message, a JSON array of blocks"`
	BlocksFile      Path           `yaml:"blocks_file"`
	TLS             TLSSettings    `yaml:"tls" doc:"certificates"`
	Proxy           Secret         `yaml:"proxy" doc:"URL of a proxy, or none (default: the environment's)"`
	Insecure        bool           `yaml:"insecure" doc:"send the token or the URL over http to another machine"`
}

// slackTerms: people want the state as it is now.
var slackTerms = delivery.Terms{Timeout: 10 * time.Second, MaxAge: week, Late: delivery.LateLatest, Batch: 1,
	DigestAbove: peopleGroup}

// A slackSink posts to a Slack channel. The first change of an Azure event posts a message, the root. Later changes
// update the root and reply in its thread. With an incoming webhook, each change is a message of its own.
//
// Slack cannot detect a repeated message: if its answer to a post is lost, the message appears twice. All other calls
// can be repeated without effect.
type slackSink struct {
	Host
	caller    *caller
	secret    source // the token, or the webhook's URL
	api       string // URL of the API with a final slash; "" for a webhook
	channel   string // as in the settings
	secure    bool   // the webhook's URL must be https, because the settings have tls
	insecure  bool   // the URL of the webhook or the API may be http
	mention   string
	from      int           // the lowest severity number that mentions
	within    time.Duration // how near an event must be for that
	broadcast []string      // the changes whose reply also goes to the channel; nil for the default
	runbook   runbook
	text      *templates.Template
	blocks    *templates.Template
	turns     *SlackTurns // nil posts without waiting
	now       func() time.Time
}

func openSlack(s slackSettings, h Host) (Opened, error) {
	k := &slackSink{
		Host: h, channel: s.Channel, broadcast: s.Broadcast, insecure: s.Insecure,
		turns: cmp.Or(h.SlackTurns, new(SlackTurns)), now: time.Now,
	}
	var wrong KeyErrors
	wrong.add(k.openAddress(s))
	var a *slackAPI
	var err error
	if len(wrong) == 0 {
		a, err = k.open(nil)
		wrong.add(exceptUnread(err))
	}
	wrong.add(k.openChoices(s), k.openTexts(s))
	k.caller, err = newCaller(s.TLS, s.Proxy, h)
	wrong.add(err)
	if err := wrong.err(); err != nil {
		return Opened{}, err
	}
	secrets := sources{k.secret}
	opened := Opened{Sink: k, Secrets: append(s.TLS.files(), secrets.files()...), Keep: secrets.keep(h)}
	opened.note(a.inClear, noteInClear(k.secret.from()))
	opened.note(true, k.caller.noteProxy(a.to, a.redact))
	opened.note(true, noteMentions("text", s.Text, s.TextFile))
	opened.note(true, noteMentions("blocks", s.Blocks, s.BlocksFile))
	opened.note(k.api == "", "an incoming webhook can neither update a message nor reply in its thread: "+
		"every change is a message of its own; a bot token with a channel can do both")
	return opened, nil
}

// openAddress stores the token or the webhook, and returns errors about keys that belong to the other.
func (k *slackSink) openAddress(s slackSettings) error {
	token := keyedSource("token", s.Token, s.TokenFile, s.TokenEnv, s.TokenVault)
	hook := keyedSource("webhook_url", s.WebhookURL, s.WebhookURLFile, s.WebhookURLEnv, s.WebhookURLVault)
	tls := s.TLS != TLSSettings{}
	var wrong KeyErrors
	wrong.add(token.check(), hook.check())
	wrong.when(token.given() && hook.given(), "webhook_url", "token is given too; expected only one of them")
	if hook.given() {
		const why = "is for a token; an incoming webhook has one channel, and no threads"
		wrong.when(s.Channel != "", "channel", why)
		wrong.when(s.APIURL != "", "api_url", why)
		wrong.when(s.Broadcast != nil, "broadcast", why)
		k.secret, k.secure = hook, tls
		return wrong.err()
	}
	wrong.when(!token.given(), "token", "missing; expected a bot token in token, token_file, token_env or token_vault, or webhook_url")
	wrong.when(token.given() && strings.TrimSpace(s.Channel) == "", "channel",
		`missing; expected a name such as "#ops", in quotes, or an id such as C024BE91L`)
	k.secret, k.api = token, slack.APIURL
	if s.APIURL == "" {
		return wrong.err()
	}
	const otherwise = "is not the URL of an API; expected one such as https://slack.com/api/"
	u, err := parseURL(s.APIURL, otherwise, tls, "http", "https")
	wrong.when(err != nil, "api_url", "%w", err)
	wrong.when(err == nil && (u.User != nil || u.RawQuery != ""), "api_url", otherwise)
	k.api = strings.TrimSuffix(s.APIURL, "/") + "/"
	return wrong.err()
}

// openTexts parses the templates, and tries those of the settings on samples.
func (k *slackSink) openTexts(s slackSettings) error {
	text := templates.SlackText
	if k.api == "" { // other servers take Slack's webhooks too, and show neither blocks nor its times
		text = templates.SlackWhole
	}
	return openTemplates(slackFields,
		templateKey{"text", s.Text, s.TextFile, text, templates.Parse, k.tryText, &k.text},
		templateKey{"blocks", s.Blocks, s.BlocksFile, templates.SlackBlocks, templates.Parse, k.tryBlocks, &k.blocks},
		k.runbook.key(s.RunbookURL, s.RunbookURLFile),
	)
}

func (k *slackSink) tryText(f map[string]any) error {
	if _, err := k.notification(f); err != nil {
		return err
	}
	f["reply"] = true
	_, err := execute(k.text, f)
	return err
}

func (k *slackSink) tryBlocks(f map[string]any) error {
	text, err := execute(k.blocks, f)
	if err == nil {
		_, err = parseBlocks(text)
	}
	if err == nil {
		err = checkBlocks(text)
	}
	return err
}

// open returns a slackAPI with the current secret. fetch replaces the network; nil means the network. Its errors are
// *KeyError and hold no secret. With errUnread there is a slackAPI too, that Slack would not accept.
func (k *slackSink) open(fetch fetcher) (*slackAPI, error) {
	secret, unread := k.secret.read(k.Host)
	if exceptUnread(unread) != nil {
		return nil, unread
	}
	if unread != nil && k.api == "" {
		secret = "https://" + hidden[1:len(hidden)-1]
	}
	var err error
	if fetch == nil && k.caller != nil {
		fetch = k.caller.fetch
	}
	a := &slackAPI{sink: k, redact: k.redactor(), fetch: fetch}
	const otherwise = "is not the URL of an incoming webhook; expected one such as https://hooks.slack.com/services/…"
	switch {
	case k.api == "":
		a.hook, err = parseURL(secret, otherwise, k.secure, "http", "https")
		if err == nil && a.hook.User != nil {
			err = says(otherwise)
		} else if err == nil {
			a.redact.hideURL(a.hook)
		}
		a.to = a.hook
	case strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r == 0x7F }):
		err = says("holds a space, a line break or another control character, which no token does")
	case strings.HasPrefix(secret, "xapp-"), strings.HasPrefix(secret, "https:"):
		err = says("is not a bot token; expected one that begins with xoxb-")
	default:
		a.redact.hide(secret)
		a.client = slack.New(secret, slack.OptionAPIURL(k.api), slack.OptionHTTPClient(a))
		a.to, err = url.Parse(k.api)
	}
	if err != nil {
		return nil, k.secret.wrong(err)
	}
	a.inClear = isExposed(a.to)
	if a.inClear && !k.insecure {
		address := k.secret.from()
		if k.api != "" {
			address = "api_url"
		}
		return nil, errInClear(k.secret.from(), address, "https://")
	}
	return a, unread
}

// Close closes idle connections.
func (k *slackSink) Close() error { return k.caller.Close() }

// Deliver posts the batch: one change, or a group of events in one message.
func (k *slackSink) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	secrets := sources{k.secret}
	err := secrets.load(ctx, k.Host)
	if err != nil {
		return delivery.Answer{}, err
	}
	a, err := k.open(nil)
	if err != nil {
		return delivery.Answer{}, fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
	}
	answer, err := k.deliver(ctx, a, batch)
	secrets.refuse(k.Host, err)
	return answer, err
}

// deliver posts the root, or updates it and replies to it if there is one. Progress, whatever it holds, means that the
// root is up to date already.
func (k *slackSink) deliver(ctx context.Context, a *slackAPI, batch []delivery.Delivery) (delivery.Answer, error) {
	r := k.receipt(batch)
	f := k.fields(batch)
	if k.api == "" || r.TS == "" {
		return k.postRoot(ctx, a, batch, f, r)
	}
	progress, edited := batch[0].Progress, false
	if !r.Group && progress == nil {
		root, err := k.message(f)
		if err != nil {
			return delivery.Answer{}, err
		}
		err = k.attempt(root, func(m slackMessage) error { return a.update(ctx, r.Channel, r.TS, m) })
		switch {
		case hasCode(err, lostErrors):
			return k.postRoot(ctx, a, batch, f, r)
		case hasCode(err, closedErrors):
			k.Log.Warn("cannot edit messages in this workspace; the thread continues below an outdated message", "err", err)
		case err != nil:
			return delivery.Answer{}, err
		}
		progress, edited = []byte("root"), err == nil
	}
	if edited && k.broadcast == nil && saysNothingNew(f) { // the root says it
		return r.answer(r.TS), nil
	}
	f["reply"] = true
	text, err := execute(k.text, f)
	if err != nil {
		return r.answer(""), fmt.Errorf("%w: text: %w", delivery.ErrRejected, err)
	}
	reply := slackMessage{text: templates.Cut(text, maxSlackText)}
	if strings.TrimSpace(reply.text) == "" { // the settings want none
		return r.answer(r.TS), nil
	}
	p, err := k.post(ctx, a, r.Channel, reply, r.TS, k.broadcasts(f))
	switch {
	case hasCode(err, lostErrors+" "+threadErrors):
		return k.postRoot(ctx, a, batch, f, r)
	case err != nil:
		answer := r.answer("")
		answer.Progress = progress
		return answer, err
	case !p.threaded: // the root was deleted, and Slack posted the reply to the channel
		r.Channel, r.TS, r.Group = p.channel, p.ts, len(batch) > 1
	}
	return r.answer(p.ts), nil
}

// postRoot posts a new root. The receipt r then names it, if the batch is about Azure's events.
func (k *slackSink) postRoot(ctx context.Context, a *slackAPI, batch []delivery.Delivery, f map[string]any,
	r slackReceipt) (delivery.Answer, error) {
	f["reply"] = false
	m, err := k.message(f)
	if err != nil {
		return delivery.Answer{}, err
	}
	var p posted
	err = k.attempt(m, func(m slackMessage) (err error) {
		p, err = k.post(ctx, a, k.channel, m, "", false)
		return err
	})
	if err != nil {
		return delivery.Answer{}, err
	}
	if k.api == "" || !isAzure(batch) {
		return delivery.Answer{Status: "ok", ID: p.ts}, nil
	}
	r.To, r.Channel, r.TS, r.Group = k.channel, p.channel, p.ts, len(batch) > 1
	return r.answer(p.ts), nil
}

// post waits for the sink's turn in the channel, and posts a message.
func (k *slackSink) post(ctx context.Context, a *slackAPI, channel string, m slackMessage, thread string,
	broadcast bool) (posted, error) {
	place := k.api + k.channel // the name in the settings: the same for all posts of the sink
	if a.hook != nil {
		place = a.hook.String()
	}
	if err := k.turns.wait(ctx, place); err != nil {
		return posted{}, err
	}
	if a.hook != nil {
		return posted{}, a.postHook(ctx, m)
	}
	return a.post(ctx, channel, m, thread, broadcast)
}

// attempt calls call with a message and, if Slack refuses its blocks, again with its text alone.
func (k *slackSink) attempt(m slackMessage, call func(slackMessage) error) error {
	err := call(m)
	if len(m.blocks) > 0 && hasCode(err, blocksErrors) {
		k.Log.Warn("Slack refuses the blocks of a message; sending its text only", "err", err)
		m.blocks = nil
		err = call(m)
	}
	return err
}

// slackFields are the fields that only the templates of Slack have.
var slackFields = map[string]Field{
	"reply":     {"whether this text is a reply in the thread, not the notification of the root message", false},
	"mention":   {"whom the message mentions, such as <!here>; else empty", ""},
	"newlyNear": {"whether the event was further away than mention.within before this message, and is not now", false},
}

// fields returns the fields for the templates.
func (k *slackSink) fields(batch []delivery.Delivery) map[string]any {
	f := k.Host.fields(batch, k.now())
	addFields(f, slackFields)
	for i, one := range f["group"].([]map[string]any) {
		left, _ := one["left"].(float64)
		if k.mention != "" && severity(one) >= k.from && left <= k.within.Seconds() {
			f["mention"] = k.mention
			f["newlyNear"] = f["newlyNear"] == true || k.newlyNear(batch[i].Event, one)
		}
	}
	k.runbook.put(f, k.Log)
	return f
}

// message returns the root for the fields. If the template of the blocks fails, it logs that, and the root has only its
// text.
func (k *slackSink) message(f map[string]any) (slackMessage, error) {
	text, err := k.notification(f)
	if err != nil {
		return slackMessage{}, fmt.Errorf("%w: text: %w", delivery.ErrRejected, err)
	}
	m := slackMessage{text: text}
	blocks, err := execute(k.blocks, f)
	if err == nil {
		m.blocks, err = parseBlocks(blocks)
	}
	if err != nil {
		k.Log.Warn("cannot render the blocks of a message; sending its text only", "err", err)
	}
	return m, nil
}

// notification returns the text of a root, which Slack shows in notifications and screen readers read. An empty one is
// an error.
func (k *slackSink) notification(f map[string]any) (string, error) {
	text, err := execute(k.text, f)
	text = templates.Cut(strings.TrimSpace(text), maxSlackText)
	if err == nil && text == "" {
		err = errors.New("the template gives no text for the notification")
	}
	return text, err
}

// broadcasts reports whether a reply also goes to the channel, because updates and replies in a thread notify nobody.
func (k *slackSink) broadcasts(f map[string]any) bool {
	return slices.ContainsFunc(f["group"].([]map[string]any), func(one map[string]any) bool {
		return notifies(one, k.broadcast)
	})
}

// notifies reports whether a change deserves a notification: whether chosen lists it or, if chosen is nil, whether
// somebody may have to act on it. Nobody has to act on a Freeze that is known to last at most 10 s.
func notifies(f map[string]any, chosen []string) bool {
	change, _ := f["change"].(string)
	data, _ := f["data"].(map[string]any)
	canceled := change == string(imds.Vanished) && data["outcome"] == string(cloudevent.OutcomeCanceled)
	if chosen != nil {
		return slices.Contains(chosen, change) || canceled && slices.Contains(chosen, "canceled")
	}
	if isShort(f) {
		return false
	}
	switch change {
	case string(imds.Scheduled), string(imds.Started), "reminder":
		return true
	case string(imds.Approved):
		approval, _ := data["approval"].(map[string]any)
		return oneOf[any](approval["result"], cloudevent.ResultWithheld, cloudevent.ResultPromised)
	case string(imds.Updated):
		changed, _ := data["changed"].([]any)
		return slices.ContainsFunc(changed, func(field any) bool {
			return oneOf[any](field, "NotBefore", "EventType", "Resources")
		})
	}
	return canceled
}

// Connect asks Slack whom the token belongs to. With an incoming webhook it only connects to the host, because nothing
// but a message shows whether Slack accepts the rest of the URL.
func (k *slackSink) Connect(ctx context.Context) (string, error) {
	if err := (sources{k.secret}).load(ctx, k.Host); err != nil {
		return "", err
	}
	a, err := k.open(nil)
	if err != nil {
		return "", fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
	}
	if k.api != "" {
		return a.who(ctx)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, origin(a.hook)+"/", nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("User-Agent", k.Agent)
	r, err := a.fetch(req, a.redact)
	if err != nil {
		return "", err
	}
	if r.status == http.StatusProxyAuthRequired {
		_, err := judge(classOfStatus(r.status), r, origin(a.hook), a.redact)
		return "", err
	}
	return "reached " + origin(a.hook) + "; whether it knows the webhook only a message shows", nil
}

// Render returns the requests that Deliver would make if Slack accepted all of them. Secrets are hidden.
func (k *slackSink) Render(d delivery.Delivery) (string, error) {
	var b strings.Builder
	a, err := k.open(func(req *http.Request, redact *redactor) (response, error) { return k.show(&b, req, redact) })
	if exceptUnread(err) != nil {
		return "", err
	}
	shown := *k
	shown.turns = nil
	_, err = shown.deliver(context.Background(), a, []delivery.Delivery{d})
	return b.String(), err
}

// show writes a request to b, and returns the response of a Slack that accepts it.
func (k *slackSink) show(b *strings.Builder, req *http.Request, redact *redactor) (response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return response{}, err
	}
	address, answer := origin(req.URL)+"/"+hidden, "ok"
	var shown any = json.RawMessage(body)
	if k.api != "" {
		form, _ := url.ParseQuery(string(body)) // slack-go made it, and the blocks
		values := make(map[string]any, len(form))
		for name := range form {
			values[name] = form.Get(name)
		}
		values["token"] = hidden
		if form.Has("blocks") {
			var list any // decoded, so that it is shown without the escapes of JSON
			_ = json.Unmarshal([]byte(form.Get("blocks")), &list)
			values["blocks"] = list
		}
		address, shown = req.URL.String(), values
		answer = `{"ok":true,"channel":"C0","ts":"0.0","message":{"thread_ts":"0.0"}}`
	}
	if b.Len() > 0 {
		b.WriteString("\n")
	}
	fmt.Fprintf(b, "%s %s\n", req.Method, address)
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return response{status: http.StatusOK, body: answer}, enc.Encode(shown)
}
