package cloudevent

import "forewarn/bridge/imds"

// TypeDocs describes each type of CloudEvent for people.
var TypeDocs = map[string]string{
	EventPrefix + string(imds.Scheduled): "Azure has announced the event",
	EventPrefix + string(imds.Updated):   "Azure has changed it: a new time, other VMs",
	EventPrefix + string(imds.Started):   "Azure has begun it",
	EventPrefix + string(imds.Vanished):  "it is off Azure's list: over, cancelled, or nobody knows; see outcome",
	EventPrefix + string(imds.Reminder):  "it is still to come (remind)",
	EventPrefix + string(imds.Approved):  "what came of approving it, and who did",
	BridgeStarted:                        "forewarn has started; gap says when it wasn't watching",
	BridgeStopping:                       "forewarn stops",
	BridgeTest:                           "a message of forewarn send",
	BridgeHeartbeat:                      "forewarn is well (heartbeat)",
	IMDSUnavailable:                      "Azure's endpoint has not answered for 5 minutes, 10 at the first start",
	IMDSRecovered:                        "it answers again; gap says when it did not",
	OutboxUnwritable:                     "the state directory can't be written; forewarn runs from memory",
	OutboxWritable:                       "it has been written again for a minute; gap says when it was not",
	SinkBlocked:                          "a sink accepts nothing until somebody acts, or has not for 5 minutes",
	SinkRecovered:                        "it accepts again",
	SinkMuted:                            "somebody muted a sink, those for people, or all; data has sink, people or neither, and until, why and by",
	SinkUnmuted:                          "that mute is over; endedBy is who ended it early",
	DeliveryDeadLettered:                 "deliveries became dead letters",
	DeliveryDropped:                      "somebody dropped a delivery",
	SettingsLoaded:                       "new settings are in force",
	ChainHead:                            "the hash of the last line of a file with chain: true, once a day and at a stop",
	ObserverSilent:                       "a relay no longer hears VMs that send heartbeats",
	ObserverBack:                         "it hears them again",
}
