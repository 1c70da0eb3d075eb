package soft

import (
	"fmt"
	"math/rand/v2"
	"time"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// Config describes a fabric. The zero value is one fast NIC that works in the background.
type Config struct {
	// Devices is the number of NICs; 0 means 1, at most verbs.MaxDevices.
	Devices int
	// Stepped makes a fabric in which nothing moves until Step, Run or Do is called.
	Stepped bool
	// Seed seeds the choices of Step and the garbage in unsuccessful completions.
	Seed uint64
	// Scramble lets completions of one queue become visible out of order in a stepped fabric. No
	// real NIC does that; a program that survives it depends on nothing but work-request ids.
	Scramble bool
	// Device applies to every NIC.
	Device DeviceConfig
}

// DeviceConfig describes a NIC. Zero fields take the default in brackets.
type DeviceConfig struct {
	// Bandwidth is how many bytes a second leave the NIC; 0 means as fast as memory.
	Bandwidth uint64
	// Latency is the one-way time from one NIC to another. Between two NICs the larger one counts.
	Latency time.Duration

	MaxQPWR     int    // largest queue of a queue pair, work requests [16384]
	MaxCQE      int    // deepest completion queue [1<<20]
	MaxSGE      int    // largest scatter-gather list [32]
	MaxInline   int    // bytes of the longest inline send [256]
	MaxMsgSize  uint32 // bytes of the longest message [1<<31]
	MaxRDAtomic int    // reads and atomics outstanding per queue pair, each way; at most 255 [16]
}

func (c DeviceConfig) withDefaults() DeviceConfig {
	if c.MaxQPWR == 0 {
		c.MaxQPWR = 16384
	}
	if c.MaxCQE == 0 {
		c.MaxCQE = 1 << 20
	}
	if c.MaxSGE == 0 {
		c.MaxSGE = 32
	}
	if c.MaxInline == 0 {
		c.MaxInline = 256
	}
	if c.MaxMsgSize == 0 {
		c.MaxMsgSize = 1 << 31
	}
	if c.MaxRDAtomic == 0 {
		c.MaxRDAtomic = 16
	}
	return c
}

func (c *Config) validate() error {
	invalid := func(detail string) error {
		return &verbs.OpError{Op: "new soft fabric", Detail: detail, Err: verbs.ErrInvalid}
	}
	d := &c.Device
	switch {
	case c.Devices < 0 || c.Devices > verbs.MaxDevices:
		return invalid(fmt.Sprintf("%d devices, possible are 1 to %d", c.Devices, verbs.MaxDevices))
	case d.Latency < 0:
		return invalid(fmt.Sprintf("latency %v: must not be negative", d.Latency))
	case d.MaxRDAtomic > 255:
		return invalid(fmt.Sprintf("MaxRDAtomic %d: must be 255 at most", d.MaxRDAtomic))
	}
	for _, f := range [...]struct {
		name string
		v    int
	}{
		{"MaxQPWR", d.MaxQPWR}, {"MaxCQE", d.MaxCQE}, {"MaxSGE", d.MaxSGE}, {"MaxInline", d.MaxInline},
		{"MaxRDAtomic", d.MaxRDAtomic},
	} {
		if f.v < 0 {
			return invalid(fmt.Sprintf("%s %d: must not be negative", f.name, f.v))
		}
	}
	return nil
}

// Fabric is a set of software NICs and the network between them. It is a verbs.Provider. All
// methods, and those of everything made from it, may be called from any goroutine.
type Fabric struct {
	_        guard.NoCopy
	stepped  bool
	scramble bool
	identity uint32 // see newIdentity; never changes
	devices  []*Device
	byGID    map[verbs.GID]*Device
	engine   engine

	// mu guards all state of the fabric and of every object in it, unless a field says otherwise.
	// One lock is easy to reason about, and no other scheme is cheaper: a request uses two queue
	// pairs and two completion queues.
	mu         nic.Lock
	rng        *rand.Rand
	injections []*Injection
	objects    nic.Objects
	closed     bool
	scratch    []Action // reused by Step
}

// engine decides when each part of a request's execution happens. There are two: background, with
// workers and clocks, and stepped, where the caller decides. All methods are called with the fabric
// locked.
type engine interface {
	// posted: requests were added to q's send queue.
	posted(q *QP)
	// ready: what q waited for may have happened, so it may try again.
	ready(q *QP)
	// transmit returns when the message that was just executed arrives at the peer, and when its
	// acknowledgement returns, in the engine's own time; 0 means at once.
	transmit(q, peer *QP, s *nic.SendSlot) (arrive, ack int64)
	// executed: another request of q awaits its acknowledgement.
	executed(q *QP)
	// hide reports whether a completion that is due at the given time stays hidden for now. It then
	// arranges for reveal to be called.
	hide(q *QP, dir nic.Direction, due int64) bool
	// retryAfter calls timeout(q) after d; 0 means never.
	retryAfter(q *QP, d time.Duration)
	// after returns the engine's time d from now. awaitLate calls arriveLate or placeNext for each
	// late message and placement of q when it is due.
	after(d time.Duration) int64
	awaitLate(q *QP)
	// stopTimers disarms the timers of q.
	stopTimers(q *QP)
	// close ends the engine. It is called without the lock.
	close()
}

// New makes a fabric.
func New(cfg Config) (*Fabric, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	f := &Fabric{
		stepped:  cfg.Stepped,
		scramble: cfg.Scramble,
		identity: newIdentity(),
		byGID:    make(map[verbs.GID]*Device),
		rng:      rand.New(rand.NewPCG(cfg.Seed, 0x736f6674)),
	}
	if f.stepped {
		f.engine = steppedEngine{}
	} else {
		f.engine = newBackground(f)
	}
	for i := range max(cfg.Devices, 1) {
		d := newDevice(f, i, cfg.Device.withDefaults())
		f.devices = append(f.devices, d)
		for _, gid := range d.gids {
			f.byGID[gid] = d
		}
	}
	return f, nil
}

// Name returns "soft".
func (f *Fabric) Name() string { return "soft" }

// Devices lists the NICs.
func (f *Fabric) Devices() ([]verbs.Device, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, &verbs.OpError{Op: "list devices", Err: verbs.ErrClosed}
	}
	list := make([]verbs.Device, len(f.devices))
	for i, d := range f.devices {
		list[i] = d
	}
	return list, nil
}

// Device returns NIC i, counted from 0. It panics if there is none.
func (f *Fabric) Device(i int) *Device { return f.devices[i] }

// Objects counts open objects.
type Objects struct{ PDs, MRs, CQs, QPs int }

// String returns a text like "1 PD, 2 MR, 1 CQ, 0 QP".
func (o Objects) String() string {
	return fmt.Sprintf("%d PD, %d MR, %d CQ, %d QP", o.PDs, o.MRs, o.CQs, o.QPs)
}

// Objects returns how many objects of the fabric are open.
func (f *Fabric) Objects() Objects {
	f.mu.Lock()
	defer f.mu.Unlock()
	return Objects(f.objects)
}

// Close stops the workers. While objects are open it has no effect and returns verbs.ErrBusy with
// their number.
func (f *Fabric) Close() error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return &verbs.OpError{Op: "close soft fabric", Err: verbs.ErrClosed}
	}
	if f.objects != (nic.Objects{}) {
		open := Objects(f.objects)
		f.mu.Unlock()
		return &verbs.OpError{Op: "close soft fabric", Detail: "open are " + open.String(),
			Err: verbs.ErrBusy}
	}
	f.closed = true
	for _, d := range f.devices {
		d.core.Closed = "the fabric is closed"
	}
	f.mu.Unlock()
	f.engine.close()
	return nil
}
