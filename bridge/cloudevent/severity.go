package cloudevent

import (
	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/imds"
)

// Severities as in the CloudEvents severity extension: OpenTelemetry's numbers, the lower bound of each range.
const (
	severityInfo  = 9
	severityWarn  = 13
	severityError = 17

	shortFreeze = 10 // seconds; a Freeze of known length up to this is no reason to wake anybody
)

func setSeverity(ce *event.Event, n int32) {
	ce.SetExtension("severitynumber", n)
	ce.SetExtension("severitytext", map[int32]string{
		severityInfo: "INFO", severityWarn: "WARN", severityError: "ERROR"}[n])
}

func severity(c imds.Change) int32 {
	e := c.Event
	switch {
	case c.Kind == imds.Vanished:
		return severityInfo
	case e.Type == "Preempt":
		return severityError
	case e.Type == "Terminate":
		return severityWarn
	case e.Source == "User":
		return severityInfo
	case e.Type == "Reboot" || e.Type == "Redeploy":
		return severityError
	case e.Type == "Freeze" && e.Duration >= 0 && e.Duration <= shortFreeze:
		return severityInfo
	}
	return severityWarn
}
