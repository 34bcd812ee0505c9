// Bare is what forewarn is measured beside: it polls a scheduled-events endpoint, posts every document that differs
// from the last one to a URL, and does nothing else. It remembers nothing and tries nothing again.
//
//	bare ENDPOINT URL INTERVAL
package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "bare:", err)
		os.Exit(1)
	}
}

func run(endpoint, url, interval string) error {
	every, err := time.ParseDuration(interval)
	if err != nil {
		return err
	}
	var last []byte
	for ; ; time.Sleep(every) {
		ask, err := http.NewRequest("GET", endpoint+"/metadata/scheduledevents?api-version=2020-07-01", nil)
		if err != nil {
			return err
		}
		ask.Header.Set("Metadata", "true")
		answer, err := http.DefaultClient.Do(ask)
		if err != nil {
			continue
		}
		document, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || bytes.Equal(document, last) {
			continue
		}
		last = document
		if answer, err := http.Post(url, "application/json", bytes.NewReader(document)); err == nil {
			_ = answer.Body.Close()
		}
	}
}
