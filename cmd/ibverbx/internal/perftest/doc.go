// Package perftest is a peer for the tools of perftest, as Debian and others ship them
// (linux-rdma's ib_write_bw and its siblings): it speaks their exchange over TCP, in both roles,
// and moves the messages that they expect over queue pairs of any provider. The queue pairs are
// physical ones, of package verbs: to perftest a connection is -q queue pairs.
//
// # The conversation
//
// Everything is an exchange of two messages of the same length. The client writes first and then
// reads; the server reads first. The ends send their versions, three numbers of their hosts, and
// then a message KEYS for each queue pair with its address and its memory. Nothing is negotiated:
// the kind of test, -q, -n and -s are given to both ends, and must agree. The rest are points at
// which both wait for each other, again with KEYS of which only the arrival matters, and reports of
// figures. session.go has the order for each kind of test.
//
// perftest reads a message with one call that must return all of it, so each is written with one
// call; this package also reads messages in pieces. An unexpected message ends the conversation
// with an error that says what probably differs between the two ends. This end calls itself
// perftest 6.06, which every later one accepts: from 6.28 on, two ends exchange one more message,
// which depends on how they were built.
//
// # What is measured
//
// A bandwidth is that of all queue pairs together. Its time ends with the last completion, and
// begins with the first post or, at an end that receives, when both ends are ready. A latency is
// the time from one message to the next, halved if the peer answers, as in perftest. Arriving data
// is not verified, because the peer's data is unknown.
//
// # Sources
//
// The source of perftest 4.5-0.17 (version 6.06) and of its master branch of 2026, and messages
// observed from the former.
package perftest
