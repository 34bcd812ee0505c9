package imdstest

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Instance is what instance metadata says about all VMs of a Server.
type Instance struct {
	SubscriptionID string // a fixed GUID when ""
	ResourceGroup  string // "emulated" when ""
	Location       string // "westeurope" when ""
	Zone           string
	ScaleSet       string // "" when the VMs are in none
	Priority       string // Regular when "", or Spot
	EvictionPolicy string // Deallocate or Delete, for Spot
	// VMIDs are the vmIds by VM name. The default is the UUIDv5 of the name.
	VMIDs map[string]string
}

func (i Instance) withDefaults() Instance {
	fill := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	fill(&i.SubscriptionID, uuidOf("subscription"))
	fill(&i.ResourceGroup, "emulated")
	fill(&i.Location, "westeurope")
	fill(&i.Priority, "Regular")
	i.VMIDs = maps.Clone(i.VMIDs)
	return i
}

// uuidSpace is the namespace of the UUIDs that this package makes up.
var uuidSpace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://forewarn.dev/imdstest"))

// uuidOf returns the UUIDv5 of a name.
func uuidOf(name string) string { return uuid.NewSHA1(uuidSpace, []byte(name)).String() }

// The api-versions of the service, except those of Scheduled Events.
var instanceVersions = []string{
	"2017-03-01", "2017-04-02", "2017-08-01", "2017-10-01", "2017-12-01", "2018-02-01", "2018-04-02", "2018-10-01",
	"2019-02-01", "2019-03-11", "2019-04-30", "2019-06-01", "2019-06-04", "2019-08-01", "2019-08-15", "2019-11-01",
	"2020-06-01", "2020-07-15", "2020-09-01", "2020-10-01", "2020-12-01", "2021-01-01", "2021-02-01", "2021-03-01",
	"2021-05-01", "2021-10-01", "2021-11-01", "2021-11-15", "2021-12-13", "2023-07-01", "2023-11-15", "2024-03-15",
	"2024-07-17", "2025-04-07",
}

// badVersion returns a 400 that names the three newest api-versions, as the real service does; clients read them.
func badVersion(known []string) answer {
	newest := slices.Clone(known[max(0, len(known)-3):])
	slices.Reverse(newest)
	return badRequest("api-version is invalid or was not specified in the request. "+
		"For more information refer to aka.ms/azureimds", newest...)
}

// isLater reports whether an api-version is a date behind all versions of Scheduled Events. OpenShift's handler, which asks
// for the newest first, takes a 404 for it, and no other failure.
func isLater(version string) bool {
	_, err := time.Parse(time.DateOnly, version)
	return err == nil && version > newest
}

// compute returns what the service knows about a VM.
func (i Instance) compute(vm string) map[string]any {
	id := i.VMIDs[vm]
	if id == "" {
		id = uuidOf(vm)
	}
	resource := fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/Microsoft.Compute/",
		i.SubscriptionID, i.ResourceGroup)
	if number, uniform := strings.CutPrefix(vm, i.ScaleSet+"_"); uniform && i.ScaleSet != "" {
		resource += "virtualMachineScaleSets/" + i.ScaleSet + "/virtualMachines/" + number
	} else {
		resource += "virtualMachines/" + vm
	}
	return map[string]any{
		"azEnvironment":     "AzurePublicCloud",
		"evictionPolicy":    i.EvictionPolicy,
		"location":          i.Location,
		"name":              vm,
		"osType":            "Linux",
		"priority":          i.Priority,
		"resourceGroupName": i.ResourceGroup,
		"resourceId":        resource,
		"subscriptionId":    i.SubscriptionID,
		"tags":              "",
		"vmId":              id,
		"vmScaleSetName":    i.ScaleSet,
		"vmSize":            "Standard_D2s_v5",
		"zone":              i.Zone,
	}
}

// instance answers /metadata/instance and everything below it. As in Azure, a single value is available only as text.
func (s *Server) instance(c *call) answer {
	var value any = map[string]any{"compute": s.opts.Instance.compute(c.vm)}
	for _, name := range c.subpath {
		level, _ := value.(map[string]any)
		value = nil
		for key := range level {
			if strings.EqualFold(key, name) {
				value = level[key]
			}
		}
		if value == nil {
			return notFound(c.Request)
		}
	}
	asText := strings.EqualFold(c.query.Get("format"), "text")
	switch v := value.(type) {
	case string:
		if !asText {
			return badRequest("Only the text format is supported for this value")
		}
		return okAnswer(textType, []byte(v))
	case map[string]any:
		if asText {
			return okAnswer(textType, []byte(strings.Join(slices.Sorted(maps.Keys(v)), "\n")))
		}
	}
	return okAnswer(jsonType, marshal(value))
}

// token answers for the VM's managed identity, with a new and useless token each time.
func (s *Server) token(c *call) answer {
	resource := c.query.Get("resource")
	if resource == "" {
		return badTokenRequest("Required query variable 'resource' is missing")
	}
	now := s.opts.Now()
	const life = 24 * 60 * 60
	t := struct {
		AccessToken  string `json:"access_token"`
		ClientID     string `json:"client_id"`
		ExpiresIn    string `json:"expires_in"`
		ExpiresOn    string `json:"expires_on"`
		ExtExpiresIn string `json:"ext_expires_in"`
		NotBefore    string `json:"not_before"`
		Resource     string `json:"resource"`
		TokenType    string `json:"token_type"`
	}{
		AccessToken:  "emulated." + uuid.NewString(),
		ClientID:     c.query.Get("client_id"),
		ExpiresIn:    strconv.Itoa(life),
		ExpiresOn:    strconv.FormatInt(now.Unix()+life, 10),
		ExtExpiresIn: strconv.Itoa(life),
		NotBefore:    strconv.FormatInt(now.Unix(), 10),
		Resource:     resource,
		TokenType:    "Bearer",
	}
	if t.ClientID == "" {
		t.ClientID = uuidOf("identity of " + c.vm)
	}
	return okAnswer(jsonType, marshal(t))
}

// badTokenRequest returns a 400 in the form of an OAuth server.
func badTokenRequest(text string) answer {
	body := struct {
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}{"invalid_request", text}
	return answer{status: http.StatusBadRequest, contentType: jsonType, body: marshal(body)}
}
