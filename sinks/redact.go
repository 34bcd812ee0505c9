package sinks

import (
	"encoding/base64"
	"encoding/json"
	"html"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A redactor hides the secrets in use in texts from outside, such as network errors and destinations' answers, which
// may repeat what they were sent.
type redactor struct {
	forms   []redaction
	longest int // of the forms
}

// A redaction is a text to hide.
type redaction struct {
	text    string // in ASCII lower case
	instead string
	word    bool // not where it is part of a longer word
}

// hide hides secrets in every form in which they commonly come back.
func (r *redactor) hide(secrets ...string) {
	for _, s := range secrets {
		if s == "" {
			continue
		}
		raw := []byte(s)
		inJSON, _ := json.Marshal(s) // a string always can be
		forms := []string{s, url.PathEscape(s), url.QueryEscape(s), html.EscapeString(s),
			base64.RawStdEncoding.EncodeToString(raw), base64.RawURLEncoding.EncodeToString(raw)} // they begin the padded forms
		for _, quoted := range []string{strconv.Quote(s), strconv.QuoteToASCII(s), string(inJSON)} {
			forms = append(forms, quoted[1:len(quoted)-1])
		}
		for _, f := range forms {
			r.add(redaction{f, hidden, false})
		}
	}
}

func (r *redactor) add(f redaction) {
	f.text = asciiLower(f.text)
	r.forms = append(r.forms, f)
	r.longest = max(r.longest, len(f.text))
}

// hidePart hides parts of a secret, but for short ones, such as the v1 of a path, and plain words.
func (r *redactor) hidePart(parts ...string) {
	for _, p := range parts {
		if len(p) >= 4 && !isPlain(p) {
			r.hide(p)
		}
	}
}

// plainWords are common words of addresses, headers and settings. As secrets they would protect nothing, and without
// them nobody could read an answer or the output of a command.
const plainWords = " access_token action actions alert alertmanager alerts api-version api_key apikey application " +
	"auto automations azure basic bearer callback callbacks channel channels chat client code collector compat " +
	"count create data debug default deliveries dev development direct disabled dispatches email enabled enqueue " +
	"error event events executions export false file forewarn format forms generic github gitlab global group " +
	"groups hook hooks http https import inbound incidents incoming incomingwebhook index info ingest input " +
	"instances integration integrations invoke jobs json launch live local localhost log login logs main " +
	"maintenance manual message messages metrics mode monitor monitoring name nodes none notification " +
	"notifications notify null ops paths ping plain post powerautomate priority prod production project projects " +
	"provider providers publish push query queue queues rawdata receive receiver receivers records region report " +
	"repos resource rest room rooms route routes rules run rundeck runs scope send sendmessage server service " +
	"services signature sink source spaces stage staging state status stream streams subscriptions system tags " +
	"team teams telemetry tenant test testing text thread token topic topics trace trigger triggers true type " +
	"user users version virtual warn warning webhook webhookb2 webhooks workflow workflows "

// isPlain reports whether a text consists of plain words and versions such as v1.
func isPlain(text string) bool {
	for word := range strings.FieldsFuncSeq(asciiLower(text),
		func(r rune) bool { return strings.ContainsRune("/?&=;:, .", r) }) {
		version := len(word) < 4 && word[0] == 'v'
		if !version && !strings.Contains(plainWords, " "+word+" ") {
			return false
		}
	}
	return true
}

// publicHosts are hosts that everybody uses.
const publicHosts = " ntfy.sh slack.com hooks.slack.com events.pagerduty.com events.eu.pagerduty.com hc-ping.com "

// hideHost hides the host of a URL and shows which setting has it: without its / or @, a URL has its secret in the name
// of the host. An address or a public host holds no secret.
func (r *redactor) hideHost(u *url.URL, where string) {
	host := u.Hostname()
	if strings.Contains(publicHosts, " "+asciiLower(host)+" ") {
		return
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || ip.Zone() != "") {
		r.add(redaction{host, "[host in " + where + "]", true})
	}
}

// hideURL hides all of a URL but its scheme and port; where is the setting that has it.
func (r *redactor) hideURL(u *url.URL, where string) {
	r.hideHost(u, where)
	r.hidePart(u.Path, u.EscapedPath(), u.RequestURI(), u.RawQuery, u.Fragment)
	r.hidePart(strings.Split(u.Path, "/")...)
	r.hidePart(strings.Split(u.EscapedPath(), "/")...)
	for name, values := range u.Query() {
		r.hidePart(name)
		r.hidePart(values...)
	}
	if u.User != nil {
		password, _ := u.User.Password()
		r.hidePart(u.User.String())
		r.hideBasic(u.User.Username(), password)
	}
}

// hideHeader hides the value of a header and its parts, such as the token after Bearer and each cookie.
func (r *redactor) hideHeader(value string) {
	r.hidePart(value)
	r.hidePart(strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(" \t,;=", r) })...)
	if scheme, code, _ := strings.Cut(value, " "); strings.EqualFold(scheme, "basic") {
		plain, _ := base64.StdEncoding.DecodeString(code)
		username, password, _ := strings.Cut(string(plain), ":")
		r.hideBasic(username, password)
	}
}

// hideBasic hides a user name and a password, alone and as they are sent.
func (r *redactor) hideBasic(username, password string) {
	r.hide(password)
	r.hidePart(username)
	r.hide(base64.StdEncoding.EncodeToString([]byte(username + ":" + password)))
}

// text returns text with everything replaced that is to be hidden, in any case.
func (r *redactor) text(text string) string {
	lower := asciiLower(text)
	instead := make([]string, len(text)) // of each byte, "" for itself
	found := false
	for _, f := range r.forms {
		for from := 0; ; {
			i := strings.Index(lower[from:], f.text)
			if i < 0 {
				break
			}
			start, end := from+i, from+i+len(f.text)
			from = start + 1
			if f.word && (start > 0 && isWord(lower[start-1]) || end < len(lower) && isWord(lower[end])) {
				continue
			}
			found = true
			for j := start; j < end; j++ {
				if instead[j] != hidden { // which counts where both are
					instead[j] = f.instead
				}
			}
		}
	}
	if !found {
		return text
	}
	var b strings.Builder
	for i := range len(text) {
		switch {
		case instead[i] == "":
			b.WriteByte(text[i])
		case i == 0 || instead[i-1] != instead[i]:
			b.WriteString(instead[i])
		}
	}
	return b.String()
}

// isWord reports whether a byte in lower case is part of a word.
func isWord(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c >= utf8.RuneSelf }

// line returns a text from outside as it may be shown: without secrets, one line of printable characters, at most n
// bytes. cut says that text is only the beginning of what was sent, and may end inside a secret.
func (r *redactor) line(text string, cut bool, n int) string {
	text = r.text(text)
	if cut {
		text = text[:max(0, len(text)-r.longest)]
	}
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsPrint(r) && r != utf8.RuneError:
			return r
		}
		return -1
	}, text)
	text = r.text(strings.Join(strings.Fields(text), " ")) // what was taken away may have stood inside a secret
	if len(text) <= n {
		return text
	}
	n -= len("…")
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}

func asciiLower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}
