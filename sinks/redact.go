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

// A redactor hides the secrets in use wherever they appear in texts from outside, such as network errors and
// destinations' answers, which may repeat what they were sent. The zero value hides nothing. It is for one goroutine at
// a time.
type redactor struct {
	forms   []redaction
	longest int // length of the longest form, in bytes
}

// A redaction is a text to hide, and what is shown in its place.
type redaction struct {
	text        string // in ASCII lower case
	replacement string
	word        bool // only where it is not part of a longer word
}

// hide hides secrets in every form in which they are commonly repeated: as they are, and escaped or encoded for URLs,
// HTML, JSON, Go and base64.
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

// hidePart hides parts of a secret, except plain words and parts of fewer than four bytes, such as the v1 of a path.
func (r *redactor) hidePart(parts ...string) {
	for _, p := range parts {
		if len(p) >= 4 && !isPlain(p) {
			r.hide(p)
		}
	}
}

// plainWords are common words of addresses, headers and settings. They are not hidden: none of them is a secret, and
// without them nobody could understand an answer or the output of a command.
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

// hideHost hides the host of a URL, and shows the settings key it comes from instead: in a URL that lacks a / or an @,
// the secret is part of the host's name. IP addresses, localhost and public hosts hold no secret and are shown.
func (r *redactor) hideHost(u *url.URL, key string) {
	host := u.Hostname()
	if strings.Contains(publicHosts, " "+asciiLower(host)+" ") {
		return
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || ip.Zone() != "") {
		r.add(redaction{host, "[host in " + key + "]", true})
	}
}

// hideURL hides everything in a URL but its scheme and port. key is the settings key it comes from.
func (r *redactor) hideURL(u *url.URL, key string) {
	r.hideHost(u, key)
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

// text returns text with everything replaced that is to be hidden. It ignores ASCII case.
func (r *redactor) text(text string) string {
	lower := asciiLower(text)
	replaced := make([]string, len(text)) // the replacement of each byte, "" for the byte itself
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
				if replaced[j] != hidden { // which wins where two forms overlap
					replaced[j] = f.replacement
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
		case replaced[i] == "":
			b.WriteByte(text[i])
		case i == 0 || replaced[i-1] != replaced[i]:
			b.WriteString(replaced[i])
		}
	}
	return b.String()
}

// isWord reports whether a byte is part of a word. Letters must be in lower case.
func isWord(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c >= utf8.RuneSelf }

// line returns a text from outside in a form that may be shown: one line of printable characters without secrets, at
// most n bytes long. If cut is true, the text is only the beginning of what was sent and may end inside a secret, so
// its end is removed.
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
	text = r.text(strings.Join(strings.Fields(text), " ")) // a removed character may have been inside a secret
	if len(text) <= n {
		return text
	}
	n -= len("…")
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}

// asciiLower returns s with A to Z in lower case. Unlike strings.ToLower it never changes the length.
func asciiLower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}
