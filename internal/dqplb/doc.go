// Package dqplb is the arithmetic of DQPLB, dynamic queue pair load balancing: how a sender numbers
// the messages of a connection that travel on many queue pairs, and how the receiver puts them back
// in order.
//
// Every fragment of a notifying write is a message with a number; the last one of a request is
// marked. The receiver notifies its user once for each mark in the prefix without gaps, so a
// notification means that everything before it has arrived.
//
//	Sender.Next ──► Swap ──► wire ──► Inbox ──► Receiver.Arrive ──► Notification
//	     ▲                            order of    order of the
//	Sender.Ack                        one rail    connection
//
// Numbers count from 0 to [Mod]-1 and then from 0 again; [Mod] itself, 0xFFFFFF, is never sent. The
// number travels in the low 24 bits of the immediate, [Last] in bit 31. The C++ original stores
// that immediate without htonl, so it is little-endian on the wire, unlike every other: [Swap].
//
// Everything here is plain memory and arithmetic. It knows no queue pair, posts nothing and reads
// no clock. A violation by the peer is returned as an error. Nothing is safe for concurrent use.
package dqplb
