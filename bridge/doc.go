// Package bridge watches a VM's Azure Scheduled Events, turns each change into a CloudEvent, and delivers it to every
// route. It knows no destination and no disk.
//
// An event travels in six steps. Steps 2 and 3 are pure. What step 4 adds is on disk before step 5 begins:
//
//  1. imds.Client asks for the document.
//  2. imds.Diff compares it with what is known.
//  3. cloudevent.Wrap says each change as a CloudEvent, and a Filter says which routes get it.
//  4. One outbox.Batch makes it pending.
//  5. A delivery.Worker for each route makes attempts.
//  6. A delivery.Sink makes one attempt.
//
// A later step tells an earlier one something, such as that a sink is blocked, only through a function that it was given.
// README.md has a picture of it, with the functions on the way.
//
// # Use
//
// A program that watches a VM opens an outbox, makes a Bridge with its routes, and runs it until it is to stop:
//
//	box, err := outbox.Open("/var/lib/forewarn", outbox.Options{Log: log})
//	b, err := bridge.New(bridge.Options{
//		Client: imds.NewClient(imds.DefaultEndpoint, imds.DefaultAPIVersion, log, nil),
//		Outbox: box,
//		Routes: []bridge.Route{{
//			Name:   "ops",
//			Sink:   sink, // Deliver(ctx, batch) makes one attempt
//			Filter: bridge.Filter{Only: bridge.Only{VMs: "self"}},
//			Terms:  bridge.Terms{Terms: delivery.Terms{Timeout: 10 * time.Second, MaxAge: 24 * time.Hour}},
//		}},
//		Log: log,
//	})
//	err = b.Run(ctx)
//
// Run closes the outbox when ctx is done; what was not delivered is still pending at the next start. While it runs,
// Reload, Mute, Replay and ApproveNow change what it does, and Status says how it is doing. The examples of this package
// run without Azure, against package imdstest.
//
// # Promises
//
//  1. A failed poll changes nothing. Only a valid answer makes an event vanish. An error, a truncated body, HTML and
//     JSON without Events are refused. An answer without a body, or with Events: null, counts when the next poll gets
//     the same. A document with an entry
//     whose EventId can't be read makes nothing vanish. If-None-Match carries only the ETag of a document that was
//     committed and wholly understood.
//     TestAFailedPollChangesNothing, TestAnEmptyAnswerCountsOnlyWhenTheNextConfirmsIt,
//     TestAPartialDocumentMakesNothingVanish, TestIfNoneMatch
//  2. Pending before sent. The document seen and all its CloudEvents are one batch, on disk before the first byte
//     leaves. A delivery is settled when the destination has accepted it.
//     TestADeliveryIsStoredBeforeItIsSent, TestOneChangeIsOneTransaction, TestReportsAreGrouped
//  3. At least once, and the same change always has the same id: after a crash, a restart, a lost file, from every VM.
//     But that an event comes back under its EventId is counted by what each VM remembers.
//     TestTheSameChangeHasTheSameIDAfterALossAndFromEveryVM, TestACrashRepeatsWhatWasNotNotedWithTheSameID
//  4. In order, per destination and Azure event. An event never waits until another's changes are accepted: those
//     that are ready take turns.
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
//  9. It never acts on the machine unless told to: without rules nothing is approved, and every doubt means no. A route
//     with LateDrop begins nothing about an event that has ended.
//     TestTheBridgeNeverActsOnTheMachine, TestEveryDoubtMeansNo, TestAnApprovalSurvivesACrashAtEachStep,
//     TestNothingIsBegunAboutAnEventThatIsOver
//  10. No secret is ever printed.
//     TestTheBridgePrintsNoSecret
//
// # Goroutines and locks
//
// Run polls. It starts a goroutine each for the start of the workers and a file that comes late, the identity of this VM,
// the detection of pauses, housekeeping, approvals, and a worker per route, and waits for all of them. The outbox has one
// that alone writes its file, and one for each read.
//
// All changes of the open events are made by Bridge.update, but that Bridge.join takes over those of a late file, and
// Bridge.learn forgets those of another VM. They hold Bridge.deciding while it is decided and handed to the outbox, and
// release it before they wait for the disk or write to the log. (Logged before are dead letters and what the outbox has no
// room for, and what Bridge.join has taken over.)
//
// No lock is held during I/O with a disk, a sink or the endpoint, but Bridge.reloading, so that reloads come one after the
// other. The order of locks is Bridge.reloading, that of pauses, Bridge.deciding, Bridge.mu, the outbox's own, and last
// those under which a value is only read or written, such as openEvents.mu.
package bridge
