package shmem

import (
	"context"
	"sync/atomic"

	"ibverbx/transport"
)

// A PE that waits in a collective call for long sleeps. Writes by others raise no event, so it asks
// for one: it sets its sleep word in the heap of each PE that it waits for, and clears it when the
// wait is over. A PE that puts a word of the package's own for another looks at that one's sleep
// word afterwards, and if it is set sends an active message, behind a fence.
//
// A wake-up cannot be missed, except for writes on their way: either the word was put before the
// sleep word came, or the active message follows. A word that was put before is there when the PE
// has waited a little longer (asleepAfter). Where that is not enough, or the message finds no
// credit, the PE looks again after sleepStep: a wake-up that is lost costs time only.

// wakeID is the id of the active message that wakes a PE.
const wakeID transport.AMID = 0

// askToWake asks the peer to wake this PE with each word that it puts. If that is not possible the
// PE sleeps nevertheless; its endpoint reports a peer that has failed.
func (t *peer) askToWake(ctx context.Context) {
	if !t.wakes && t.order(ctx) == nil { // the word that was put last must not land later
		t.wakes = true
		t.pe.wakers++
		_ = t.putSleepWord(ctx, 1)
	}
}

// stopWaking withdraws that. Where there is no room for it before ctx ends, the peer continues to
// wake this PE, and the next collective call withdraws it.
func (t *peer) stopWaking(ctx context.Context) {
	if !t.wakes || t.order(ctx) != nil { // the two words must not pass each other
		return
	}
	if t.putSleepWord(ctx, 0) == nil {
		t.wakes = false
		t.pe.wakers--
	}
}

func (t *peer) putSleepWord(ctx context.Context, v uint64) error {
	c := t.pe.getCall()
	c.word[0] = v
	err := t.putShort(ctx, bytesOf(c.word[:]), t.pe.layout.sleeps(t.pe.id))
	t.pe.putCall(c)
	return err
}

// wake wakes the peer if it has asked for that, so that it sees the word that was put last.
func (t *peer) wake(ctx context.Context) {
	if atomic.LoadUint64(word64(t.pe.heap, t.pe.layout.sleeps(t.id))) == 0 || t.order(ctx) != nil {
		return
	}
	if err := t.ep.AMShort(wakeID, nil, nil); isNoResource(err) {
		t.pe.worker.Progress()
		_ = t.ep.AMShort(wakeID, nil, nil)
	}
}

// woken handles the active message that wakes this PE. Its arrival suffices.
func woken(*transport.Message) {}
