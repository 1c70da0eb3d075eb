// Package hunt looks for broken promises in worlds, and plants bugs to see whether they are found.
// A world is a simulated system with all the events that happen to it, and follows from a seed.
//
// A [Game] plays the world of a seed, with all of its events or some. [Game.Search] plays many
// worlds. [Game.Shrink] leaves out events of a failing world as long as the same promise is broken,
// and records what happens with the remaining events. [Bugs] are deliberate bugs. They are planted
// through the go command's overlay, so the sources do not change.
package hunt
