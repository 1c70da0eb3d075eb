package perftest

import (
	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/verbs"
)

// Peer is the other end, as far as the conversation shows it.
type Peer struct {
	Address string    `json:"address"`
	Version string    `json:"version"` // of perftest
	GID     verbs.GID `json:"gid"`
	MTU     int       `json:"mtu_bytes"` // that it can have
}

// Report is what was done.
type Report struct {
	Kind    Kind      `json:"test"`
	Client  bool      `json:"client"`
	QPs     int       `json:"qps"`
	TxDepth int       `json:"tx_depth"` // sends outstanding on a queue pair
	NIC     string    `json:"nic"`
	GID     verbs.GID `json:"gid"`
	PathMTU int       `json:"path_mtu_bytes"`
	Peer    Peer      `json:"peer"`
	Results []Result  `json:"results"` // one, or none if this end has measured nothing
}

// Result holds the figures.
type Result struct {
	Size     int `json:"size_bytes"`
	Messages int `json:"messages"` // of all queue pairs
	// Seconds that this end measured; 0 where the peer alone has measured, whose figures these are.
	Seconds      float64           `json:"seconds,omitempty"`
	GBPerSecond  float64           `json:"gb_per_second"` // 10^9 bytes
	MsgPerSecond float64           `json:"messages_per_second"`
	Latency      *bench.Percentile `json:"latency,omitempty"`
}
