package transport

// chores lists the endpoints that need something which few rounds of progress have to do. Worker.mu
// guards it.
//
// Invariant: an endpoint is in closing if its stage is aborted, and no longer once it is released;
// it is in reposts if and only if its receiving.repostListed is set.
type chores struct {
	failing []*peerState // failed; OnError is still to be called
	closing []*peerState // aborted; they may have completions left, and then are released
	lostCQ  []*peerState // their CQ has died: not every operation has a completion to come
	reposts []*peerState // have receive buffers to post again
	// toCredit lists endpoints that have credits to give back, and could not send them. settle
	// walks it while spare, an empty slice, takes its place.
	toCredit, spare []*peerState
	// refused reports that a NIC has refused something for now; the next round tries again.
	refused bool
}

// due reports whether a round has to call settle.
func (c *chores) due() bool {
	return len(c.failing)+len(c.closing)+len(c.toCredit)+len(c.lostCQ) != 0 || c.refused
}

// urgent reports whether there is something to do that no event of a NIC announces.
func (c *chores) urgent() bool { return c.refused || len(c.failing)+len(c.closing) != 0 }

// retryCredits has the next round try again to give the endpoint's credits back.
func (c *chores) retryCredits(p *peerState) { c.toCredit = append(c.toCredit, p) }

// repost has the endpoint's buffers posted before this round of progress ends.
func (c *chores) repost(p *peerState) {
	if !p.receiving.repostListed {
		p.receiving.repostListed = true
		c.reposts = append(c.reposts, p)
	}
}

// settle does the chores except reposts: it reports failures, gives credits back, and releases what
// was aborted. n is how many completions this round brought. It returns how much it did.
func (w *Worker) settle(n int) (did int) {
	c := &w.chores
	c.refused = false
	for _, p := range c.failing {
		w.round.report(event{kind: eventError, peer: p, err: p.ending.err})
	}
	c.failing = c.failing[:0]
	list := c.toCredit
	c.toCredit = c.spare[:0]
	for _, p := range list {
		p.giveCredits() // which may list it anew
	}
	c.spare = list[:0]
	if n == len(w.wcs) {
		return 0 // completions of aborted endpoints may still be among those to come
	}
	for _, p := range c.lostCQ {
		did += p.retireAll()
	}
	c.lostCQ = nil
	left := c.closing[:0]
	for _, p := range c.closing {
		if p.sending.pending.any() {
			left = append(left, p) // dispatchPending has not called all of its requests yet
			continue
		}
		p.release()
		did++
	}
	clear(c.closing[len(left):])
	c.closing = left
	return did
}
