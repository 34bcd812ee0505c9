// Package bridge is what the program is: it watches a VM's Azure Scheduled Events, says each change as a CloudEvent, and
// delivers that to every route. It knows no destination; those are Sinks, which others write.
//
// One event travels in six hops: Client.Poll → Diff → Wrap and Filter → Outbox.Commit → the route's worker →
// Sink.Deliver. The second and third are pure; the fourth is the only one that touches the disk.
//
// # Promises
//
//  1. A failed poll changes nothing. Only a valid answer makes an event vanish: an error, a cut body, a page, JSON
//     without Events are refused; an empty answer counts when the next confirms it; a document with an entry that cannot
//     be told from others makes nothing vanish; If-None-Match carries only what was committed and understood.
//     TestAFailedPollChangesNothing, TestAnEmptyAnswerCountsOnlyWhenTheNextConfirmsIt,
//     TestAPartialDocumentMakesNothingVanish, TestIfNoneMatch
//  2. Owed before sent. What was seen and every CloudEvent owed because of it are in one durable transaction before the
//     first byte leaves; a delivery is settled when the destination has accepted it.
//     TestADeliveryIsOwedBeforeItIsSent, TestSettlingIsGrouped
//  3. At least once, and the same change always has the same id: after a crash, a restart, a lost file, and from every VM.
//     TestSimulation, TestTheSameChangeHasTheSameIDAfterALossAndFromEveryVM
//  4. In order, per destination and Azure event; another event's changes wait at most for the attempt under way.
//     TestLanesDoNotWaitForEachOther, TestASinkThatIsBackGetsEverything, TestAReloadUnderLoadLosesAndReordersNothing
//  5. A slow, hung or dead destination delays no other, nor the polling.
//     TestASlowSinkDelaysNeitherOthersNorPolling
//  6. Nothing disappears silently: what is given up is a dead letter, what was delivered is on record, and every loss of
//     fidelity is logged.
//     TestWhatIsRejectedIsKept, TestOldDeliveriesExpire, TestOverItsBoundsTheOldestOfTheFullestGoes,
//     TestDeadLettersAreToldTogether
//  7. The whole life of an event is told, also what changed while nobody watched, with the gap stated.
//     TestTheWholeLifeOfAnEventIsTold, TestARestartTellsWhatChangedMeanwhile, TestTheOutcomeIsHonest
//  8. A full or broken disk does not silence it: it goes on from memory, says so, and is not ready.
//     TestAFullDiskSilencesNobody, TestAHangingDiskDelaysOnce, TestADamagedFileIsReadOrSetAside,
//     TestWithoutADiskTheProgramWorksFromMemory
//  9. It never acts on the machine unless told to: without rules nothing is approved, and every doubt means no.
//     TestTheBridgeNeverActsOnTheMachine, TestEveryDoubtMeansNo, TestAnApprovalSurvivesACrashAtEachStep
//  10. No secret is ever printed.
//     TestTheBridgePrintsNoSecret
//
// # Who owns what
//
// The poll loop, the question who this VM is, the housekeeping, the approvals and each route's worker are a
// goroutine each, started and waited for by Run; the worker alone touches its schedule, and has a goroutine for each attempt under way. The store of
// an Outbox has one more, which alone writes the file. No lock is held while a sink or the endpoint is called. Locks are
// taken in the order Bridge.deciding, Bridge.mu, store.file, Outbox.mu, store.mu, as far as one holds several.
package bridge
