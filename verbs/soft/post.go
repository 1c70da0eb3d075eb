package soft

import "ibverbx/verbs"

// PostSend adds requests to the send queue. In the background mode small ones may have been
// executed when it returns.
func (q *QP) PostSend(wrs []verbs.SendWR) (int, error) {
	f := q.f
	f.mu.Lock()
	n, err := 0, q.core.MaySend()
	if err == nil {
		for n < len(wrs) {
			wr := &wrs[n]
			if err = q.core.CheckSend(wr); err == nil && len(f.injections) != 0 {
				err = f.refuse(q, wr)
			}
			if err != nil {
				break
			}
			q.core.SQ.Push(wr)
			n++
		}
		if n > 0 {
			if q.core.State == verbs.StateErr {
				f.settle(q)
			} else {
				f.engine.posted(q)
			}
		}
	}
	f.mu.Unlock()
	return n, err
}

// PostRecv adds receives to the receive queue.
func (q *QP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	f := q.f
	f.mu.Lock()
	n, err := 0, q.core.MayReceive()
	if err == nil {
		for n < len(wrs) {
			wr := &wrs[n]
			if err = q.core.CheckRecv(wr); err == nil && len(f.injections) != 0 {
				err = f.refuseRecv(q)
			}
			if err != nil {
				break
			}
			q.core.RQ.Push(wr)
			n++
		}
		if n > 0 {
			if q.core.State == verbs.StateErr {
				f.settle(q)
			} else {
				f.receivesPosted(q)
			}
		}
	}
	f.mu.Unlock()
	return n, err
}
