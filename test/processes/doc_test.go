// Package processes_test runs programs on packages transport, tagged and shmem as they are run in
// earnest: every member of a team is a process of its own, with memory and NICs of its own, which
// knows of the others only what their cards say. The test binary starts itself once for each
// member. NICs made of software reach no further than their process: on them, the default, members
// are goroutines.
//
//	a test ──► team.run ──► member 0, 1, 2, ...: processes, or goroutines
//	                │              │    │
//	                │              └────┴── NICs: endpoints of the package under test
//	                └── table ◄──── TCP: each lays down a card, and gets those of all
//
// A member that fails or dies ends the whole team and the test, with what it has written. One of
// them may be told to die: it is killed (SIGKILL) in the middle of its work, or, as a goroutine,
// loses its NICs.
package processes_test
