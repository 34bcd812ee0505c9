// Package relay is the bridge for a fleet: it reads the CloudEvents that many bridges publish to one NATS JetStream
// stream, and feeds them to sinks, each change once.
//
// Each sink has a durable consumer of the stream, and one delivery.Queue that reads from it in order and acknowledges
// what is settled. So the delivery loop and its promises are those of a bridge.
//
// For each Azure event and sink there is a record in a key-value bucket: the ids that are settled, those that wait, their
// attempts, and the sink's receipt. A record is written as a whole, before the first delivery that waits in it is sent,
// and again before the next change of its event is; if the first can't be written, the delivery is sent all the same. A
// relay that takes a sink over begins at the first message that isn't acknowledged, and leaves out what the records say is
// settled.
//
// Records are read beside the stream: one request for each that its messages need, 32 at a time. A watch would be one
// request, but send every record of the sink, which are those of all events for as long as the stream keeps messages; a
// takeover needs a few of them.
//
// What the sink's fallback has taken stays pending for the sink, which may come back. At the bound it goes first.
//
// The oldest servers are those of version 2.9, by the one that a relay is connected to. So a consumer that has to begin
// elsewhere is deleted and made again: to reset it needs version 2.14 on every server.
//
// # What a relay promises
//
//   - Delivered once: an id that is settled for a sink is not sent to it again, whichever VM published it and whichever
//     relay settled it. Records are kept as long as the stream keeps messages, and for 40 days at least. Only a delivery
//     in flight when a relay is killed may be repeated; while records can't be written, up to 32 of a sink.
//   - One relay per sink: only the relay that holds the sink's lease delivers. One that can't renew its lease stops
//     sending before another relay takes over, within 10 s.
//   - Decided once: what a sink's filter accepted stays accepted, whatever a reload or a takeover brings. An event of
//     which it has refused all has no record, and may be asked about again while an older message isn't settled.
//   - Over before told: a relay that takes a sink over reads to the stream's end, or to the bound, before it sends what
//     isn't urgent. An event is urgent by the newest of its changes that any relay had taken in.
//   - Bounded: at most 10,000 deliveries of a sink are unsettled in memory. At the bound the relay isn't ready. While the
//     sink accepts nothing, the oldest that isn't urgent becomes a dead letter for each that comes. A set that has more
//     than a quarter of them loses its own first.
//   - Nothing urgent waits behind the bound while the sink accepts nothing. While it accepts, a set that has more than a
//     quarter loses its oldest for an event of another set that begins within 15 minutes and has waited for two seconds.
//     What is left is a sink that works, but slowly: behind the bound an urgent event waits for deliveries of its own
//     set, or of many sets.
//   - Never stuck: a message that isn't a CloudEvent becomes a dead letter, and the relay reads on.
//   - Nothing on disk: everything that must survive is in JetStream.
//
// The README of the bridge describes the files.
package relay
