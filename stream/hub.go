package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx"
	"ibverbx/nics"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// hub is what all users of a Host share. It lives while one of them does.
type hub struct {
	host   *nics.Host
	memory budget
	gone   chan struct{} // closed when the last user has left

	mu       sync.Mutex
	users    int
	carriers []*carrier
	dials    map[dialKey]*dialing // links by the address that was dialled, and those being made
}

// hubs are those of the process.
//
//nolint:gochecknoglobals // unique in the process
var hubs struct {
	mu       sync.Mutex
	all      map[*nics.Host]*hub
	refusals map[refusalKey]refusal
}

// refusalKey is a peer for the users of a Host.
type refusalKey struct {
	host *nics.Host
	dialKey
}

// refusal is why TCP carries the streams to an address, until RDMA is tried again.
type refusal struct {
	why   string
	until time.Time
}

const (
	// refusalTime is how long a refusal holds.
	refusalTime = time.Minute
	// maxRefusals bounds what is remembered.
	maxRefusals = 1024
)

// refused returns why TCP carries the streams to an address; empty if RDMA is to be tried.
func (h *hub) refused(key dialKey) string {
	hubs.mu.Lock()
	defer hubs.mu.Unlock()
	if r := hubs.refusals[refusalKey{h.host, key}]; time.Now().Before(r.until) {
		return r.why
	}
	return ""
}

// refuse remembers why TCP carries the streams to an address, and reports whether that is new.
func (h *hub) refuse(key dialKey, why string) bool {
	hubs.mu.Lock()
	defer hubs.mu.Unlock()
	if len(hubs.refusals) == maxRefusals || hubs.refusals == nil {
		hubs.refusals = map[refusalKey]refusal{}
	}
	k := refusalKey{h.host, key}
	_, known := hubs.refusals[k]
	hubs.refusals[k] = refusal{why, time.Now().Add(refusalTime)}
	return !known
}

// ownHost opens the NICs for the zero Config.
//
//nolint:gochecknoglobals // unique in the process
var ownHost = sync.OnceValues(func() (*nics.Host, error) { return nics.Open(nics.Config{}) })

// join returns the hub of a configuration's Host, which the caller leaves later.
func join(cfg *Config) (*hub, error) {
	host := cfg.Host
	if host == nil {
		var err error
		if host, err = ownHost(); err != nil {
			return nil, err
		}
	}
	hubs.mu.Lock()
	defer hubs.mu.Unlock()
	h := hubs.all[host]
	if h == nil {
		h = &hub{host: host, gone: make(chan struct{}), dials: map[dialKey]*dialing{}}
		h.memory.limit = cfg.Memory
		if hubs.all == nil {
			hubs.all = map[*nics.Host]*hub{}
		}
		hubs.all[host] = h
	}
	h.users++
	return h, nil
}

// enter counts one more user.
func (h *hub) enter() {
	hubs.mu.Lock()
	h.users++
	hubs.mu.Unlock()
}

// leave ends what join or enter began.
func (h *hub) leave() {
	hubs.mu.Lock()
	if h.users--; h.users == 0 {
		delete(hubs.all, h.host)
		close(h.gone)
	}
	hubs.mu.Unlock()
}

// CloseIdle closes the links of a Host without waiting for Config.IdleLinks, and returns when no
// link and no listener uses the Host any more, so that it can be closed; nil means the Host of the
// zero [Config]. Close listeners and connections first. If ctx ends before, CloseIdle returns its
// error.
func CloseIdle(ctx context.Context, host *nics.Host) error {
	if host == nil {
		var err error
		if host, err = ownHost(); err != nil {
			return nil // there is none
		}
	}
	hubs.mu.Lock()
	h := hubs.all[host]
	hubs.mu.Unlock()
	if h == nil {
		return nil
	}
	h.mu.Lock()
	for _, d := range h.dials {
		select {
		case <-d.made:
			if d.link != nil {
				d.link.closeSoon()
			}
		default:
		}
	}
	h.mu.Unlock()
	select {
	case <-h.gone:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// carrier is a set of NICs with the worker of all links over them.
type carrier struct {
	hub     *hub
	devices []verbs.Device
	names   []string
	dom     *ibverbx.Domain
	w       *transport.Worker
	stage   staging
	users   int // links; hub.mu guards it
	ended   chan struct{}
	stop    context.CancelFunc

	// The worker's goroutine, run, sleeps on the NICs' events, unless a call that waits makes
	// progress in place: otherwise each message would wake both.
	pollers  atomic.Int32  // calls that make progress in place
	polls    atomic.Uint32 // calls that have done so
	sleepers atomic.Int32  // calls that have stopped, and sleep
	parked   atomic.Bool   // run leaves progress to the pollers
	kicked   chan struct{} // ends that
}

// carrier returns the worker over a set of NICs, and makes it if there is none. The caller gives it
// back.
func (h *hub) carrier(devices []verbs.Device) (*carrier, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.carriers {
		if slices.Equal(c.devices, devices) {
			c.users++
			return c, nil
		}
	}
	c, err := newCarrier(h, devices)
	if err != nil {
		return nil, err
	}
	h.carriers = append(h.carriers, c)
	return c, nil
}

func newCarrier(h *hub, devices []verbs.Device) (*carrier, error) {
	dom, err := ibverbx.NewDomain(devices...)
	if err != nil {
		return nil, err
	}
	cfg := transport.Config{Spin: ibverbx.None, AMBuffers: 64, MaxOutstanding: 128}
	if len(devices) == 1 {
		// One queue pair delivers in order what was posted in order: see link.ordered.
		cfg.QP.QPsPerDevice, cfg.QP.NoNotifyQP = 1, true
	} else {
		cfg.QP.Failover = true
	}
	w, err := transport.NewWorker(dom, cfg)
	if err != nil {
		return nil, errors.Join(err, dom.Close())
	}
	c := &carrier{hub: h, devices: slices.Clone(devices), dom: dom, w: w, users: 1,
		ended: make(chan struct{}), kicked: make(chan struct{}, 1)}
	for _, d := range devices {
		c.names = append(c.names, d.Name())
	}
	for id := kindProof; id < kindLast; id++ {
		if err := w.Handle(id, handle); err != nil {
			return nil, errors.Join(err, w.Close(), dom.Close())
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	go c.run(ctx)
	return c, nil
}

// give gives a carrier back. The last user closes it.
func (c *carrier) give() error {
	c.hub.mu.Lock()
	if c.users--; c.users != 0 {
		c.hub.mu.Unlock()
		return nil
	}
	c.hub.carriers = slices.DeleteFunc(c.hub.carriers, func(x *carrier) bool { return x == c })
	c.hub.mu.Unlock()
	c.stop()
	<-c.ended
	return errors.Join(c.w.Close(), c.stage.close(), c.dom.Close())
}

// String names the NICs.
func (c *carrier) String() string { return fmt.Sprint(c.names) }
