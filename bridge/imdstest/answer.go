package imdstest

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/google/uuid"
)

const (
	jsonType = "application/json; charset=utf-8"
	textType = "text/plain; charset=utf-8"
)

// An answer is one HTTP response to a VM, and how it is sent.
type answer struct {
	status      int
	contentType string
	etag        string
	body        []byte
	retryAfter  string

	cut      int  // bytes after which the connection is broken off; 0 for never
	noLength bool // the body ends with the connection
	length   int  // the Content-Length to claim; 0 for the true one
}

func okAnswer(kind string, body []byte) answer {
	return answer{status: http.StatusOK, contentType: kind, body: body}
}

// badRequest returns a 400 in the service's own form. newest are the api-versions to name in it, if any.
func badRequest(text string, newest ...string) answer {
	body := struct {
		Error  string   `json:"error"`
		Newest []string `json:"newest-versions,omitempty"`
	}{"Bad request. " + text, newest}
	return answer{status: http.StatusBadRequest, contentType: jsonType, body: marshal(body)}
}

func notFound(r *http.Request) answer {
	text := fmt.Sprintf("API is not found: Path=%q, Method=%q", r.URL.Path, r.Method)
	return answer{status: http.StatusNotFound, contentType: textType, body: []byte(text)}
}

func notAllowed(r *http.Request) answer {
	text := fmt.Sprintf("Http method is not allowed: Path=%q", r.URL.Path)
	return answer{status: http.StatusMethodNotAllowed, contentType: textType, body: []byte(text)}
}

func tooMany() answer {
	return answer{status: http.StatusTooManyRequests, contentType: textType, body: []byte("Too many requests")}
}

// write sends the answer. If its body is shorter than the length it claims, the connection is closed after it.
func (a answer) write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Server", "IMDS/150.870.65.1854")
	h.Set("x-ms-request-id", uuid.NewString())
	if a.etag != "" {
		h.Set("ETag", a.etag)
	}
	if a.retryAfter != "" {
		h.Set("Retry-After", a.retryAfter)
	}
	if a.status == http.StatusNotModified || a.status == http.StatusNoContent {
		w.WriteHeader(a.status)
		return
	}
	if a.contentType != "" {
		h.Set("Content-Type", a.contentType)
	}
	switch {
	case a.noLength:
		h.Set("Transfer-Encoding", "identity") // makes net/http send the body until the connection ends
	case a.length != 0:
		h.Set("Content-Length", strconv.Itoa(a.length))
	default:
		h.Set("Content-Length", strconv.Itoa(len(a.body)))
	}
	w.WriteHeader(a.status)
	if a.cut > 0 && a.cut < len(a.body) {
		a.body = a.body[:a.cut]
	}
	if a.length > 0 && a.length < len(a.body) {
		a.body = a.body[:a.length]
	}
	_, _ = w.Write(a.body) // the client may be gone
}
