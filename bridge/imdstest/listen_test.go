package imdstest

import (
	"net/http"
	"testing"
	"time"
)

// Serve listens on one address for metadata and one for control, until the test ends.
func TestServeListensOnBothEndpoints(t *testing.T) {
	var r *Running
	t.Run("while it runs", func(t *testing.T) {
		r = Serve(t, Options{})
		e := r.Schedule(Event{})
		for url, want := range map[string]int{
			r.URL + "/metadata/scheduledevents?api-version=2020-07-01":         200,
			r.URL + "/vm/vm_0/metadata/scheduledevents?api-version=2020-07-01": 200,
			r.ControlURL + "/state": 200,
			r.ControlURL + "/metadata/scheduledevents?api-version=2020-07-01": 404,
			r.URL + "/events/" + e.ID: 404,
		} {
			resp, err := http.DefaultClient.Do(request(t, t.Context(), "GET", url))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("%s: %d, want %d", url, resp.StatusCode, want)
			}
		}
	})
	if _, err := http.Get(r.URL); err == nil {
		t.Error("it answers after the test")
	}
}

// An address in use is an error, and the listener that was already open is closed.
func TestAddressInUseIsAnError(t *testing.T) {
	s := Serve(t, Options{})
	taken := s.ControlURL[len("http://"):]
	if _, err := New(Options{}).Listen("127.0.0.1:0", taken); err == nil {
		t.Error("no error for a control address in use")
	}
	if _, err := New(Options{}).Listen(taken, ""); err == nil {
		t.Error("no error for an address in use")
	}
	r, err := New(Options{}).Listen("127.0.0.1:0", "")
	if err != nil || r.ControlURL != "" {
		t.Fatalf("%+v, %v, want no control API", r, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// Close does not wait for an answer that hangs.
func TestCloseDoesNotWaitForAHangingAnswer(t *testing.T) {
	r := Serve(t, Options{})
	r.SetFault(Fault{Hang: true})
	answered := make(chan error)
	go func() {
		_, err := http.DefaultClient.Do(request(t, t.Context(), "GET", r.URL+"/metadata/scheduledevents"))
		answered <- err
	}()
	for len(r.Requests()) == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := <-answered; err == nil {
		t.Error("it was answered")
	}
}
