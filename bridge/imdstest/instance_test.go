package imdstest

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// Each VM has its own instance metadata. All have the same document.
func TestEachVMHasItsOwnInstanceMetadata(t *testing.T) {
	s := New(Options{VMs: []string{"set_0", "set_1"}, Instance: Instance{ScaleSet: "set", Zone: "2", VMIDs: map[string]string{"set_0": "fixed"}}})
	s.Schedule(Event{})
	ids := make(map[string]string)
	for _, vm := range s.VMs() {
		var d struct {
			Compute struct{ Name, VMID, ResourceID, Zone, Location, Priority string }
		}
		body := text(ask(s, "GET", "/vm/"+vm+"/metadata/instance?api-version=2021-02-01", ""))
		if err := json.Unmarshal([]byte(body), &d); err != nil {
			t.Fatal(err)
		}
		c := d.Compute
		if c.Name != vm || c.Zone != "2" || c.Location != "westeurope" || c.Priority != "Regular" ||
			!strings.HasSuffix(c.ResourceID, "/virtualMachineScaleSets/set/virtualMachines/"+vm[4:]) {
			t.Errorf("%s: %s", vm, body)
		}
		ids[vm] = c.VMID
		if got := text(ask(s, "GET", "/VM/"+vm+"/metadata/scheduledevents?api-version=2020-07-01", "")); got != document(s, "2020-07-01") {
			t.Errorf("%s sees %s", vm, got)
		}
	}
	if ids["set_0"] != "fixed" || ids["set_1"] != uuidOf("set_1") {
		t.Errorf("vmIds %v", ids)
	}
}

// A single value is available as text only. Without a VM in the path, the first VM answers.
func TestInstanceMetadataIsReadByPath(t *testing.T) {
	s := New(Options{VMs: []string{"web-1", "web-2"}})
	for _, tt := range []struct {
		path   string
		status int
		body   string
	}{
		{"/metadata/instance/compute/name?api-version=2021-02-01&format=text", 200, "web-1"},
		{"/metadata/Instance/Compute/NAME/?api-version=2021-02-01&format=Text", 200, "web-1"},
		{"/vm/WEB-2/metadata/instance/compute/name?api-version=2021-02-01&format=text", 200, "web-2"},
		{"/metadata/instance/compute/resourceId?api-version=2021-02-01&format=text", 200,
			"/subscriptions/" + uuidOf("subscription") + "/resourceGroups/emulated/providers/Microsoft.Compute/virtualMachines/web-1"},
		{"/metadata/instance?api-version=2021-02-01&format=text", 200, "compute"},
		{"/metadata/instance/compute/name?api-version=2021-02-01", 400,
			`{"error":"Bad request. Only the text format is supported for this value"}`},
		{"/metadata/instance/compute/none?api-version=2021-02-01", 404,
			`API is not found: Path="/metadata/instance/compute/none", Method="GET"`},
		{"/metadata/instance/compute/name/first?api-version=2021-02-01", 404,
			`API is not found: Path="/metadata/instance/compute/name/first", Method="GET"`},
	} {
		resp := ask(s, "GET", tt.path, "")
		if got := text(resp); resp.StatusCode != tt.status || got != tt.body {
			t.Errorf("%s: %d %s, want %d %s", tt.path, resp.StatusCode, got, tt.status, tt.body)
		}
	}
	whole := text(ask(s, "GET", "/metadata/instance/compute?api-version=2021-02-01", ""))
	if !strings.HasPrefix(whole, `{"azEnvironment":"AzurePublicCloud",`) {
		t.Errorf("compute is %s", whole)
	}
}

// The managed identity endpoint issues a new token for each request that names a resource.
func TestTokenNeedsAResource(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	s := New(Options{Now: func() time.Time { return now }})
	const path = "/metadata/identity/oauth2/token?api-version=2018-02-01"
	tokens := make(map[string]bool)
	for range 2 {
		var token map[string]string
		resp := ask(s, "GET", path+"&resource=https://vault.azure.net&client_id=me", "")
		if err := json.Unmarshal([]byte(text(resp)), &token); err != nil {
			t.Fatal(err)
		}
		if token["token_type"] != "Bearer" || token["resource"] != "https://vault.azure.net" ||
			token["client_id"] != "me" || token["expires_on"] != "1800086400" || token["expires_in"] != "86400" {
			t.Errorf("got %v", token)
		}
		tokens[token["access_token"]] = true
	}
	if len(tokens) != 2 {
		t.Errorf("tokens %v, want two", tokens)
	}
	for _, tt := range []struct{ path, metadata, body string }{
		{path, "true", `{"error":"invalid_request","error_description":"Required query variable 'resource' is missing"}`},
		{path + "&resource=x", "", `{"error":"invalid_request","error_description":"Required metadata header not specified"}`},
	} {
		resp := ask(s, "GET", tt.path, "", "Metadata", tt.metadata)
		if got := text(resp); resp.StatusCode != 400 || got != tt.body {
			t.Errorf("%d %s, want 400 %s", resp.StatusCode, got, tt.body)
		}
	}
}
