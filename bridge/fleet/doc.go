// Package fleet is what a relay knows of its VMs: it reads their CloudEvents and heartbeats from JetStream, shows the
// events and VMs of the last weeks, notices which VMs fall silent, and has that told once by all relays of a stream. It
// is for people: no delivery depends on it, but for what a relay that is full gives up.
//
// Each set has its share of what is kept, so that whoever lies about one set takes no room from the others.
package fleet
