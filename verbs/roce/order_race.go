//go:build race

package roce

import "sync/atomic"

// What one NIC writes to memory before it sends a packet is there when another one has received
// it. Between processes nobody checks that; within one, the race detector does not see that a
// socket orders things, and is told here.
var order atomic.Uint64

func packetsOrder() { order.Add(1) }
