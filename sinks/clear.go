package sinks

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// errInClear returns the error for credentials that anybody between here and the destination could read. It is about the
// address, because that is what has to change; scheme is what an address that is encrypted begins with.
func errInClear(credentials, address string, scheme Own) error {
	var what any = Own("")
	if credentials != address {
		what = Own(credentials + " ")
	}
	if strings.HasPrefix(credentials, "headers.") { // whose name may be anything
		what = credentials + " "
	}
	return &KeyError{address, says("%swould be sent unencrypted; expected an address that begins with %s, "+
		"or insecure: true beside it", what, scheme)}
}

// noteInClear returns the note about settings that send credentials unencrypted on purpose; key is that of the
// credentials.
func noteInClear(key string) string {
	return "insecure: true: " + key + " is sent unencrypted, and anybody on the way can read it"
}

// isExposed reports whether anybody on the way can read what is sent to an address of HTTP.
func isExposed(u *url.URL) bool { return u.Scheme == "http" && !isLocal(u.Hostname()) }

// isLocal reports whether a host is this machine.
func isLocal(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// harmlessHeaders are the headers that carry no credentials: those of RFC 9110 that describe the request, those of
// tracing, and those that format a notification of ntfy. Any other header may carry some.
var harmlessHeaders = []string{
	"Accept", "Accept-Charset", "Accept-Encoding", "Accept-Language", "Cache-Control", "Content-Language", "Date",
	"From", "Host", "Max-Forwards", "Origin", "Pragma", "Prefer", "Referer", "User-Agent",
	"Traceparent", "X-Correlation-Id", "X-Request-Id",
	"Icon", "Markdown", "Priority", "Tags", "Title", "X-Icon", "X-Markdown", "X-Priority", "X-Tags", "X-Title",
}

// isCredential reports whether a header may carry credentials: its value comes from a file or variable, or its name is
// not one of harmlessHeaders. A template does only if it holds more than words itself.
func (s source) isCredential() bool {
	if s.open || s.isTemplate() && isWords(withoutActions(s.Text.plain())) {
		return false
	}
	return s.Text.text == nil || !slices.Contains(harmlessHeaders, http.CanonicalHeaderKey(s.name))
}

// MayBeSecret reports whether the value of a secret key of the settings can really hold a secret. name is the header's or
// the variable's if the key has a map of them. Of addresses it is the user, the query, and what is no word in the path.
func MayBeSecret(key, name, text string) bool {
	switch key {
	case "url", "webhook_url", "proxy":
		return text != "none" && !isPublicAddress(text)
	case "headers":
		return !slices.Contains(harmlessHeaders, http.CanonicalHeaderKey(name))
	case "env":
		return !isWords(text)
	}
	return true
}

// isPublicAddress reports whether an address, or each in a list with commas, holds nothing that can be secret.
func isPublicAddress(text string) bool {
	for address := range strings.SplitSeq(text, ",") {
		address = strings.TrimSpace(address)
		if !strings.Contains(address, "://") {
			address = "nats://" + address // as a list of servers may be
		}
		u, err := url.Parse(address)
		if err != nil || u.Host == "" || u.User != nil || u.RawQuery+u.Fragment != "" {
			return false
		}
		for part := range strings.SplitSeq(u.Path, "/") {
			if !isWords(part) && !isPathWord(part) {
				return false
			}
		}
	}
	return true
}

// noteProxy returns the note about a proxy that gets its password unencrypted, or "". That is not refused: most proxies
// are used so, and their operators know it. The proxy's credentials are then known to redact.
func (c *caller) noteProxy(to *url.URL, redact *redactor) string {
	p, err := c.proxyOf(&http.Request{URL: to}, redact)
	if err != nil || p == nil || p.User == nil || p.Scheme == "https" || isLocal(p.Hostname()) {
		return ""
	}
	return c.where + " has a user: its password is sent unencrypted, and anybody on the way to the proxy can read it"
}
