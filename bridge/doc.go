// Package bridge watches a VM's Azure Scheduled Events, turns each change into a CloudEvent, and delivers it to every
// route. It knows no destination and no disk.
//
// One event travels in six hops: imds.Client.Poll → imds.Diff → cloudevent.Wrap and Filter → one outbox.Batch →
// delivery.Worker → delivery.Sink. The second and third are pure. Only the outbox reaches the disk. What a later hop
// has to tell an earlier one, such as that a sink is blocked, it tells a function that it was given. README.md names all
// functions on the way.
//
// # Promises
//
//  1. A failed poll changes nothing. Only a valid answer makes an event vanish. An error, a truncated body, HTML and
//     JSON without Events are refused. An empty answer counts when the next one confirms it. A document with an entry
//     whose EventId can't be read makes nothing vanish. If-None-Match carries only the ETag of a document that was
//     committed and wholly understood.
//     TestAFailedPollChangesNothing, TestAnEmptyAnswerCountsOnlyWhenTheNextConfirmsIt,
//     TestAPartialDocumentMakesNothingVanish, TestIfNoneMatch
//  2. Pending before sent. The document seen and all its CloudEvents are one batch, on disk before the first byte
//     leaves. A delivery is settled when the destination has accepted it.
//     TestADeliveryIsStoredBeforeItIsSent, TestOneChangeIsOneTransaction, TestReportsAreGrouped
//  3. At least once, and the same change always has the same id: after a crash, a restart, a lost file, from every VM.
//     TestTheSameChangeHasTheSameIDAfterALossAndFromEveryVM, TestACrashRepeatsWhatWasNotNotedWithTheSameID
//  4. In order, per destination and Azure event. Another event's changes wait at most for the attempt under way.
//     TestLanesDoNotWaitForEachOther, TestASinkThatIsBackGetsEverything, TestAReloadUnderLoadLosesAndReordersNothing
//  5. A slow, hung or dead destination delays no other, nor the polling.
//     TestASlowSinkDelaysNeitherOthersNorPolling, TestAHangingDiskDelaysOnce
//  6. Nothing disappears silently. A delivery that fails for good becomes a dead letter, every delivery is recorded,
//     and every loss of fidelity is logged.
//     TestWhatIsRejectedIsKept, TestOldDeliveriesExpire, TestBoundsDropTheOldestOfTheLargestQueue,
//     TestDeadLettersAreReportedTogether
//  7. Every change of an event is delivered, also changes while the bridge was down, with the gap stated.
//     TestTheWholeLifeOfAnEventIsDelivered, TestARestartTellsWhatChangedMeanwhile, TestTheOutcomeIsHonest
//  8. A full or broken disk does not silence it: it runs from memory, says so, and is not ready.
//     TestAFullDiskSilencesNobody, TestDamagedFileIsReadOrSetAside, TestWithoutADiskTheProgramWorksFromMemory
//  9. It never acts on the machine unless told to: without rules nothing is approved, and every doubt means no. What a
//     route with LateDrop has not begun when its event ends is not begun.
//     TestTheBridgeNeverActsOnTheMachine, TestEveryDoubtMeansNo, TestAnApprovalSurvivesACrashAtEachStep,
//     TestNothingIsBegunAboutAnEventThatIsOver
//  10. No secret is ever printed.
//     TestTheBridgePrintsNoSecret
//
// # Goroutines and locks
//
// Run starts a goroutine each for the poll loop, the identity of this VM, the discovery of the endpoint, the detection
// of pauses, housekeeping, approvals, and a worker per route, and waits for all of them. The outbox has one that
// alone writes its file, and one for each read.
//
// Bridge.update makes all changes of the open events: it holds Bridge.deciding while they are decided and handed to the
// outbox, and releases it before it writes to the log or waits for the disk. Only dead letters are logged before.
// No lock is held during I/O with a disk, a sink or the endpoint. The order of locks is Bridge.deciding, Bridge.mu,
// openEvents.mu, and the outbox's own.
package bridge
