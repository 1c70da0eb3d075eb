// Package jobtest runs jobs of real processes for tests: a test binary that starts itself several
// times, with the environment of a launcher. The processes find each other, add up a vector over
// RoCE on UDP sockets, and one of them is killed in each phase: the others must end with its name.
package jobtest
