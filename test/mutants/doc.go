// Mutants measures how well the tests notice slips: it plants random ones, each a mutant of one
// point of the source, and runs the tests against each.
//
//	make mutants                              150 mutants of all packages
//	make mutants N=40 SEED=7 PACKAGES=tagged  40 of one package, another sample
//	make mutants AGAIN=survivors.txt          those that an earlier run listed
//
// A mutant reverses a comparison, moves a bound by one, swaps + and -, fixes the outcome of an if,
// leaves a statement out, or returns nil in place of an error. Tests that fail, crash or hang have
// found it. The package's own tests run first, then the simulations that play it, those of failover
// and over the NICs of package roce included, and for an internal package the tests of its
// importers. The imports decide that (judge.go).
//
// Every survivor is printed with its place, in the form that -survivors writes to a file and -again
// reads. Add a survivor that behaves like the original to testdata/equivalent.txt, with the reason;
// it is not drawn again.
//
// Almost all mutants of a sample are built into the same test binaries, each behind a condition,
// and the environment chooses one: a mutant costs one run of the tests, and no build. The few that
// cannot have a condition, such as those of constants, are built alone. The sources do not change:
// everything uses the go command's overlay.
//
// Gremlins and go-mutesting do not fit: neither draws a sample, runs other packages' tests in
// order, or remembers a mutant that a person has judged, and both build once per mutant.
package main
