// Package jobtest runs jobs of real processes for tests: a test binary starts itself several times,
// with the environment of a launcher. The processes find each other and compute an all-reduce and a
// stencil that exchanges borders, over RoCE on UDP sockets. One of them is killed in each phase,
// and the others must end with an error that names it.
package jobtest
