// Package roce plants bugs in the engine of RoCEv2 (verbs/roce/internal/rc) and in the NICs around
// it (verbs/roce), and requires that the simulation of each finds them. The simulations are tests
// of those packages, because only these can reach the inside.
//
// It also tests NICs of verbs/roce against a NIC of the kernel, given by flags; the virtual machine
// of test/rxe has one.
package roce
