// Package delivery delivers CloudEvents to their destinations. It defines the contract of a Sink, and the loop that
// calls it: a Worker takes the pending deliveries of one route from a Queue, attempts them by the rules of the
// schedule, and reports the results to the Queue.
//
// It knows no disk, and of Azure only the words by which a change waits, passes a mute or outdates another. The outbox on
// a VM is one Queue, a stream is another.
//
// # What the loop promises
//
//   - In order: deliveries of one group (an Azure event) are attempted in the order of their sequence numbers. Groups
//     don't wait for each other.
//   - Patient: a failed attempt is repeated after about 1, 2, 4, 8, 15, 30, 60 s … up to 5 min, with full jitter. It
//     never comes before the end of a Retry-After, up to an hour.
//   - One circuit breaker: a destination is up, failing or blocked. It is failing once deliveries of eight groups have
//     failed and none was accepted, and gets one attempt after about 1, 2, 4 … s up to 5 min, of different groups in turn,
//     however many are pending. It is blocked after three ErrBlocked answers over at least 30 s, and gets one a minute.
//     The first acceptance lets all go; a group that fails again after it waits alone.
//   - Urgent first: a new delivery whose NotBefore is absent or less than 15 minutes away is attempted at once,
//     whatever the route is waiting for, but not before a Retry-After ends and at most every 5 s. No wait is longer than a
//     quarter of what is left until NotBefore, and in the last two minutes none is longer than 5 s.
//   - Same batch: a batch that made progress is repeated with the same members. With LateLatest a newer change of an
//     event takes the place of its member, so that who refuses that one does not keep the newer from the others.
//   - Constant cost: an attempt costs no more when 50,000 deliveries are pending.
package delivery
