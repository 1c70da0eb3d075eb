package metrics

import (
	"math/bits"

	"github.com/prometheus/client_golang/prometheus"

	"ibverbx"
)

// metric is one family of metrics.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

// all are the families, for Describe.
//
//nolint:gochecknoglobals // filled while the constants below are made
var all []metric

func family(kind prometheus.ValueType, name, help string, labels ...string) metric {
	m := metric{prometheus.NewDesc("ibverbx_"+name, help, labels, nil), kind}
	all = append(all, m)
	return m
}

func counter(name, help string, labels ...string) metric {
	return family(prometheus.CounterValue, name+"_total", help, labels...)
}

func gauge(name, help string, labels ...string) metric {
	return family(prometheus.GaugeValue, name, help, labels...)
}

// send passes one value on.
func (m metric) send(to chan<- prometheus.Metric, v float64, labels ...string) {
	to <- prometheus.MustNewConstMetric(m.desc, m.kind, v, labels...)
}

// histogram is a family of histograms. Its buckets are powers of two, of a tally that counts in
// units of which per are one of the metric's.
type histogram struct {
	metric
	per         float64
	first, last uint64 // the bounds of the first and the last bucket, in the tally's units
}

func newHistogram(per float64, first, last uint64, name, help string, labels ...string) histogram {
	return histogram{family(prometheus.UntypedValue, name, help, labels...), per, first, last}
}

// send passes a tally on.
func (m histogram) send(to chan<- prometheus.Metric, tally *ibverbx.Histogram, labels ...string) {
	buckets, sum := map[float64]uint64{}, uint64(0)
	for bound, n := range tally.Buckets() {
		if sum += n; bits.OnesCount64(bound) == 1 && bound >= m.first && bound <= m.last {
			buckets[float64(bound)/m.per] = sum
		}
	}
	to <- prometheus.MustNewConstHistogram(m.desc, tally.Count, float64(tally.Sum)/m.per, buckets, labels...)
}

// The families.
//
//nolint:gochecknoglobals // constants
var (
	onRail = []string{"group", "device"}
	ofPeer = []string{"group", "peer"}

	railBytes         = counter("rail_bytes", "Bytes given to a NIC to send or read.", onRail...)
	railFragments     = counter("rail_fragments", "Fragments given to a NIC.", onRail...)
	railNotifications = counter("rail_notifications", "Notifications and SENDs given to a NIC.", onRail...)
	railErrors        = counter("rail_errors", "Failed completions, and posts refused for good.", onRail...)
	railRefused       = counter("rail_refused", "Posts refused, for now or for good.", onRail...)
	railOutstanding   = gauge("rail_outstanding", "Work requests outstanding.", onRail...)
	railDown          = gauge("rail_down", "Whether a queue pair of the NIC is out of service.", onRail...)

	sends             = counter("sends", "Send requests accepted.", "group")
	sendsCompleted    = counter("sends_completed", "Send requests reported.", "group")
	receives          = counter("receives", "Receives accepted.", "group")
	receivesCompleted = counter("receives_completed", "Receives reported.", "group")
	railsLost         = counter("rails_lost", "Queue pairs taken out of service by failover.", "group")
	railsBack         = counter("rails_back", "Queue pairs put back into service.", "group")
	reposted          = counter("reposted", "Work requests of lost queue pairs posted again.", "group")
	bankedTotal       = counter("banked", "Notifications that have waited for a receive.", "group")
	banked            = gauge("banked_now", "Notifications that wait for a receive.", "group")
	sendsWaiting      = gauge("sends_waiting", "Send requests not yet completely given to NICs.", "group")

	requestTime = newHistogram(1e9, 1<<8, 1<<34, "request_seconds", "Time from the post of a send request "+
		"until its completion is reported, of one request in 64.", "group")
	requestWait = newHistogram(1e9, 1<<8, 1<<34, "request_wait_seconds", "Time from the post of a send "+
		"request until all of its data is given to queue pairs, of one request in 64.", "group")
	requestSize = newHistogram(1, 1<<3, 1<<34, "request_bytes", "Length of the send requests that "+
		"ibverbx_request_seconds counts.", "group")

	endpoints  = gauge("endpoints", "Endpoints of the worker.", "group")
	registered = gauge("registered_bytes", "Memory that the worker has registered for itself.", "group")
	noResource = counter("no_resource", "Calls refused for now, for lack of a resource.", "group")
	failures   = counter("endpoint_failures", "Endpoints that failed, or whose peer closed.", "group")

	peerSent        = counter("peer_sent_bytes", "Bytes of operations sent to a peer.", ofPeer...)
	peerReceived    = counter("peer_received_bytes", "Bytes of operations received from a peer.", ofPeer...)
	peerOutstanding = gauge("peer_outstanding", "Operations outstanding towards a peer.", ofPeer...)

	carrier = gauge("carrier_info", "NICs that carry endpoints; always 1.", "group", "device", "provider",
		"software")
	snapshotAge = gauge("snapshot_age_seconds", "Time since a virtual CQ's owner last answered.", "group")
	nicRepairs  = counter("nic_repairs", "What a NIC counts of losses, retries and congestion.",
		"device", "port", "counter")
	fallback = counter("fallback", "Choices of other NICs than a program may expect.", "provider")
)

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, m := range all {
		to <- m.desc
	}
}
