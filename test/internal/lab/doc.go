// Package lab is the laboratory in which the simulations play: hosts with NICs on a fabric in which
// nothing happens by itself (that of package soft, or a [Network] of others), taps between the
// library and the NICs, faults, memory whose every byte is known, and choices that follow from a
// seed. The worlds and their models are in the kits that play here, packages test/sim and
// test/sendside; package hunt searches and shrinks worlds and plants bugs.
//
// # A run
//
// A kit draws a plan from a seed ([Plan], [DrawEvents]) and gives it to package hunt ([Game]). To
// play a plan it embeds a [Testbed] in its world and calls [Testbed.Play], which turns the first
// broken promise, and any panic, into a [hunt.Violation]. In there it calls [Testbed.Build] and
// then [PlayEvents].
//
// # Choices
//
// Everything random comes from Testbed.Rng, which [PlayEvents] seeds anew for each event: so a
// world without one of its events is a world again, and the other events mean the same. An extra
// draw, or a draw in another order, changes the worlds of all seeds.
//
// # Models
//
// [Memory] says what each byte of a host must be. [Conn] says why a connection may fail: faults
// note whom they concern, and a failure that nothing accounts for is a broken promise
// ([Isolation]). Faults are rows of the table [Faults]; [Testbed.Strike] puts one in force.
//
// Hooks wrap what the library creates on a NIC, so that a kit sees every physical work request and
// completion. A wrapper embeds [CQ] or [QP] and has methods for the calls that it watches.
package lab
