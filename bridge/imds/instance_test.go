package imds

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"forewarn/bridge/imdstest"
)

// Instance metadata identifies the VM. Fields that it leaves out are unknown.
func TestInstanceReturnsTheIdentityOfTheVM(t *testing.T) {
	const subscription, vmID = "8d10da13-8125-4ba9-a717-bf7490507b3d", "02aab8a4-74ef-476e-8182-f6d2ba4166a6"
	s := imdstest.Serve(t, imdstest.Options{VMs: []string{"web_0", "web_1"}, Instance: imdstest.Instance{
		SubscriptionID: subscription, ResourceGroup: "prod", Location: "northeurope", Zone: "2", ScaleSet: "web",
		Priority: "Spot", EvictionPolicy: "Delete", VMIDs: map[string]string{"web_1": vmID},
	}})
	got, err := client(t, s.URL+"/vm/web_1").Instance(t.Context())
	want := Observer{
		Name: "web_1", VMID: vmID,
		ResourceID: "/subscriptions/" + subscription + "/resourceGroups/prod/providers/Microsoft.Compute/" +
			"virtualMachineScaleSets/web/virtualMachines/1",
		SubscriptionID: subscription, ResourceGroup: "prod", Location: "northeurope", Zone: "2", ScaleSet: "web",
		OSType: "Linux", Priority: "Spot", EvictionPolicy: "Delete",
	}
	if err != nil || got != want {
		t.Errorf("Instance = %+v, %v, want %+v", got, err, want)
	}
	r := s.Requests()[0]
	request := r.Method + " " + r.Path + "?" + r.Query.Encode() + " " + r.Header.Get("Metadata")
	if want := "GET /vm/web_1/metadata/instance?api-version=2021-02-01 true"; request != want {
		t.Errorf("the request is %s, want %s", request, want)
	}

	alone := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	o, err := client(t, alone.URL).Instance(t.Context())
	if err != nil || o.Name != "vm-0" || o.ScaleSet != "" || o.Zone != "" || o.VMID == "" {
		t.Errorf("Instance = %+v, %v", o, err)
	}
	o, err = says(200, `{"compute":{"vmId":"x","name":""}}`).client().Instance(t.Context())
	if err != nil || o != (Observer{VMID: "x"}) {
		t.Errorf("without a name: %+v, %v", o, err)
	}
}

// An answer that is not instance metadata is an AnswerError, so that callers can tell it from no answer.
func TestInstanceRefusesOtherAnswers(t *testing.T) {
	const nameless, noMetadata = "without a name", "not instance metadata"
	for _, tt := range []struct {
		claim  string
		status int
		body   string
		says   string
	}{
		{"not found", 404, `API is not found: Path="/metadata/instance"`, "404 Not Found: API is not found"},
		{"away", 503, "", "503 Service Unavailable: no text"},
		{"refused in all versions", 400, `{"error":"Bad request. api-version is invalid"}`, "400 Bad Request"},
		{"a page", 200, "<!DOCTYPE html>\n<html>", "not instance metadata: <!DOCTYPE html> <html>"},
		{"nothing", 200, "", "not instance metadata: no text"},
		{"null", 200, "null", nameless},
		{"an array", 200, "[]", noMetadata},
		{"an empty object", 200, "{}", nameless},
		{"no compute", 200, `{"network":{}}`, nameless},
		{"null for compute", 200, `{"compute":null}`, nameless},
		{"text for compute", 200, `{"compute":"vm-0"}`, noMetadata},
		{"a number for a name", 200, `{"compute":{"name":7}}`, noMetadata},
		{"a document", 200, document7, nameless},
		{"cut", 200, `{"compute":{"name":"vm-0"`, noMetadata},
		{"too large", 200, `{"compute":{"name":"` + strings.Repeat("x", 5<<20) + `"}}`, noMetadata},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			o, err := says(tt.status, tt.body).client().Instance(t.Context())
			if _, ok := errors.AsType[*AnswerError](err); !ok || o != (Observer{}) {
				t.Errorf("Instance = %+v, %v, want an AnswerError", o, err)
			}
			wantLine(t, err, tt.says)
		})
	}
}

// An answer that is broken off, or that doesn't come in time, is none.
func TestInstanceWithoutAnAnswer(t *testing.T) {
	s := imdstest.Serve(t, imdstest.Options{})
	s.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Truncate: 40})
	ctx, cancel := context.WithCancelCause(t.Context())
	_, cut := client(t, s.URL).Instance(ctx)
	cancel(errors.New("enough"))
	_, late := client(t, s.URL).Instance(ctx)
	wantLine(t, late, "enough")
	for _, err := range []error{cut, late} {
		if _, ok := errors.AsType[*AnswerError](err); err == nil || ok {
			t.Errorf("Instance = %v, want an error that is no AnswerError", err)
		}
	}
}

// Instance metadata has its own api-versions, and falls back to older ones too.
func TestInstanceFallsBackToOlderVersions(t *testing.T) {
	versions := []string{"2021-02-01", "2019-06-04", "2017-08-01"}
	for n, known := range versions {
		var asked []string
		c := host(func(r *http.Request) (int, http.Header, string) {
			version := r.URL.Query().Get("api-version")
			asked = append(asked, version)
			if version != known {
				return 400, nil, `{"error":"Bad request. api-version is invalid"}`
			}
			return 200, nil, `{"compute":{"name":"vm-0","location":"westeurope","other":{"x":[1]}}}`
		}).client()
		o, err := c.Instance(t.Context())
		if err != nil || o != (Observer{Name: "vm-0", Location: "westeurope"}) || !slices.Equal(asked, versions[:n+1]) {
			t.Errorf("where only %s is known: %+v, %v, asked for %q", known, o, err, asked)
		}
	}
}

// An AnswerError says whether the answer stays the same for good, or only if it is repeated for some seconds.
func TestAnswerErrorSaysWhetherItLasts(t *testing.T) {
	for status, want := range map[int][2]bool{ // final, lasting
		200: {false, true}, 204: {false, true}, 302: {false, true}, 399: {false, true},
		400: {true, false}, 403: {true, false}, 404: {false, true}, 408: {false, false}, 410: {false, true},
		429: {false, false}, 499: {true, false}, 500: {false, false}, 503: {false, false},
	} {
		_, err := says(status, "no metadata").client().Instance(t.Context())
		e, ok := errors.AsType[*AnswerError](err)
		if !ok || [2]bool{e.Final(), e.Lasting()} != want {
			t.Errorf("%d gives %v, want an AnswerError that is final and lasting: %v", status, err, want)
		}
	}
}

// A probe tells Azure's service, also one that is away for now, from other servers and from no answer.
func TestProbeTellsAzureFromOtherServers(t *testing.T) {
	const isAzure, other, silent = "Azure", "another server", "nobody"
	for _, tt := range []struct {
		status       int
		server, body string
		want         string
	}{
		{200, "", `{"apiVersions":["2020-07-01"]}`, isAzure},
		{200, "", `{"apiVersions":[]}`, other},
		{200, "", `{}`, other},
		{200, "", `<html>`, other},
		{404, "", `{"apiVersions":["2020-07-01"]}`, other},
		{404, "IMDS/150.870", "", isAzure},
		{410, "", "", isAzure},
		{429, "", "", isAzure},
		{500, "", "", isAzure},
		{503, "", "", isAzure},
		{502, "", "", other},
		{0, "", "", silent},
	} {
		c := host(func(*http.Request) (int, http.Header, string) {
			return tt.status, http.Header{"Server": {tt.server}}, tt.body
		}).client()
		err := c.Probe(t.Context())
		got := silent
		switch {
		case err == nil:
			got = isAzure
		case errors.Is(err, ErrNotAzure):
			got = other
		}
		if got != tt.want {
			t.Errorf("%d from %q with %q is %s (%v), want %s", tt.status, tt.server, tt.body, got, err, tt.want)
		}
	}
}

// The hint for an endpoint that never answered asks what may be wrong with its address.
func TestTheHintForAnEndpointAsksWhatMayBeWrong(t *testing.T) {
	for endpoint, want := range map[string]string{
		DefaultEndpoint: "is this an Azure VM?", "http://azure.test": "is imds.endpoint right",
	} {
		if hint := EndpointHint(endpoint); !strings.Contains(hint, want) {
			t.Errorf("the hint for %s is %q, want that it asks %q", endpoint, hint, want)
		}
	}
}
