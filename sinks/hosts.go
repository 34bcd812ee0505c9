package sinks

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// inPlaceOfHost stands where a host was taken out of a text. It is of letters that no secret has, so that they are searched
// as others are, and longer than maxEscape, so that what stands around it doesn't become one.
var inPlaceOfHost = strings.Repeat("\u16dc", maxEscape)

// showHosts adds hosts of the settings, with their ports or without, and the domains that they are in. Those of fewer than
// maxRow characters are none, and neither is a single word, such as localhost: it may as well be the secret itself.
func (r *redactor) showHosts(hosts ...string) {
	for _, host := range hosts {
		host = lower(host)
		name, _, err := net.SplitHostPort(host)
		if err != nil {
			host = strings.Trim(host, "[]")
			name = host
		}
		name = strings.TrimSuffix(name, ".")
		r.showHost(host)
		r.showHost(name)
		_, err = netip.ParseAddr(name)
		for err != nil && strings.Contains(name, ".") { // an address is in no domain
			r.showHost(name)
			_, name, _ = strings.Cut(name, ".")
		}
	}
	slices.SortStableFunc(r.hosts, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
}

func (r *redactor) showHost(host string) {
	if len(host) >= maxRow && strings.ContainsAny(host, ".:") && !slices.Contains(r.hosts, host) {
		r.hosts = append(r.hosts, host)
	}
}

// withoutHosts takes the hosts of the settings out of a text where they stand as a whole, also behind a name in their
// domain.
func (r *redactor) withoutHosts(text string) string {
	var b strings.Builder
	low, done := lower(text), 0
	for i := 0; i < len(text); {
		before, _ := utf8.DecodeLastRuneInString(text[:i])
		at := slices.IndexFunc(r.hosts, func(host string) bool {
			return strings.HasPrefix(low[i:], host) && !isOfName(before) && endsName(low[i+len(host):])
		})
		if at < 0 {
			i++
			continue
		}
		b.WriteString(text[done:i] + inPlaceOfHost)
		i += len(r.hosts[at])
		done = i
	}
	return b.String() + text[done:]
}

// endsName reports whether the name of a host ends where a text begins, with the dot of a full name or without.
func endsName(text string) bool {
	next, _ := utf8.DecodeRuneInString(strings.TrimPrefix(text, "."))
	return !isOfName(next)
}

func isOfName(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) || r == '-' || r == '_' }

// lower returns a text in which the letters of ASCII are in lower case. It is as long as the text.
func lower(text string) string {
	b := []byte(text)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// beyond returns the secrets without what is in one of the hosts, as it is or in its letters and digits. What they then find
// in a text is more than the host that stands there.
func (s secrets) beyond(hosts []string) secrets {
	s.split, s.shown = nil, make(map[string]bool)
	var names []string
	for _, host := range hosts {
		names = append(names, fold(host), unmarked(fold(host)))
	}
	for _, name := range names {
		for n := range maxRow {
			addRows(s.shown, name, n+1)
		}
	}
	s.words = slices.DeleteFunc(slices.Clone(s.words), func(letters string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, letters) })
	})
	return s
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
