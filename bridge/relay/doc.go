// Package relay is the bridge for a fleet: it reads the CloudEvents that many bridges publish to one NATS JetStream
// stream, and feeds them to sinks, each change once.
//
// Each sink has a durable consumer of the stream, and one delivery.Queue that reads from it in order and acknowledges
// what is settled. So the delivery loop and its promises are those of a bridge.
//
// For each Azure event and sink there is a record in a key-value bucket: the ids that are settled, those that wait, their
// attempts, and the sink's receipt. A record is written as a whole, before the first delivery that waits in it is sent,
// and again before the next change of its event is. A relay that takes a sink over begins at the first message that isn't
// acknowledged, and leaves out what the records say is settled.
//
// # What a relay promises
//
//   - Delivered once: an id that is settled for a sink is not sent to it again, whichever VM published it and whichever
//     relay settled it. Records are kept as long as the stream keeps messages, and for 40 days at least. Only a delivery
//     in flight when a relay is killed may be repeated; while records can't be written, up to 32 of a sink.
//   - One relay per sink: only the relay that holds the sink's lease delivers. One that can't renew its lease stops
//     sending before another relay takes over, within 10 s.
//   - Decided once: what a sink's filter accepted stays accepted, whatever a reload or a takeover brings.
//   - Over before told: a relay that takes a sink over reads to the stream's end before it sends what isn't urgent. An
//     event is urgent by the newest of its changes that any relay had taken in.
//   - Bounded: at most 10,000 deliveries of a sink are unsettled in memory. At the bound the relay isn't ready. While the
//     sink accepts nothing, the oldest that isn't urgent becomes a dead letter for each that comes. A set that has more
//     than a quarter of them loses its own first.
//   - Nothing urgent waits behind the bound while the sink accepts nothing. While it accepts, a set that has more than a
//     quarter loses its oldest for an event of another set that begins within 15 minutes. What is left is a sink that
//     works, but slowly: behind the bound an urgent event waits for deliveries of its own set, or of many sets.
//   - Never stuck: a message that isn't a CloudEvent becomes a dead letter, and the relay reads on.
//   - Nothing on disk: everything that must survive is in JetStream.
//
// The README of the bridge describes the files.
package relay
