// Package roce plants bugs in the engine of RoCEv2 (verbs/roce/internal/rc) and demands that its
// simulation finds each. The simulation is a test of that package, which alone may reach the
// engine; here is what the other simulations have beside theirs.
//
// It also tests NICs of verbs/roce against a NIC of the kernel, which flags name; the virtual
// machine of test/rxe has one.
package roce
