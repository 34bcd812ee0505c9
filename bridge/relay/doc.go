// Package relay is the bridge for a fleet: it reads the CloudEvents that many bridges publish to one NATS JetStream
// stream, and feeds them to sinks, each change once.
//
// Each sink has a cursor in the stream, and one delivery.Queue that reads the stream in order from there. So the
// delivery loop and its promises are those of a bridge. The state of a sink is in a key-value bucket: the cursor, and
// one record for each Azure event, with the settled ids, the attempt in flight and the sink's receipt. A record is
// written as a whole, before the next change of its event is sent.
//
// # What a relay promises
//
//   - Delivered once: an id that is settled for a sink is not sent to it again, whichever VM published it and whichever
//     relay settled it. Records are kept for 40 days. Only a delivery in flight when a relay is killed may be repeated.
//   - One relay per sink: only the relay that holds the sink's lease delivers. One that can't renew its lease stops
//     sending before another relay takes over, within 10 s.
//   - Bounded: at most 10,000 deliveries of a sink are unsettled in memory. At the bound the relay stops reading for
//     that sink, and isn't ready.
//   - Never stuck: a message that isn't a CloudEvent becomes a dead letter, and the relay reads on.
//   - Nothing on disk: everything that must survive is in JetStream.
//
// The README of the bridge describes the files.
package relay
