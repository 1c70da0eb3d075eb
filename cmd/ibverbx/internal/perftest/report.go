package perftest

import "ibverbx/verbs"

// Peer is the other end, as far as the conversation shows it.
type Peer struct {
	Address string    `json:"address"`
	Version string    `json:"version"` // of perftest
	GID     verbs.GID `json:"gid"`
	MTU     int       `json:"mtu_bytes"` // that it can have
}

// Report is what was done.
type Report struct {
	Kind          Kind      `json:"test"`
	Client        bool      `json:"client"`
	QPs           int       `json:"qps"`
	Bidirectional bool      `json:"bidirectional"`
	TxDepth       int       `json:"tx_depth"` // sends outstanding on a queue pair
	NIC           string    `json:"nic"`
	GID           verbs.GID `json:"gid"`
	PathMTU       int       `json:"path_mtu_bytes"`
	Peer          Peer      `json:"peer"`
	Results       []Result  `json:"results"`
}

// Result is what one size brought.
type Result struct {
	Size     int `json:"size_bytes"`
	Messages int `json:"messages"` // of all queue pairs, one way
	// Seconds that this end measured; 0 where the peer alone has measured, whose figures these are.
	Seconds float64 `json:"seconds,omitempty"`
	// GBPerSecond, 10^9 bytes, and MsgPerSecond are the sum of both directions where both send.
	GBPerSecond  float64 `json:"gb_per_second"`
	MsgPerSecond float64 `json:"messages_per_second"`
	// FromPeer is the peer's share of the figures.
	FromPeer float64  `json:"peer_gb_per_second,omitempty"`
	Latency  *Latency `json:"latency,omitempty"`
}

// Latency is a distribution in nanoseconds.
type Latency struct {
	Halved  bool    `json:"half_round_trip"`
	Samples int64   `json:"samples"`
	Min     int64   `json:"min_ns"`
	Mean    float64 `json:"mean_ns"`
	P50     int64   `json:"p50_ns"`
	P90     int64   `json:"p90_ns"`
	P99     int64   `json:"p99_ns"`
	P999    int64   `json:"p99_9_ns"`
	Max     int64   `json:"max_ns"`
}

// Observer is called when the queue pairs are connected, with a report that has no results, and
// again after each result.
type Observer func(*Report)
