// Package relay is the bridge for a fleet: it reads the CloudEvents that many bridges publish to one NATS JetStream
// stream, and feeds them to sinks, each change once.
//
// The stream is a log. Each sink has a cursor in it, and one delivery.Queue that reads the log in order from there on,
// so the delivery loop and all that it promises are those of a bridge. What a sink remembers lives in a key-value
// bucket: the cursor, and for each Azure event one record with the ids that are settled, what is being tried, and the
// sink's receipt. A record is written whole, before the next change of its event is sent.
//
// # What a relay promises
//
//   - Told once: an id that is settled for a sink is never sent to it again, whichever VM published it, however long
//     ago, and whichever relay settled it. Records live 40 days. Only a delivery that was in flight when a relay was
//     killed may come twice.
//   - One relay a sink: who delivers holds the sink's lease. Whoever can't renew it stops sending before another relay
//     takes it over, which is within 10 s.
//   - Bounded: at most 10,000 deliveries of a sink are unsettled in memory. At the bound the relay stops reading for
//     that sink, and isn't ready.
//   - Never stuck: a message that is no CloudEvent becomes a dead letter, and the next one is read.
//   - Nothing on disk: everything that must survive is in JetStream.
//
// What each file does is in the README of the bridge.
package relay
