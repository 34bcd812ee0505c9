// Package streams reads what JetStream holds for a relay and its fleet. From streams it reads messages, in order and
// decoded. A message that isn't on the subject of whoever it says it comes from is refused. In buckets it reads and writes
// values by their revision.
package streams
