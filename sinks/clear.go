package sinks

import (
	"errors"
	"net"
	"net/http"
	"net/url"
)

// errInClear refuses credentials that anybody between here and the destination could read.
var errInClear = errors.New("would be sent unencrypted; expected an address that begins with https, or with tls, " +
	"or insecure: true beside it")

// noteInClear is what check says of settings that accept it; key is the credentials'.
func noteInClear(key string) string {
	return "insecure: true: " + key + " is sent unencrypted, and anybody on the way can read it"
}

// isExposed says whether anybody on the way can read what is sent to an address of HTTP.
func isExposed(u *url.URL) bool { return u.Scheme == "http" && !isLocal(u.Hostname()) }

// isLocal says whether a host is this machine, so that nobody is on the way.
func isLocal(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// isCredential says whether a header is there to say who asks. Any other may hold a key too, or only the name of a team:
// it counts when its value is kept apart from the settings.
func (h headerSource) isCredential() bool {
	return h.Text.text == nil || oneOf(http.CanonicalHeaderKey(h.name), "Authorization", "Cookie")
}
