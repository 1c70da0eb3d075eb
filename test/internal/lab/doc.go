// Package lab is the laboratory of the simulations: hosts with NICs on a fabric in which nothing
// happens by itself (that of package soft, or a [Network] of others), taps between the library and
// the NICs, faults, memory whose every byte is known, and choices that follow from a seed. The
// kits, test/sim and test/sendside, have the worlds and their models; package hunt searches and
// shrinks worlds and plants bugs.
//
// # A run
//
// A kit draws a plan from a seed ([Plan], [DrawEvents]) and gives it to package hunt ([Game]). To
// play a plan it embeds a [Testbed] in its world and calls [Testbed.Play], which turns the first
// broken promise, and any panic, into a [hunt.Violation]. In that call it uses [Testbed.Build] and
// then [PlayEvents].
//
// # Choices
//
// Everything random comes from Testbed.Rng, which [PlayEvents] seeds again for each event: so a
// world without one of its events is a valid world, in which the other events mean the same. An
// extra draw, or a draw in another order, changes the worlds of all seeds.
//
// # Models
//
// [Memory] knows what each byte of a host must be. [Conn] knows why a connection may fail: faults
// record the connections that they concern, and a failure without a cause is a broken promise
// ([Isolation]). Faults are rows of the table [Faults]; [Testbed.Strike] injects one.
//
// Hooks wrap what the library creates on a NIC, so that a kit sees every physical work request and
// completion. A wrapper embeds [CQ] or [QP] and has methods for the calls that it watches.
package lab
