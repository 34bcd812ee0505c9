package sinks

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
)

// errInClear refuses credentials that anybody between here and the destination could read.
var errInClear = errors.New("would be sent unencrypted; expected an address that begins with https, or with tls, " +
	"or insecure: true beside it")

// noteInClear is what check says of settings that accept it; key is the credentials'.
func noteInClear(key string) string {
	return "insecure: true: " + key + " is sent unencrypted, and anybody on the way can read it"
}

// isExposed reports whether anybody on the way can read what is sent to an address of HTTP.
func isExposed(u *url.URL) bool { return u.Scheme == "http" && !isLocal(u.Hostname()) }

// isLocal reports whether a host is this machine, so that nobody is on the way.
func isLocal(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// harmless are the headers that say nothing of who asks: those of RFC 9110 about what is asked for, those of tracing,
// and those that make a notification of ntfy look better. No list of the others would be complete.
var harmless = []string{
	"Accept", "Accept-Charset", "Accept-Encoding", "Accept-Language", "Cache-Control", "Content-Language", "Date",
	"From", "Host",
	"Max-Forwards", "Origin", "Pragma", "Prefer", "Referer", "User-Agent",
	"Traceparent", "X-Correlation-Id", "X-Request-Id",
	"Icon", "Markdown", "Priority", "Tags", "Title", "X-Icon", "X-Markdown", "X-Priority", "X-Tags", "X-Title",
}

// isCredential reports whether a header may be there to say who asks: its value is kept apart from the settings, or
// nothing is known of it.
func (h namedSource) isCredential() bool {
	return h.Text.text == nil || !slices.Contains(harmless, http.CanonicalHeaderKey(h.name))
}

// noteProxy reports whether the way to an address leads through a proxy that is shown a password unencrypted, "" if
// not. That is how most proxies are reached, and whoever runs one knows it, so nothing is refused.
func (c *caller) noteProxy(to *url.URL) string {
	if c.proxy == nil {
		return ""
	}
	p, err := c.proxy(&http.Request{URL: to})
	if err != nil || p == nil || p.User == nil || p.Scheme == "https" || isLocal(p.Hostname()) {
		return ""
	}
	return c.where + " has a user: its password is sent unencrypted, and anybody on the way to the proxy can read it"
}
