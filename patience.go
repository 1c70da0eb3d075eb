package ibverbx

// Patience names how long a NIC tries to reach the peer before a request fails: the acknowledgement
// timeout and the number of retries. A NIC may wait up to four times the timeout before a retry
// (IBTA 9.7.6.1.3).
type Patience uint8

const (
	// PatienceShort is a timeout of code 14 (67 ms) and 6 retries: half a second. It is the
	// default, for tests and programs that start together: a peer that is gone is noticed at once.
	// In a large fabric a switch that reboots or a route that changes takes longer than that.
	PatienceShort Patience = iota
	// PatienceFabric is a timeout of code 20 (4.3 s) and 7 retries: 34 seconds. It is for
	// production on real networks; NCCL adopted these values after short link outages had ended
	// jobs. A peer that is gone is then noticed after half a minute, and on rdma_rxe, which retries
	// for ever with 7, not at all.
	PatienceFabric
)

// codes are the timeout and the number of retries, as attributes of a queue pair.
func (p Patience) codes() (timeout, retries int) {
	if p == PatienceFabric {
		return 20, 7
	}
	return 14, 6 // not 7 retries: rdma_rxe would retry for ever
}
