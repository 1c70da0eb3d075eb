package ibverbx

import (
	"cmp"
	"fmt"
	"time"

	"ibverbx/verbs"
)

// ConnConfig holds the attributes with which the physical queue pairs are connected. The zero value
// works: in every field 0 means the default. [None] means zero, in the fields that name it.
type ConnConfig struct {
	// Port is the local port on every device; 0 means the device's own default,
	// [verbs.Device.DefaultPort].
	Port uint8
	// GIDIndex selects the source GID: n means entry n of the port's table, [None] entry 0. 0
	// chooses automatically: RoCE v2 before anything else, of these a routable address before a
	// link-local one, and IPv4 before IPv6.
	GIDIndex int
	// MTU is the path MTU; 0 means the smaller of the two ends' active MTUs.
	MTU verbs.MTU
	// Patience sets Timeout and RetryCount if they are 0. The default, [PatienceAuto], is 3.8
	// seconds over software NICs and 34 over others.
	Patience Patience
	// Timeout is the code of the acknowledgement timeout, 1 to 31, [verbs.AckTimeout]; 0 means that
	// of Patience, [None] no timeout: the NIC waits forever.
	Timeout int
	// RetryCount is the number of retries, 1 to 7, or [None]; 0 means that of Patience. With 7
	// rdma_rxe retries forever.
	RetryCount int
	// RNRRetry is the number of retries when the receiver is not ready, 1 to 7, or [None]; 0 means
	// 7, which is forever.
	//
	// No finite number suits all programs. NICs count to 6, which with the default MinRNRTimer is 4
	// ms: a receiver that computes for longer would end the connection. Pauses long enough for it,
	// such as 655 ms, would hold up every sender that is ahead of its receiver, although that is
	// the usual way for a receiver to slow down a sender ([Config].MaxBanked). NCCL, UCX and the
	// C++ original retry forever too. So a request for which the peer never posts a receive waits
	// until the context of Wait or Drain ends. Package transport takes 6, because its credits
	// ensure a receive.
	RNRRetry int
	// MinRNRTimer is the code of the pause before such a retry, 1 to 31, [verbs.RNRTimer]; 0 means
	// 12, which is 0.64 ms, and [None] code 0, which is 655 ms.
	MinRNRTimer int
	// MaxRDAtomic is how many reads and atomics a queue pair has outstanding; 0 means 16, or what
	// the NIC allows.
	MaxRDAtomic uint8
	// Access is what the peer may do; a memory region must grant it too. 0 means local and remote
	// write, because notifications and the package's own messages are writes, if of no bytes. If
	// the peer reads or does atomics, add [verbs.AccessRemoteRead] and [verbs.AccessRemoteAtomic],
	// or set [verbs.AccessAll].
	Access verbs.AccessFlags
	// TrafficClass goes into the packets' IP header on RoCE v2. Package verbs/roce takes the DSCP
	// of it, the upper six bits.
	TrafficClass uint8
	// SL is the service level.
	SL uint8
	// SpreadPaths gives each queue pair its own flow label. On RoCE v2 the label determines the UDP
	// source port, so switches that choose a path by hashing send the rails of one NIC over
	// different paths. Without it the kernel derives the port from the queue pairs' numbers, and
	// two rails may share a path while others are idle. On InfiniBand the subnet manager chooses.
	SpreadPaths bool
	// ImmLittleEndian sends and receives immediates ([SendWR].Imm) with the least significant byte
	// first. The C++ original stores and reads them that way, as its host does; verbs otherwise has
	// them big-endian. Two ends of this package must agree, which their cards ensure.
	ImmLittleEndian bool
	// PeerGIDs are the peer's GIDs, one for each local data queue pair and then one for the notify
	// QP. You need them only if the peer's business card has none.
	PeerGIDs []verbs.GID
}

func (c ConnConfig) withDefaults(devices []verbs.Device) ConnConfig {
	if c.Timeout == 0 || c.RetryCount == 0 {
		timeout, retries := c.Patience.codes(devices)
		c.Timeout, c.RetryCount = cmp.Or(c.Timeout, timeout), cmp.Or(c.RetryCount, retries)
	}
	if c.RNRRetry == 0 {
		c.RNRRetry = verbs.RNRRetryForever
	}
	if c.MinRNRTimer == 0 {
		c.MinRNRTimer = 12
	}
	if c.MaxRDAtomic == 0 {
		c.MaxRDAtomic = 16
	}
	if c.Access == 0 {
		c.Access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	}
	return c
}

// givesUpAfter returns givesUpAfter for a configuration whose defaults have been filled in.
func (c *ConnConfig) givesUpAfter() time.Duration {
	return givesUpAfter(attr(c.Timeout), attr(c.RetryCount))
}

// givesUpAfter returns the time after which a NIC gives up on a peer that does not answer; 0 means
// never.
func givesUpAfter(timeout, retries uint8) time.Duration {
	return verbs.AckTimeout(timeout) * time.Duration(retries+1)
}

// attr returns the attribute of a queue pair for a field of ConnConfig: zero for None.
func attr(v int) uint8 { return uint8(max(0, v)) }

func (c *ConnConfig) validate() error {
	switch {
	case c.GIDIndex < None || c.GIDIndex > 255:
		return configError("Conn.GIDIndex %d: must be 1 to 255, 0 (automatic), or -1 for entry 0", c.GIDIndex)
	case c.MTU > verbs.MTU4096:
		return configError("Conn.MTU %d: is a code, %d (256 bytes) to %d (4096 bytes)", uint32(c.MTU),
			verbs.MTU256, verbs.MTU4096)
	case c.Patience > PatienceFabric:
		return configError("Conn.Patience %d: have PatienceAuto (%d), PatienceShort (%d) and "+
			"PatienceFabric (%d)", c.Patience, PatienceAuto, PatienceShort, PatienceFabric)
	case c.SL > 15:
		return configError("Conn.SL %d: is a code of 4 bits", c.SL)
	case !c.Access.Valid() || c.Access&^verbs.AccessAll != 0:
		return configError("Conn.Access %v: unknown or not a right of queue pairs, or remote write without "+
			"local write", c.Access)
	}
	for _, f := range [...]struct {
		name    string
		v, most int
		says    string // text for 0 and None
	}{
		{"Timeout", c.Timeout, 31, "0 for that of Patience, or -1 for no timeout"},
		{"RetryCount", c.RetryCount, 7, "0 for that of Patience, or -1 for none"},
		{"RNRRetry", c.RNRRetry, 7, "0 for 7, or -1 for none"},
		{"MinRNRTimer", c.MinRNRTimer, 31, "0 for 12, or -1 for code 0"},
	} {
		if f.v < None || f.v > f.most {
			return configError("Conn.%s %d: must be 1 to %d, %s", f.name, f.v, f.most, f.says)
		}
	}
	return nil
}

// Patience names how long a NIC tries to reach the peer before a request fails: the acknowledgement
// timeout and the number of retries. A NIC may wait up to four times the timeout before a retry
// (IBTA 9.7.6.1.3).
type Patience uint8

const (
	// PatienceAuto is the default: a timeout of code 17 (0.54 s) and 6 retries, 3.8 seconds in all,
	// if all NICs of this end are software (package roce, rdma_rxe), and otherwise
	// [PatienceFabric]. A software NIC answers when its process gets a processor, so a busy host,
	// Ctrl-Z and a debugger hold it up; they do not affect other NICs.
	PatienceAuto Patience = iota
	// PatienceShort is a timeout of code 14 (67 ms) and 6 retries: half a second. It is for tests,
	// and for connections with failover over redundant paths. A peer that is gone is noticed at
	// once, but a peer that is only busy is given up, too.
	PatienceShort
	// PatienceFabric is a timeout of code 20 (4.3 s) and 7 retries: 34 seconds, in which a switch
	// may reboot. NCCL adopted these values after short link outages had ended jobs, and the C++
	// original has them too; UCX waits 8.6 seconds. Over software NICs it is 6 retries, 30 seconds,
	// because 7 never end on rdma_rxe.
	PatienceFabric
)

// String returns the name of the constant.
func (p Patience) String() string {
	switch p {
	case PatienceAuto:
		return "PatienceAuto"
	case PatienceShort:
		return "PatienceShort"
	case PatienceFabric:
		return "PatienceFabric"
	}
	return fmt.Sprintf("unknown patience %d", uint8(p))
}

// codes returns the timeout and the number of retries over these devices, as attributes of a queue
// pair.
func (p Patience) codes(devices []verbs.Device) (timeout, retries int) {
	switch software := inSoftware(devices); {
	case p == PatienceShort:
		return 14, 6
	case !software:
		return 20, 7
	case p == PatienceFabric:
		return 20, 6
	}
	return 17, 6 // not 7 retries: rdma_rxe would retry forever
}

// inSoftware reports whether all devices are software NICs.
func inSoftware(devices []verbs.Device) bool {
	for _, d := range devices {
		if attr, err := d.Query(); err != nil || !attr.Software {
			return false
		}
	}
	return true
}

// port returns the number of the local port that a device's rails use.
func (c *ConnConfig) port(dev verbs.Device) uint8 {
	if c.Port != 0 {
		return c.Port
	}
	return uint8(dev.DefaultPort())
}
