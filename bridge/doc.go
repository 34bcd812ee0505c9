// Package bridge watches a VM's Azure Scheduled Events, says each change as a CloudEvent, and has it delivered to every
// route. It knows no destination and no disk.
//
// One event travels in six hops: imds.Client.Poll → imds.Diff → cloudevent.Wrap and Filter → one outbox.Batch → delivery.Worker →
// delivery.Sink. The second and third are pure. The fourth is the only one that reaches the disk, and no hop reaches
// back.
//
// # Promises
//
//  1. A failed poll changes nothing. Only a valid answer makes an event vanish. An error, a truncated body, HTML and JSON
//     without Events are refused. An empty answer counts when the next one confirms it. A document with an entry
//     whose EventId can't be read makes nothing vanish. If-None-Match carries only what was committed and wholly understood.
//     TestAFailedPollChangesNothing, TestAnEmptyAnswerCountsOnlyWhenTheNextConfirmsIt,
//     TestAPartialDocumentMakesNothingVanish, TestIfNoneMatch
//  2. Pending before sent. What was seen, and every CloudEvent that is due because of it, is one batch, on disk before
//     the first byte leaves. A delivery is settled when the destination has accepted it.
//     TestADeliveryIsOwedBeforeItIsSent, TestOneChangeIsOneBatch, TestReportsAreGrouped
//  3. At least once, and the same change always has the same id: after a crash, a restart, a lost file, from every VM.
//     TestTheSameChangeHasTheSameIDAfterALossAndFromEveryVM, TestACrashRepeatsWhatWasNotNotedWithTheSameID
//  4. In order, per destination and Azure event. Another event's changes wait at most for the attempt under way.
//     TestLanesDoNotWaitForEachOther, TestASinkThatIsBackGetsEverything, TestAReloadUnderLoadLosesAndReordersNothing
//  5. A slow, hung or dead destination delays no other, nor the polling.
//     TestASlowSinkDelaysNeitherOthersNorPolling, TestAHangingDiskDelaysOnce
//  6. Nothing disappears silently. What is given up is a dead letter, what was delivered is on record, and every loss
//     of fidelity is logged.
//     TestWhatIsRejectedIsKept, TestOldDeliveriesExpire, TestOverItsBoundsTheOldestOfTheFullestGoes,
//     TestDeadLettersAreToldTogether
//  7. The whole life of an event is told, also what changed while nobody watched, with the gap stated.
//     TestTheWholeLifeOfAnEventIsTold, TestARestartTellsWhatChangedMeanwhile, TestTheOutcomeIsHonest
//  8. A full or broken disk does not silence it: it runs from memory, says so, and is not ready.
//     TestAFullDiskSilencesNobody, TestADamagedFileIsReadOrSetAside, TestWithoutADiskTheProgramWorksFromMemory
//  9. It never acts on the machine unless told to: without rules nothing is approved, and every doubt means no.
//     TestTheBridgeNeverActsOnTheMachine, TestEveryDoubtMeansNo, TestAnApprovalSurvivesACrashAtEachStep
//  10. No secret is ever printed.
//     TestTheBridgePrintsNoSecret
//
// # Goroutines and locks
//
// Run starts the poll loop, the question who this VM is, the pulse, the housekeeping, the approvals and a worker for
// each route, a goroutine each, and waits for them. The outbox has one more, which alone writes the file.
//
// Whoever derives changes from the open events holds Bridge.deciding until they are handed to the outbox, and waits for
// the disk without it. No lock is held while a disk, a sink or the endpoint is asked. Locks are taken in the order
// Bridge.deciding, Bridge.mu, openEvents.mu, and the outbox's own.
package bridge
