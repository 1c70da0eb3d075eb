package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"ibverbx"
	"ibverbx/nics"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// hub is what all users of a Host share. It lives while one of them does.
type hub struct {
	host     *nics.Host
	memory   budget
	patience time.Duration
	most     int           // ends of links that a carrier serves
	gone     chan struct{} // closed when the last user has left

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
	own      *nics.Host // the NICs for the zero Config, once they are open
	all      map[*nics.Host]*hub
	refusals map[refusalKey]refusal
}

// refusalKey is a peer for the users of a Host. It keeps neither of the two pointers alive.
type refusalKey struct {
	host weak.Pointer[nics.Host]
	addr string
	tls  weak.Pointer[tls.Config]
}

func (h *hub) refusalKey(key dialKey) refusalKey {
	return refusalKey{weak.Make(h.host), key.addr, weak.Make(key.tls)}
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
	if r := hubs.refusals[h.refusalKey(key)]; time.Now().Before(r.until) {
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
	k := h.refusalKey(key)
	_, known := hubs.refusals[k]
	hubs.refusals[k] = refusal{why, time.Now().Add(refusalTime)}
	return !known
}

// join returns the hub of a configuration's Host, which the caller leaves later.
func join(cfg *Config) (*hub, error) {
	hubs.mu.Lock()
	defer hubs.mu.Unlock()
	host := cfg.Host
	switch {
	case host == nil && hubs.own == nil:
		var err error
		if hubs.own, err = nics.Open(nics.Config{}); err != nil {
			return nil, err // the next call tries again
		}
		fallthrough
	case host == nil:
		host = hubs.own
	case host.Closed():
		return nil, fmt.Errorf("%w: Config.Host", verbs.ErrClosed)
	}
	h := hubs.all[host]
	if h == nil {
		h = &hub{host: host, gone: make(chan struct{}), dials: map[dialKey]*dialing{}}
		h.memory.limit, h.patience, h.most = cfg.Memory, cfg.Patience, linksPerCarrier
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
// zero [Config]. Close listeners and connections first. If ctx ends before, the error is its cause,
// and says how many still use the Host.
func CloseIdle(ctx context.Context, host *nics.Host) error {
	hubs.mu.Lock()
	if host == nil {
		host = hubs.own
	}
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
		hubs.mu.Lock()
		defer hubs.mu.Unlock()
		return fmt.Errorf("stream: close idle: %w: %d listeners, links and calls of Dial use the NICs",
			context.Cause(ctx), h.users)
	}
}

// dialKey is what the streams of a link have in common.
type dialKey struct {
	addr string
	tls  *tls.Config
}

// dialing is a link that is being made, or is there.
type dialing struct {
	made chan struct{} // closed when the fields below are set
	link *link
	err  error
	gone bool // the context of the call that was to make it has ended
}

// dial opens a stream on a link, which it makes if there is none.
func (h *hub) dial(ctx context.Context, key dialKey, cfg *Config) (*Conn, error) {
	for {
		h.mu.Lock()
		d := h.dials[key]
		if d == nil {
			if why := h.refused(key); why != "" && cfg.Fallback {
				h.mu.Unlock()
				c, _, err := h.meet(ctx, key, cfg, why)
				return c, err
			}
			d = &dialing{made: make(chan struct{})}
			h.dials[key] = d
			h.mu.Unlock()
			var c *Conn
			if c, d.link, d.err = h.meetOrFallBack(ctx, key, cfg); d.link == nil {
				d.gone = ctx.Err() != nil
				h.forget(key, d)
			}
			close(d.made)
			if c != nil || d.err != nil {
				return c, d.err
			}
			h.enter()
			go func() {
				defer h.forget(key, d)
				d.link.serve()
			}()
		} else {
			h.mu.Unlock()
		}
		select {
		case <-d.made:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if d.link == nil {
			if d.err != nil && !d.gone {
				return nil, d.err
			}
			continue // TCP carries that one, or its context has ended: this call meets the peer itself
		}
		c, err := d.link.dial(ctx)
		if !errors.Is(err, errLinkClosing) {
			return c, err
		}
		h.forget(key, d)
	}
}

// forget makes the next Dial make a new link.
func (h *hub) forget(key dialKey, d *dialing) {
	h.mu.Lock()
	if h.dials[key] == d {
		delete(h.dials, key)
	}
	h.mu.Unlock()
}

// carrier is a set of NICs with the worker of all links over them.
type carrier struct {
	hub     *hub
	devices []verbs.Device
	names   []string
	dom     *ibverbx.Domain
	w       *transport.Worker
	stage   staging
	users   int // ends of links; hub.mu guards it
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

// linksPerCarrier is how many ends of links a worker serves; for further ones there is another.
const linksPerCarrier = 128

// carrier returns a worker over a set of NICs, and makes one if there is none with room for another
// link. The caller gives it back.
func (h *hub) carrier(devices []verbs.Device) (*carrier, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.carriers {
		if c.users < h.most && slices.Equal(c.devices, devices) {
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
	cfg := transport.Config{Spin: ibverbx.None, AMBuffers: 64, MaxOutstanding: 128,
		MaxEndpoints: linksPerCarrier}
	if len(devices) == 1 {
		// One queue pair delivers in order what was posted in order: see link.ordered.
		cfg.QP.QPsPerDevice, cfg.QP.NoNotifyQP = 1, true
	} else {
		cfg.QP.Failover = true
	}
	cfg.QP.Conn = patient(h.patience, devices)
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

// patient returns how long a silent peer keeps a link over these NICs.
func patient(patience time.Duration, devices []verbs.Device) ibverbx.ConnConfig {
	switch {
	case patience != 0:
	case len(devices) > 1:
		return ibverbx.ConnConfig{Patience: ibverbx.PatienceFabric} // a rail that is lost is replaced then
	case !software(devices[0]):
		return ibverbx.ConnConfig{} // the NIC answers even if the process is stopped
	default:
		patience = softPatience
	}
	const retries = 6 // 7 never end on rdma_rxe
	code := uint8(1)
	for code < 31 && (retries+1)*verbs.AckTimeout(code) < patience {
		code++
	}
	return ibverbx.ConnConfig{Timeout: int(code), RetryCount: retries}
}

func software(d verbs.Device) bool {
	attr, err := d.Query()
	return err == nil && attr.Software
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
