// Package jobtest runs jobs of real processes for tests: a test binary that starts itself several
// times, with the environment of a launcher. The processes find each other, compute over RoCE on
// UDP sockets, an all-reduce and a stencil that exchanges borders, and one of them is killed in
// each phase: the others must end with its name.
package jobtest
