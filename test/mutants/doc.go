// Mutants says how well the tests would notice a slip: it plants random ones, each a mutant of one
// point of the source, and runs the tests against each.
//
//	make mutants                              150 mutants of the core
//	make mutants N=40 SEED=7 PACKAGES=tagged  40 of one package, another sample
//	make mutants AGAIN=survivors.txt          those that an earlier run has listed
//
// A mutant turns a comparison, moves a bound by one, swaps + and -, decides an if for good, leaves
// a statement out, or returns nil in place of an error. Tests that fail, crash or hang have found
// it. The package's own tests are asked first, then the simulation that plays it.
//
// Every mutant that survives is printed with its place and in the form in which -survivors writes
// it to a file, and -again reads it. A survivor that behaves as the original does belongs into
// testdata/equivalent.txt, with the reason: it is drawn no more.
//
// Almost all mutants of a sample are built into the same test binaries, each behind a condition,
// and the environment chooses one: a mutant costs one run of the tests, and no build. The few that
// cannot stand beside others, such as those of constants, are built alone. The sources do not
// change: everything goes by way of the go command's overlay.
//
// Gremlins and go-mutesting were looked at first. Neither draws a sample, asks other packages'
// tests in an order, or knows of a mutant that was judged; and both build once for each mutant,
// which here takes longer than the tests.
package main
