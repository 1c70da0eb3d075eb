// Package hunt looks for broken promises in worlds that follow from seeds, and plants bugs to see
// whether they are found.
//
// A [Game] plays the world of a seed, all of its events or some. [Game.Search] plays many;
// [Game.Shrink] leaves out events of a world that fails for as long as the same promise is broken,
// and tells what happens in what is left. [Bugs] are deliberate bugs, planted by way of the go
// command's overlay: the sources stay as they are.
package hunt
