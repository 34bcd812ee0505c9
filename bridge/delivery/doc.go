// Package delivery delivers CloudEvents to their destinations. It defines the contract of a Sink, and the loop that
// calls it: a Worker takes the pending deliveries of one route from a Queue, attempts them by the rules of the
// schedule, and reports the results to the Queue.
//
// It knows no disk but for the files in Config.Secrets, and of Azure only the words by which a change waits, passes a mute
// or outdates another. The outbox on a VM is one Queue, a stream is another.
//
// # Use
//
// Whoever has a Sink and a Queue makes a Worker for them and runs it in a goroutine of its own:
//
//	w := delivery.NewWorker(delivery.Config{
//		Route: "ops",
//		Sink:  sink,
//		Terms: delivery.Terms{Timeout: 10 * time.Second, MaxAge: 24 * time.Hour},
//		Queue: box.Queue("ops"), // of an outbox.Outbox
//		Log:   log,
//	})
//	go w.Run(ctx, stop, nil)
//
// Close stop to end it in order, and then cancel ctx if it doesn't end in time. A Sink makes one attempt and says by its
// error what came of it. All else is the Worker's.
//
// # What the loop promises
//
//   - In order: deliveries of one group (an Azure event) are attempted in the order of their sequence numbers. Groups
//     don't wait for each other.
//   - Patient: a failed attempt is repeated after a random part of 1, 2, 4, 8, 15, 30, 60 s … up to 5 min. It
//     never comes before the end of a Retry-After, up to an hour. A group keeps its wait when what failed is given up.
//   - Considerate: a destination is up, failing or blocked. It is failing once deliveries of eight groups have failed
//     and none was accepted. Then it gets one attempt after a random part of 1, 2, 4 … s, up to 5 min, of different
//     groups in turn, however many are pending. It is blocked after three answers with ErrBlocked over at least 30 s.
//     Then it gets one attempt a minute. The first acceptance lets all go. A group that fails again after it waits alone.
//   - Urgent first: a delivery about an Azure event is urgent if the event has begun, has no NotBefore or begins in less than
//     15 minutes. A new one is attempted
//     at once, even if the destination is failing or blocked, but not more often than every 5 s, and not before a
//     Retry-After ends. It is tried again soon: a wait is at most a quarter of the time until NotBefore, and in the last
//     two minutes at most 5 s.
//   - Same batch: a batch that was delivered in part is repeated with the same members, so that the sink knows what is
//     left of it. With LateLatest a newer change of an event takes the place of its member. So a recipient that refuses
//     the older change doesn't keep the newer one from the others.
//   - Constant cost: while the destination is up, an attempt costs no more when 50,000 deliveries are pending, but for a
//     digest. While it isn't, an attempt looks at each group once. A mute, and a fallback, look at all of one group.
package delivery
