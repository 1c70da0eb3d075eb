//go:build race

package roce

import (
	"sync"
	"sync/atomic"
)

// What one NIC writes to memory before it sends a packet is there when another one has received
// it. Between processes nobody checks that; within one, the race detector does not see that a
// socket orders things, and is told here.
var order atomic.Uint64

func packetsOrder() { order.Add(1) }

// landing keeps two NICs of a process from writing to memory at the same time. Programs may have
// both write to the same place, as NICs do; the race detector would report it.
var landing sync.Mutex

func beginLanding() { landing.Lock() }
func endLanding()   { landing.Unlock() }
