package transport

import (
	"time"

	"ibverbx/verbs"
)

// keepAliveRounds is how many rounds of progress go by between two looks at the clock, which costs
// as much as a round.
const keepAliveRounds = 128

// probeClock says when silent peers are probed next.
type probeClock struct {
	rounds int       // of progress since keepAlive last looked at the clock
	at     time.Time // when the next probes are due
}

// tick counts a round of progress. It reports whether keepAlive should look at the clock.
func (c *probeClock) tick() bool {
	c.rounds++
	return c.rounds >= keepAliveRounds
}

// due reports whether probes are due, and if so has the next ones follow after an interval.
func (c *probeClock) due(interval time.Duration) bool {
	now := time.Now()
	if now.Before(c.at) {
		return false
	}
	c.at = now.Add(interval)
	return true
}

// keepAlive probes every peer from which nothing has come since the last time: a connection over
// which nothing travels does not notice that its other end is gone. It is called with mu held,
// every keepAliveRounds rounds of progress and before a goroutine sleeps.
func (w *Worker) keepAlive() {
	w.probes.rounds = 0
	if w.cfg.KeepAlive < 0 || w.life.closed() || !w.probes.due(w.cfg.KeepAlive) {
		return
	}
	for p := range w.endpoints.all {
		if !p.ending.stage.serves() {
			continue
		}
		if !p.receiving.aliveSinceProbe && p.sending.idle() {
			p.probe()
		}
		p.receiving.aliveSinceProbe = false
	}
}

// probe reads a word of the peer's memory. That needs nothing of the peer's program, and fails as
// any operation does.
func (p *peerState) probe() {
	wr := p.w.templates.get[:]
	wr[0].ID, wr[0].Flags = p.sendID(), verbs.SendSignaled
	wr[0].Local, wr[0].Remote = p.mem.scratch(8), p.conn.flush.Slice(0, 8)
	if _, err := p.conn.qp.PostSend(wr...); err != nil {
		if !verbs.IsTransient(err) {
			p.failQP(err)
		}
		return
	}
	p.sending.pushControl(opProbe)
	p.w.stats.probes++
}
