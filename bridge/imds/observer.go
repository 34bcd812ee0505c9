package imds

import "runtime"

// ThisOS is the OSType of the machine that the program runs on; "" if it is neither Linux nor Windows.
var ThisOS = map[string]string{"linux": "Linux", "windows": "Windows"}[runtime.GOOS]

// An Observer is the VM that the bridge runs on, as instance metadata describes it. Unknown fields are "".
type Observer struct {
	Name           string `json:"name,omitempty"` // the Azure VM name, as in an event's Resources
	VMID           string `json:"vmId,omitempty"`
	ResourceID     string `json:"resourceId,omitempty"` // /subscriptions/…
	SubscriptionID string `json:"subscriptionId,omitempty"`
	ResourceGroup  string `json:"resourceGroup,omitempty"`
	Location       string `json:"location,omitempty"`
	Zone           string `json:"zone,omitempty"`
	ScaleSet       string `json:"scaleSet,omitempty"`
	OSType         string `json:"osType,omitempty"`         // Linux, Windows
	Priority       string `json:"priority,omitempty"`       // Regular, Spot
	EvictionPolicy string `json:"evictionPolicy,omitempty"` // Delete, Deallocate
}
