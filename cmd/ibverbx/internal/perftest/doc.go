// Package perftest is a peer for the tools of perftest, as Debian and others ship them
// (linux-rdma's ib_write_bw and its siblings): it speaks their exchange over TCP, in both roles,
// and moves the messages that they expect over queue pairs of any provider. The queue pairs are
// physical ones, of package verbs: to perftest a connection is as many of them as -q says.
//
// # The conversation
//
// Everything is an exchange of two messages of the same length. The client writes first and then
// reads; the server reads first. The ends say which version they are, three numbers of their hosts
// and then, with a message KEYS for each queue pair, where it is and which memory it offers.
// Nothing is negotiated: the kind of test, -q, -n and -s are given to both ends, and must
// agree. What is left are points at which both wait for each other, again with KEYS of which only
// the arrival matters, and reports of figures. session.go has the order for each kind of test.
//
// perftest reads a message with one call that must bring all of it, so each is written with one
// call; this package reads what comes in pieces too. A message that is not what the order demands
// ends the conversation with an error that says what most probably differs between the two ends.
// This end calls itself perftest 6.06, which every later one accepts: those of 6.28 and up add a
// message among themselves that depends on how they were built.
//
// # What is measured
//
// A bandwidth is that of all queue pairs together. Its time ends with the last completion, and
// begins with the first post or, at an end that receives, when both ends are ready. A latency is
// the time from one message to the next, halved if the peer answers, as in perftest. What arrives
// is not compared with anything, because nobody knows what the peer sends.
//
// # Sources
//
// The source of perftest 4.5-0.17 (version 6.06) and of its master branch of 2026, and what the
// former was seen to send.
package perftest
