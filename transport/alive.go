package transport

import (
	"time"

	"ibverbx/verbs"
)

// aliveRounds is how many rounds of progress go by between two looks at the clock, which costs as
// much as a round.
const aliveRounds = 128

// keepAlive asks the NIC of every peer that was silent since the last time for a sign of life: a
// connection over which nothing travels does not notice that its other end is gone. It is called
// with mu held: every so many rounds of progress, and before a goroutine sleeps.
func (w *Worker) keepAlive() {
	w.rounds = 0
	if w.cfg.KeepAlive < 0 || w.closed {
		return
	}
	now := time.Now()
	if now.Before(w.aliveAt) {
		return
	}
	w.aliveAt = now.Add(w.cfg.KeepAlive)
	for _, c := range w.endpoints {
		if c == nil || !c.connected || c.err != nil || c.stage == stageAborted {
			continue
		}
		if !c.heard && c.ops.empty() {
			c.probe()
		}
		c.heard = false
	}
}

// probe reads a word of the peer's memory. That takes nothing of the peer's program, and fails as
// any operation does.
func (c *core) probe() {
	wr := c.w.get[:]
	wr[0].ID, wr[0].Flags = c.sendID(), verbs.SendSignaled
	wr[0].Local, wr[0].Remote = c.slab.Slice(c.scratch, 8), c.peer.Flush.Slice(0, 8)
	if _, err := c.qp.PostSend(wr...); err != nil {
		if !verbs.IsTransient(err) {
			c.failQP(err)
		}
		return
	}
	*c.ops.push() = op{kind: opControl, buf: noBuffer}
	c.inControl++
	c.w.stats.probes++
}
