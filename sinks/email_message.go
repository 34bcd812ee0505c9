package sinks

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"unicode"

	gomail "github.com/wneessen/go-mail"

	"forewarn/bridge/delivery"
)

const (
	maxHeadline = 200       // characters; a phone shows fewer
	maxMailPart = 256 << 10 // bytes of a part
)

// A mailText is what a mail says.
type mailText struct{ subject, text, html string }

// parts is what the templates make of fields.
func (m *email) parts(f map[string]any) (t mailText, err error) {
	if t.subject, err = m.subjectOf(f); err != nil {
		return t, err
	}
	if t.text, err = execute(m.text, f); err != nil {
		return t, err
	}
	if t.html, err = execute(m.html, f); err != nil {
		return t, err
	}
	t.text, t.html = bounds(t.text), bounds(t.html)
	return t, nil
}

// subjectOf is the subject on one line.
func (m *email) subjectOf(f map[string]any) (string, error) {
	subject, err := execute(m.subject, f)
	if err != nil {
		return "", err
	}
	if subject = oneLine(subject, maxHeadline); subject == "" {
		return "", errors.New("the subject is empty")
	}
	return subject, nil
}

// oneLine is s without what breaks a header or turns its letters around, and at most n characters.
func oneLine(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsPrint(r) && r != unicode.ReplacementChar:
			return r
		}
		return -1
	}, s)
	runes := []rune(strings.Join(strings.Fields(s), " "))
	if len(runes) > n {
		runes = append(runes[:n-1], '…')
	}
	return string(runes)
}

// bounds is s as UTF-8 of at most maxMailPart bytes.
func bounds(s string) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "\ufffd")
	if len(s) <= maxMailPart {
		return s
	}
	return strings.ToValidUTF8(s[:maxMailPart], "") + "\n…\n"
}

// token is s with nothing in it that an identifier of a mail cannot hold.
func token(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x80 && (unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-') {
			return r
		}
		return '-'
	}, s[:min(len(s), 200)])
}

// compose makes the mail. Nothing of it depends on chance, and only its Date on the clock.
func (m *email) compose(batch []delivery.Delivery, id string) ([]byte, error) {
	f := fields(batch, m.zone, m.now())
	parts, err := m.parts(f)
	if err != nil {
		return nil, err
	}
	msg := gomail.NewMsg(gomail.WithNoDefaultUserAgent(), gomail.WithEncoding(gomail.EncodingQP), gomail.WithCharset(gomail.CharsetUTF8))
	sum := sha256.Sum256([]byte(id + parts.text + parts.html))
	msg.SetBoundary("forewarn-" + hex.EncodeToString(sum[:16])) // which no part can hold, as it is made of them
	msg.FromMailAddress(&m.from)
	for _, to := range m.to {
		msg.AddToMailAddress(&to)
	}
	ce := batch[0].Event
	msg.Subject(parts.subject)
	msg.SetDateWithValue(m.now())
	msg.SetMessageIDWithValue(id)
	if isAzure(batch) && len(batch) == 1 {
		thread := "<" + m.threadID(ce.Subject()) + ">"
		msg.SetGenHeader("In-Reply-To", thread)
		msg.SetGenHeader("References", thread)
		msg.SetGenHeader("X-Forewarn-Event", token(ce.Subject()))
	}
	msg.SetGenHeader("X-Forewarn-Type", oneLine(ce.Type(), 100))
	msg.SetGenHeader("Auto-Submitted", "auto-generated") // RFC 3834: nobody's absence note is to answer
	msg.SetGenHeader("X-Auto-Response-Suppress", "All")  // the same for Exchange
	msg.SetGenHeader("List-Id", "forewarn <"+strings.ToLower(token(m.name))+".forewarn."+m.domain()+">")
	if severity, _ := f["severitynumber"].(int); severity >= 17 && f["test"] != true {
		msg.SetImportance(gomail.ImportanceHigh)
	}
	msg.SetBodyString(gomail.TypeTextPlain, parts.text)
	msg.AddAlternativeString(gomail.TypeTextHTML, parts.html)
	var b bytes.Buffer
	if _, err := msg.WriteTo(&b); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
