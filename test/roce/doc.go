// Package roce plants bugs in the engine of RoCEv2 (verbs/roce/internal/rc) and in the NICs around
// it (verbs/roce), and demands that the simulation of each finds them. The simulations are tests of
// those packages, which alone may reach what is inside; here is what the other simulations have
// beside theirs.
//
// It also tests NICs of verbs/roce against a NIC of the kernel, which flags name; the virtual
// machine of test/rxe has one.
package roce
