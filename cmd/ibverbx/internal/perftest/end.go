package perftest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"

	"ibverbx"
	"ibverbx/verbs"
)

// end is one end's memory and physical queue pairs on its NIC.
type end struct {
	dev  verbs.Device
	cfg  *Config
	port uint8
	attr verbs.DeviceAttr
	mtu  verbs.MTU // the largest that this end supports
	gid  verbs.GIDEntry

	// Sources of the messages, then their targets: a slot of slotSize bytes for each queue pair.
	memory   []byte
	slotSize int
	stride   int // cache line: small messages go to different lines of their slot
	page     int // whose lines they use in turn

	pd             verbs.PD
	mr             verbs.MR
	sendCQ, recvCQ verbs.CQ
	qps            []verbs.QP
	own, peers     []keys
	made           []io.Closer // everything, in order of creation
}

// probe queries what a NIC offers, before anything is made.
func probe(dev verbs.Device, cfg *Config) (*end, error) {
	e := &end{dev: dev, cfg: cfg, port: cmp.Or(cfg.Conn.Port, uint8(dev.DefaultPort()))}
	var err error
	if e.attr, err = dev.Query(); err != nil {
		return nil, err
	}
	port, err := dev.QueryPort(int(e.port))
	if err != nil {
		return nil, err
	}
	if port.State != verbs.PortActive {
		return nil, fmt.Errorf("port %d of %s is %v: it has to be active", e.port, dev.Name(), port.State)
	}
	if e.mtu = port.ActiveMTU; cfg.Conn.MTU != 0 {
		e.mtu = min(e.mtu, cfg.Conn.MTU)
	}
	if e.gid, err = cfg.Conn.GID(dev, port); err != nil {
		err = fmt.Errorf("%w; -x names another entry", err)
	}
	return e, err
}

// open makes memory and queue pairs, once the two ends have agreed on page and stride.
func (e *end) open() (err error) {
	cfg := e.cfg
	e.slotSize = max(cfg.Size, e.page)
	e.memory = make([]byte, 2*cfg.QPs*e.slotSize)
	if !cfg.Kind.Latency() { // for latencies the last byte counts, from 0
		for i := range e.memory {
			e.memory[i] = byte(i)
		}
	}
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return err
	}
	e.made = append(e.made, e.pd)
	if e.mr, err = e.pd.RegisterMR(e.memory, cfg.Kind.access()); err != nil {
		return err
	}
	e.made = append(e.made, e.mr)
	if e.sendCQ, err = e.createCQ(cfg.sends(), "-t"); err != nil {
		return err
	}
	if e.recvCQ, err = e.createCQ(cfg.receives(), "-r"); err != nil {
		return err
	}
	for i := range cfg.QPs {
		qp, err := e.pd.CreateQP(verbs.QPConfig{SendCQ: e.sendCQ, RecvCQ: e.recvCQ, Cap: verbs.QPCap{
			MaxSendWR: cfg.sends(), MaxRecvWR: cfg.receives(), MaxSendSGE: 1, MaxRecvSGE: 1}})
		if err != nil {
			return err
		}
		e.qps, e.made = append(e.qps, qp), append(e.made, qp)
		e.own = append(e.own, keys{reads: uint16(e.reads()), qp: qp.Num(), psn: rand.Uint32() & 0xffffff,
			rkey: e.mr.RKey(), addr: e.mr.Addr() + uint64(e.target(i)), gid: e.gid.GID})
	}
	e.peers = make([]keys, cfg.QPs)
	return nil
}

// createCQ makes a completion queue with room for all outstanding requests of all queue pairs.
func (e *end) createCQ(each int, flag string) (verbs.CQ, error) {
	cq, err := e.dev.CreateCQ(verbs.CQConfig{Depth: each * e.cfg.QPs})
	if err != nil {
		return nil, fmt.Errorf("%d requests outstanding on %d queue pairs, a smaller %s needs less: %w", each,
			e.cfg.QPs, flag, err)
	}
	e.made = append(e.made, cq)
	return cq, nil
}

// source and target return where the slots of a queue pair begin.
func (e *end) source(qp int) int { return qp * e.slotSize }
func (e *end) target(qp int) int { return (e.cfg.QPs + qp) * e.slotSize }

// reads returns how many reads a queue pair of this end serves, and has outstanding, at a time.
func (e *end) reads() int {
	switch {
	case e.cfg.Kind.opcode() != verbs.OpRDMARead:
		return 1
	case e.cfg.Conn.MaxRDAtomic != 0:
		return int(e.cfg.Conn.MaxRDAtomic)
	}
	return max(1, min(e.attr.MaxRDAtomic, 255))
}

// meet sets the peers of the queue pairs, and returns an error if they cannot connect.
func (e *end) meet(peers []keys) error {
	to, seen := peers[0].gid, map[uint32]bool{}
	for i := range peers {
		switch p := &peers[i]; {
		case seen[p.qp]:
			return fmt.Errorf("%w: the peer has named its queue pair %#x twice: it has fewer of them than "+
				"the %d here; %s", ErrMismatch, p.qp, e.cfg.QPs, agree)
		case p.qp == 0:
			return malformed("the peer's queue pair has number 0")
		case p.gid.IsZero():
			return malformed("the peer has no GID")
		case e.cfg.Kind.opcode() == verbs.OpRDMARead && p.reads == 0:
			return malformed("the peer's queue pairs serve no reads")
		case p.gid != to:
			return fmt.Errorf("%w: the peer's queue pairs have several GIDs, %v and %v: it uses two ports "+
				"(--dualport), which this end does not", ErrMismatch, to, p.gid)
		}
		seen[peers[i].qp] = true
	}
	e.peers = peers
	return e.cfg.checkAddress(to)
}

// connect takes the queue pairs to RTS. mtu is the smaller one of both ends.
func (e *end) connect(mtu verbs.MTU) error {
	conn := &e.cfg.Conn
	for i, qp := range e.qps {
		peer := &e.peers[i]
		attr := verbs.QPAttr{
			PathMTU: mtu, DestQPNum: peer.qp, RQPSN: peer.psn, SQPSN: e.own[i].psn,
			Access: e.cfg.Kind.access(), MaxDestRDAtomic: uint8(e.own[i].reads),
			MaxRDAtomic: uint8(min(int(peer.reads), e.reads())), MinRNRTimer: 12, Port: e.port,
			Timeout: code(conn.Timeout, 14), RetryCount: code(conn.RetryCount, 7),
			RNRRetry: code(conn.RNRRetry, verbs.RNRRetryForever),
			AH: verbs.AH{DGID: peer.gid, SGIDIndex: uint8(e.gid.Index), HopLimit: 255, Port: e.port,
				TrafficClass: conn.TrafficClass, SL: conn.SL, DLID: peer.lid, Global: true},
		}
		for _, s := range []struct {
			state verbs.QPState
			mask  verbs.QPAttrMask
		}{
			{verbs.StateInit, verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess},
			{verbs.StateRTR, verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPNum |
				verbs.QPAttrRQPSN | verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer},
			{verbs.StateRTS, verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry |
				verbs.QPAttrSQPSN | verbs.QPAttrMaxRDAtomic},
		} {
			attr.State = s.state
			if err := qp.Modify(&attr, s.mask|verbs.QPAttrState); err != nil {
				return fmt.Errorf("queue pair %#x to %v, with GID %v here and %v at the peer (-x chooses "+
					"another): %w", qp.Num(), s.state, e.gid.GID, peer.gid, err)
			}
		}
	}
	return nil
}

// code returns a field of a connection's configuration, or perftest's choice if that is 0.
func code(n int, usual uint8) uint8 {
	switch n {
	case 0:
		return usual
	case ibverbx.None:
		return 0
	}
	return uint8(n)
}

// close frees everything.
func (e *end) close() error {
	var errs []error
	for _, object := range slices.Backward(e.made) {
		errs = append(errs, object.Close())
	}
	return errors.Join(errs...)
}
