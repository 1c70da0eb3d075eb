//go:build race

package roce

import (
	"sync"
	"sync/atomic"
)

// Whatever one NIC writes to memory before it sends a packet is visible to the NIC that receives
// the packet. Within one process the race detector does not know that a socket orders the two, so
// order tells it. Between processes nothing checks it.
var order atomic.Uint64

func packetsOrder() { order.Add(1) }

// landing keeps two NICs of a process from writing to memory at the same time. Programs may have
// both write to the same place, as NICs do; the race detector would report it.
var landing sync.Mutex

func beginLanding() { landing.Lock() }
func endLanding()   { landing.Unlock() }
