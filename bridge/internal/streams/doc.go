// Package streams reads what the streams and buckets of JetStream hold for a relay and its fleet: messages, in order,
// decoded, and refused if they aren't on the subject of whoever they say they come from; and values with a revision.
package streams
