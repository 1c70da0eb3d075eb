package ibverbx

import "fmt"

// checkInvariants checks every component. Builds that check call it after each method that changes
// something; see guard.go.
func (q *VirtualQP) checkInvariants() {
	q.line.check()
	q.send.rails.check()
	if q.pass != nil {
		q.pass.check()
		return
	}
	q.send.check()
	q.recv.check(&q.send.rails)
	if q.failover != nil {
		q.failover.check()
	}
}

// checkedRequests is up to how many live requests a check looks at each: it runs after every call.
const checkedRequests = 64

// broken panics with the invariant that does not hold. Only checks of invariants call it. The
// checks run on the hot path of builds that check: arguments are boxed only where they are needed.
func broken(format string, args ...any) {
	panic("ibverbx: broken invariant: " + fmt.Sprintf(format, args...))
}
