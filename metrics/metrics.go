// Package metrics exports what connections of package ibverbx do to Prometheus. It is a module of
// its own, so that only programs that want it depend on client_golang.
//
//	m := metrics.New(metrics.Config{})
//	prometheus.MustRegister(m)
//	err := m.AddWorker("storage", worker) // of package transport; of tagged: w.Transport()
//	err = m.AddCQ("copy", cq)             // virtual queue pairs that a goroutine owns
//	m.AddDevices(devices...)              // counters of the NICs
//	host, err := nics.Open(nics.Config{Events: m.Events()})
//
// # What is measured
//
// Names are in base units. "group" is the name that you give to a worker or a virtual CQ; "device"
// is a NIC of this end. Counters do not fall when a virtual queue pair is reset, fails over or is
// closed, except the labels peer: those count endpoints that were open at a scrape.
//
//	ibverbx_rail_bytes_total, _fragments_total, _notifications_total, _errors_total,
//	_refused_total, _outstanding, _down       {group, device}
//	ibverbx_sends_total, ibverbx_sends_completed_total, ibverbx_receives_total,
//	ibverbx_receives_completed_total, ibverbx_rails_lost_total, ibverbx_rails_back_total,
//	ibverbx_reposted_total, ibverbx_banked_total, ibverbx_banked_now, ibverbx_sends_waiting {group}
//	ibverbx_request_seconds, ibverbx_request_wait_seconds,
//	ibverbx_request_bytes                     {group}, histograms, with [ibverbx.Config].Timing
//	ibverbx_endpoints, ibverbx_registered_bytes, ibverbx_no_resource_total,
//	ibverbx_endpoint_failures_total           {group}, of workers
//	ibverbx_peer_sent_bytes_total, ibverbx_peer_received_bytes_total,
//	ibverbx_peer_outstanding                  {group, peer}, of workers
//	ibverbx_carrier_info                      {group, device, provider, software}, always 1
//	ibverbx_snapshot_age_seconds              {group}, of virtual CQs
//	ibverbx_nic_repairs_total                 {device, port, counter}
//	ibverbx_fallback_total                    {provider}
//
// A peer is the name of its endpoint. Peers beyond [Config].MaxPeers are summed as "other".
//
// The file alerts.yml beside this package has rules for Prometheus that find a slow rail, a lost
// one, congestion, and a program that posts no receives, by name; alerts_test.yml has their cases.
// prometheus.yml scrapes programs on this host, and dashboard.json shows them in Grafana.
//
// # Cost
//
// Nothing is done between scrapes. A scrape locks a worker for one endpoint at a time, about a
// microsecond; all of a worker with 1,000 takes some 4 ms (BenchmarkScrape has two). It asks the
// owner of a virtual CQ for a snapshot and waits for [Config].Timeout at most; of one that does not
// poll it shows the last, with its age.
package metrics

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"ibverbx"
	"ibverbx/nics"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// Config configures a [Collector]. The zero value works.
type Config struct {
	// MaxPeers is how many peers of a worker have a label of their own; 0 means 256.
	MaxPeers int
	// Timeout is how long a scrape waits for the owners of virtual CQs, of all together; 0 means
	// 100 ms.
	Timeout time.Duration
}

// Collector is a [prometheus.Collector]. Its methods may be called from any goroutine.
type Collector struct {
	cfg Config

	scrape sync.Mutex // held while workers are collected, for what a group keeps of its own

	mu        sync.Mutex
	groups    map[string]*group
	devices   []verbs.Device
	fallbacks map[string]uint64 // by provider
}

// group is a worker or a virtual CQ.
type group struct {
	name     string
	cq       *ibverbx.VirtualCQ
	worker   *transport.Worker
	peers    map[string]*peerSums // by label
	open     map[*transport.Endpoint]*peerSums
	carriers map[*transport.Endpoint]ibverbx.Carrier
}

// peerSums has the counts of the endpoints of one peer that are gone, and how many are open now.
type peerSums struct {
	label          string
	sent, received uint64
}

// New makes a collector that watches nothing yet.
func New(cfg Config) *Collector {
	cfg.MaxPeers = cmp.Or(cfg.MaxPeers, 256)
	cfg.Timeout = cmp.Or(cfg.Timeout, 100*time.Millisecond)
	return &Collector{cfg: cfg, groups: map[string]*group{}, fallbacks: map[string]uint64{}}
}

// AddWorker watches a worker and its endpoints. It refuses a name that is taken, with
// verbs.ErrBusy.
func (c *Collector) AddWorker(name string, w *transport.Worker) error {
	return c.add(&group{name: name, worker: w, peers: map[string]*peerSums{},
		open: map[*transport.Endpoint]*peerSums{}, carriers: map[*transport.Endpoint]ibverbx.Carrier{}})
}

// AddCQ watches a virtual CQ and its virtual queue pairs. It refuses a name that is taken, with
// verbs.ErrBusy.
func (c *Collector) AddCQ(name string, cq *ibverbx.VirtualCQ) error {
	return c.add(&group{name: name, cq: cq})
}

func (c *Collector) add(g *group) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.groups[g.name] != nil {
		return fmt.Errorf("metrics: add %.100q: %w: there is a group of that name", g.name, verbs.ErrBusy)
	}
	c.groups[g.name] = g
	return nil
}

// Remove stops watching a worker or a virtual CQ. Its metrics end.
func (c *Collector) Remove(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.groups, name)
}

// AddDevices shows what the NICs had to repair, as far as their providers count it: the kernel's
// counters of real NICs.
func (c *Collector) AddDevices(devices ...verbs.Device) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range devices {
		if !slices.Contains(c.devices, d) {
			c.devices = append(c.devices, d)
		}
	}
}

// Events returns events for package nics that count fallbacks.
func (c *Collector) Events() nics.Events {
	return nics.Events{Fallback: func(e nics.FallbackEvent) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.fallbacks[e.Provider]++
	}}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	ctx, stop := context.WithTimeout(context.Background(), c.cfg.Timeout)
	defer stop()
	c.mu.Lock()
	groups := slices.SortedFunc(maps.Values(c.groups), func(a, b *group) int {
		return cmp.Compare(a.name, b.name)
	})
	devices, fallbacks := slices.Clone(c.devices), maps.Clone(c.fallbacks)
	c.mu.Unlock() // an owner that is asked may be about to add something
	shots := ask(ctx, groups)
	c.scrape.Lock()
	defer c.scrape.Unlock()
	for i, g := range groups {
		switch {
		case g.worker != nil:
			c.worker(to, g)
		case shots[i] != nil:
			total := shots[i].Total()
			sums(to, g.name, &total)
			snapshotAge.send(to, time.Since(shots[i].At).Seconds(), g.name)
		}
	}
	for _, d := range devices {
		repairs(to, d)
	}
	for provider, n := range fallbacks {
		fallback.send(to, float64(n), provider)
	}
}

// ask returns the state of each virtual CQ; nil for a worker, and for one that nobody has polled
// yet. All are asked at once: an owner that does not poll takes the time of no other.
func ask(ctx context.Context, groups []*group) []*ibverbx.Snapshot {
	shots := make([]*ibverbx.Snapshot, len(groups))
	var all sync.WaitGroup
	for i, g := range groups {
		if g.cq == nil {
			continue
		}
		all.Go(func() {
			if s, err := g.cq.Snapshot(ctx); err == nil {
				shots[i] = &s
			}
		})
	}
	all.Wait()
	return shots
}

// worker collects a worker and its endpoints.
func (c *Collector) worker(to chan<- prometheus.Metric, g *group) {
	stats, total := g.worker.Stats(), g.worker.QPTotal()
	sums(to, g.name, &total)
	endpoints.send(to, float64(stats.Endpoints), g.name)
	registered.send(to, float64(stats.Registered), g.name)
	noResource.send(to, float64(stats.NoResource), g.name)
	failures.send(to, float64(stats.Failures), g.name)
	c.peers(to, g)
}

// peers collects the endpoints of a worker. Those that were closed since the last scrape are added
// to what their peer's have counted before.
func (c *Collector) peers(to chan<- prometheus.Metric, g *group) {
	list := g.worker.Endpoints()
	now := make(map[*transport.Endpoint]bool, len(list))
	for _, e := range list {
		now[e] = true
		if g.open[e] == nil {
			g.open[e] = c.peer(g, e.Name())
		}
	}
	type row struct {
		sent, received uint64
		outstanding    int
	}
	rows := map[*peerSums]row{}
	for e, p := range g.open {
		s := e.Stats()
		if !now[e] {
			p.sent, p.received = p.sent+s.SentBytes, p.received+s.ReceivedBytes
			delete(g.open, e)
			delete(g.carriers, e)
			continue
		}
		r := rows[p]
		rows[p] = row{r.sent + s.SentBytes, r.received + s.ReceivedBytes, r.outstanding + s.Outstanding}
	}
	for label, p := range g.peers {
		r := rows[p]
		peerSent.send(to, float64(p.sent+r.sent), g.name, label)
		peerReceived.send(to, float64(p.received+r.received), g.name, label)
		peerOutstanding.send(to, float64(r.outstanding), g.name, label)
	}
	g.carried(to, list)
}

// otherPeers is the label of the peers beyond Config.MaxPeers.
const otherPeers = "other"

// peer returns the sums of a peer, or those of the others if there are too many.
func (c *Collector) peer(g *group, label string) *peerSums {
	if g.peers[label] == nil && len(g.peers) >= c.cfg.MaxPeers {
		label = otherPeers
	}
	if g.peers[label] == nil {
		g.peers[label] = &peerSums{label: label}
	}
	return g.peers[label]
}

// carried shows the NICs that carry the endpoints. Each endpoint is asked once, when it is
// connected: that takes a call of the driver for each of its queue pairs.
func (g *group) carried(to chan<- prometheus.Metric, list []*transport.Endpoint) {
	seen := map[ibverbx.CarrierNIC]bool{}
	for _, e := range list {
		by, ok := g.carriers[e]
		if !ok {
			if by = e.Carrier(); len(by.NICs) != 0 && by.NICs[0].MTU != 0 {
				g.carriers[e] = by
			}
		}
		for _, n := range by.NICs {
			key := ibverbx.CarrierNIC{Device: n.Device, Provider: n.Provider, Software: n.Software}
			if !seen[key] {
				seen[key] = true
				carrier.send(to, 1, g.name, n.Device, n.Provider, strconv.FormatBool(n.Software))
			}
		}
	}
}

// sums shows the sums over virtual queue pairs.
func sums(to chan<- prometheus.Metric, name string, s *ibverbx.Stats) {
	for i := range s.Rails {
		r := &s.Rails[i]
		for _, v := range []struct {
			m metric
			v float64
		}{
			{railBytes, float64(r.Bytes)}, {railFragments, float64(r.Fragments)},
			{railNotifications, float64(r.Notifications)}, {railErrors, float64(r.Errors)},
			{railRefused, float64(r.Refused)}, {railOutstanding, float64(r.Outstanding)},
			{railDown, one(r.Down)},
		} {
			v.m.send(to, v.v, name, r.Device)
		}
	}
	for _, v := range []struct {
		m metric
		v float64
	}{
		{sends, float64(s.Sends)}, {sendsCompleted, float64(s.SendsCompleted)},
		{receives, float64(s.Recvs)}, {receivesCompleted, float64(s.RecvsCompleted)},
		{railsLost, float64(s.RailsLost)}, {railsBack, float64(s.RailsBack)},
		{reposted, float64(s.Reposted)}, {bankedTotal, float64(s.BankedTotal)},
		{banked, float64(s.Banked)}, {sendsWaiting, float64(s.SendsWaiting)},
	} {
		v.m.send(to, v.v, name)
	}
	if t := s.Timing; t != nil {
		requestTime.send(to, &t.Request, name)
		requestWait.send(to, &t.Wait, name)
		requestSize.send(to, &t.Size, name)
	}
}

// one is the value of a condition.
func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// repairs shows the counters of a NIC, of each port.
func repairs(to chan<- prometheus.Metric, d verbs.Device) {
	counting, ok := d.(verbs.RepairCounter)
	if !ok {
		return
	}
	attr, err := d.Query()
	if err != nil {
		return // the NIC is gone; its queue pairs say so
	}
	for port := 1; port <= attr.Ports; port++ {
		for counter, n := range counting.Repairs(port) {
			nicRepairs.send(to, float64(n), d.Name(), strconv.Itoa(port), counter)
		}
	}
}
