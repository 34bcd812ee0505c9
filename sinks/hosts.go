package sinks

import (
	"errors"
	"net"
	"slices"
	"strings"
)

// showHosts adds hosts of the settings, with their ports or without. An empty one is none.
func (r *redactor) showHosts(hosts ...string) {
	for _, host := range hosts {
		host = fold(host)
		if host != "" && !slices.Contains(r.hosts, host) {
			r.hosts = append(r.hosts, host)
		}
	}
}

// isInHost reports whether the part of a text between two places stands there in maxRow characters or more of a host that
// is shown. A secret that is as short as a word of the host is one everywhere else.
func (r *redactor) isInHost(text string, from, to int) bool {
	n := max(to-from, maxRow)
	for at := max(0, to-n); at <= min(from, len(text)-n); at++ {
		if r.isHost(text[at : at+n]) {
			return true
		}
	}
	return false
}

// isHost reports whether a text is in the name of a host that is shown.
func (r *redactor) isHost(text string) bool {
	return slices.ContainsFunc(r.hosts, func(host string) bool {
		return strings.Contains(host, text) || strings.Contains(unmarked(host), text)
	})
}

// isOfNobody reports whether an error is that of a connection that was not made. Nobody has answered then, so that it says
// nothing but what the settings and this machine do: a host, an address, and what failed.
func isOfNobody(err error) bool {
	e, ok := errors.AsType[*net.OpError](err)
	for ok && e.Op != "dial" {
		e, ok = errors.AsType[*net.OpError](e.Err)
	}
	return ok
}
