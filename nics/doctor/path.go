package doctor

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"ibverbx"
	"ibverbx/nics"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

// protocol names the conversation of two doctors.
const protocol = "ibverbx-doctor/1"

const (
	pathSize  = 1 << 20 // bytes of a write
	pathDepth = 4       // writes outstanding, each to memory of its own
	// pathMemory is what is written, and a place for each write of the peer. It must fit in the 8
	// MiB that a container may register unless it is allowed more.
	pathMemory = (1 + pathDepth) * pathSize

	pathTime  = 100 * time.Millisecond // how long it is measured, each way
	pathLimit = 15 * time.Second       // for all NICs together
	// poorShare is the part of the link's speed below which a path is slow.
	poorShare   = 0.4
	maxReason   = 200 // characters of a reason from the other end
	maxCounters = 100 // counters of both ends that are shown
)

// Visit checks whether packets pass between this host and another, on which [Serve] listens at
// addr, and adds a finding for each pair of NICs: the first of both ends, the second, and so on.
// Over each pair both ends write 1 MiB into the other's memory and verify it, measure the speed for
// a tenth of a second each way, and note which error counters of the NICs have grown meanwhile. It
// loads the network for that time. It takes 15 seconds at most. The NICs are those that a
// connection takes: shared memory with a process of this host. That the two ends cannot talk, or
// have no NICs in common, is a finding, too.
func (r *Report) Visit(ctx context.Context, addr string, cfg nics.Config) {
	ctx, stop := context.WithTimeout(ctx, pathLimit)
	defer stop()
	if cfg.Provider != "" {
		r.Uses += line("; the path is checked with provider " + cfg.Provider)
	}
	findings, err := visit(ctx, addr, cfg)
	for _, f := range findings {
		r.add(f)
	}
	if err != nil {
		f := Finding{Status: Fail, Check: "path", On: "to " + addr, Seen: err.Error()}
		f.explain(err)
		r.add(f)
	}
}

// explain says what to do about the end of a visit.
func (f *Finding) explain(err error) {
	const there = "\"ibverbx doctor --listen\""
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		f.Seen = "connection refused: nobody listens there"
		f.Mend = "start " + there + " there first, and check the port, and firewalls"
	case errors.As(err, new(*net.DNSError)):
		f.Mend = "check the name of the host"
	case errors.Is(err, verbs.ErrUnreachable):
		f.Mend = "give both ends the same --provider, or none"
	case errors.As(err, new(*nics.ConfigError)):
		f.Mend = "choose among the NICs that \"ibverbx devices\" shows"
	default:
		f.Mend = "check that " + there + " of this version runs there, the route, and firewalls"
	}
}

func visit(ctx context.Context, addr string, cfg nics.Config) ([]Finding, error) {
	host, err := nics.Open(cfg)
	if err != nil {
		return nil, err
	}
	c, err := rendezvous.Dial(ctx, addr, rendezvous.Config{Protocol: protocol})
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	findings, err := examine(ctx, host, c, true)
	_ = c.Close() // the other end may have closed it before
	return findings, errors.Join(err, host.Close())
}

// Serve takes part in the checks of those who call [Report.Visit], one after the other, until ctx
// ends. Whoever reaches addr may visit, and load the network for 15 seconds. say gets lines: the
// address at which it listens, and what became of each visit.
func Serve(ctx context.Context, addr string, cfg nics.Config, say func(format string, args ...any)) error {
	host, err := nics.Open(cfg)
	if err != nil {
		return err
	}
	l, err := rendezvous.Listen(ctx, addr, rendezvous.Config{Protocol: protocol})
	if err != nil {
		return errors.Join(err, host.Close())
	}
	say("listening on %v with %v\n", l.Addr(), host)
	for {
		c, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				err = nil
			}
			return errors.Join(err, l.Close(), host.Close())
		}
		limited, stop := context.WithTimeout(ctx, pathLimit)
		findings, err := examine(limited, host, c, false)
		stop()
		_ = c.Close() // the visitor may have closed it before
		for _, f := range findings {
			say("%v: %s: %s: %s\n", c.RemoteAddr(), f.Status, f.On, line(f.Seen))
		}
		if err != nil {
			say("%v: %v\n", c.RemoteAddr(), err)
		}
	}
}

// examine checks all pairs of NICs. first says which end begins.
func examine(ctx context.Context, host *nics.Host, c *rendezvous.Conn, first bool) ([]Finding, error) {
	devices, err := host.Agree(ctx, c)
	if err != nil {
		return nil, err
	}
	var findings []Finding
	for _, d := range devices {
		p := &pathCheck{c: c, device: d, first: first}
		result, err := p.run(ctx, 0)
		if err != nil {
			return findings, err
		}
		f := p.finding(result)
		if f.Status == Fail {
			// Packets that a switch drops because they are too long are the usual reason.
			short, err := p.run(ctx, verbs.MTU1024)
			if err != nil {
				return append(findings, f), err
			}
			if p.finding(short).Status != Fail {
				f.Seen += "; packets of 1024 bytes pass"
				f.Mend = "raise the MTU of every switch and interface on the way, or lower that of both ends"
			}
		}
		findings = append(findings, f)
	}
	return findings, nil
}

// pathCheck checks the path between a NIC of this end and one of the other.
type pathCheck struct {
	c      *rendezvous.Conn
	device verbs.Device
	first  bool
}

// half is what one end tells the other about a path.
type half struct {
	Device string           `json:"device"`
	Speed  uint64           `json:"speed"` // of the port, bits a second; 0 when unknown
	Memory ibverbx.RemoteMR `json:"memory"`
}

// turn is what an end tells the other when it has written.
type turn struct {
	Sum   uint32  `json:"sum"`              // CRC-32 of what it has written
	Speed float64 `json:"bytes_per_second"` // of writes
	Err   string  `json:"err,omitempty"`    // why it could not write, or what arrived was wrong
}

// pathResult is what both ends know in the end.
type pathResult struct {
	own, peer half
	mtu       int
	out, in   float64           // bytes a second
	err       string            // the first; empty if all went well
	repairs   map[string]uint64 // what the counters of both NICs have grown by
}

// run checks the path with packets of at most mtu; 0 means what the ports allow. An error ends the
// conversation.
func (p *pathCheck) run(ctx context.Context, mtu verbs.MTU) (*pathResult, error) {
	r := &pathResult{}
	qp, err := ibverbx.Open([]verbs.Device{p.device}, ibverbx.Config{Conn: ibverbx.ConnConfig{MTU: mtu,
		Timeout: 17, RetryCount: 6}}) // 3.8 seconds, also where the default is half a minute
	if err != nil {
		p.c.Fail(err)
		return nil, err
	}
	memory := make([]byte, pathMemory) // what is written, and what the peer writes
	mr, err := qp.Domain().Register(memory, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		p.c.Fail(err)
		return nil, errors.Join(err, qp.Close())
	}
	err = p.both(ctx, qp, mr, r)
	return r, errors.Join(err, qp.Close(), mr.Close())
}

// both connects, and lets first one end write and then the other.
func (p *pathCheck) both(ctx context.Context, qp *ibverbx.VirtualQP, mr *ibverbx.MR,
	r *pathResult) (err error) {
	if err := rendezvous.Connect(ctx, p.c, qp); err != nil {
		return err
	}
	r.own = half{Device: p.device.Name(), Memory: mr.Remote()}
	if attr, err := p.device.QueryPort(p.device.DefaultPort()); err == nil {
		r.own.Speed = attr.Speed
	}
	if r.peer, err = rendezvous.Exchange(ctx, p.c, r.own); err != nil {
		return err
	}
	if r.peer.Memory.Len() != pathMemory {
		return fmt.Errorf("the other end offers %d bytes of memory, not %d", r.peer.Memory.Len(), pathMemory)
	}
	if carrier := qp.Carrier(); len(carrier.NICs) != 0 {
		r.mtu = carrier.NICs[0].MTU
	}
	before := p.counters()
	for _, mine := range []bool{p.first, !p.first} {
		if err := p.turn(ctx, qp, mr, mine, r); err != nil {
			return err
		}
		if r.err != "" {
			break // both ends know it
		}
	}
	grown, err := rendezvous.Exchange(ctx, p.c, p.grown(before))
	if err != nil {
		return err
	}
	r.repairs = p.grown(before)
	for name, n := range grown {
		if len(r.repairs) < maxCounters {
			r.repairs[line(name)] += n
		}
	}
	return nil
}

// turn lets one end write, and the other verify.
func (p *pathCheck) turn(ctx context.Context, qp *ibverbx.VirtualQP, mr *ibverbx.MR, mine bool,
	r *pathResult) error {
	said := turn{}
	if mine {
		said = write(ctx, qp, mr, r.peer.Memory)
	}
	heard, err := rendezvous.Exchange(ctx, p.c, said)
	if err != nil {
		return err
	}
	verdict := turn{}
	for slot := 1; slot <= pathDepth && !mine && heard.Err == ""; slot++ {
		if crc32.ChecksumIEEE(mr.Bytes()[slot*pathSize:(slot+1)*pathSize]) != heard.Sum {
			verdict.Err = "what has arrived is not what was sent"
		}
	}
	found, err := rendezvous.Exchange(ctx, p.c, verdict)
	if err != nil {
		return err
	}
	if mine {
		r.out = said.Speed
	} else {
		r.in = heard.Speed
	}
	for _, why := range []string{said.Err, heard.Err, verdict.Err, found.Err} {
		if r.err == "" {
			r.err = line(why[:min(len(why), maxReason)])
		}
	}
	return nil
}

// write writes the beginning of the memory to each slot of the peer's behind it, in turn, for as
// long as the speed is measured. A slot is written again when its last write has completed.
func write(ctx context.Context, qp *ibverbx.VirtualQP, mr *ibverbx.MR, to ibverbx.RemoteMR) (t turn) {
	source := mr.Bytes()[:pathSize]
	_, _ = rand.NewChaCha8([32]byte{byte(qp.Num())}).Read(source) // it never fails
	t.Sum = crc32.ChecksumIEEE(source)
	wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Local: mr.Slice(0, pathSize)}
	posted, done, warm := 0, 0, 0 // warm writes, to each slot one, have touched all memory
	var began time.Time           // when they had completed
	for more := true; more || done != posted; more = warm == 0 || time.Since(began) < pathTime {
		for more && posted-done < pathDepth {
			wr.Remote = to.Slice(uint64(1+posted%pathDepth)*pathSize, pathSize)
			if _, err := qp.PostSend(wr); err != nil {
				t.Err = err.Error()
				return t
			}
			posted++
		}
		if err := qp.CQ().Wait(ctx); err != nil {
			t.Err = err.Error()
			return t
		}
		for wc, err := range qp.CQ().Completions() {
			if err == nil && wc.Status != verbs.StatusSuccess {
				err = errors.Join(qp.Err(), wc.Status)
			}
			if err != nil {
				t.Err = err.Error()
				return t
			}
			done++
		}
		if warm == 0 && done >= pathDepth {
			warm, began = done, time.Now()
		}
	}
	t.Speed = float64(done-warm) * pathSize / time.Since(began).Seconds()
	return t
}

// counters returns what the NIC of this end counts of losses, retries and congestion.
func (p *pathCheck) counters() map[string]uint64 {
	if counting, ok := p.device.(verbs.RepairCounter); ok {
		return counting.Repairs(p.device.DefaultPort())
	}
	return nil
}

// grown returns by how much the counters have grown.
func (p *pathCheck) grown(before map[string]uint64) map[string]uint64 {
	grown := map[string]uint64{}
	for name, n := range p.counters() {
		if n > before[name] {
			grown[name] = n - before[name]
		}
	}
	return grown
}

// finding says what a check of a path means.
func (p *pathCheck) finding(r *pathResult) Finding {
	f := Finding{Status: OK, Check: "path", On: line(r.own.Device + " to " + r.peer.Device)}
	var counted []string
	congested, lossy := false, false
	for _, name := range slices.Sorted(maps.Keys(r.repairs)) {
		counted = append(counted, fmt.Sprintf("%s %d", name, r.repairs[name]))
		congestion := strings.Contains(name, "cnp") || strings.Contains(name, "ecn")
		congested, lossy = congested || congestion, lossy || !congestion
	}
	repaired := ""
	if len(counted) != 0 {
		repaired = "; counted meanwhile: " + strings.Join(counted, ", ")
	}
	if r.err != "" {
		f.Status, f.Seen = Fail, "a write does not arrive: "+r.err+repaired
		f.Mend = "check cables, VLANs, routes and firewalls (RoCE: UDP port 4791) between the two"
		return f
	}
	f.Seen = fmt.Sprintf("1 MiB written each way and verified, MTU %d, %.1f GB/s out, %.1f GB/s in", r.mtu,
		r.out/1e9, r.in/1e9)
	link := float64(min(r.own.Speed, r.peer.Speed)) / 8
	if link != 0 {
		f.Seen += fmt.Sprintf(", of %.1f", link/1e9)
	}
	f.Seen += repaired
	if slow := min(r.out, r.in) < poorShare*link; slow {
		f.Status = Warn
		switch {
		case lossy:
			f.Seen += ": packets are lost"
			f.Mend = "look for bad cables and for switches without flow control (PFC) or room"
		case congested:
			f.Seen += ": congestion, not a fault"
			f.Mend = "measure again while nothing else uses the network"
		default:
			f.Mend = "check the PCIe slot and the NUMA node of both ends: ibverbx doctor there and here"
		}
	}
	return f
}
