package ibverbx

import (
	"errors"
	"math/rand/v2"
	"time"

	"ibverbx/internal/ability"
	"ibverbx/internal/dqplb"
	"ibverbx/internal/failover"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// rail is one physical queue pair of a virtual one: its device, its counters, and the batch of work
// requests that the next post hands over.
//
// Invariant: staged() <= inUse <= limit <= slots while the line runs: every work request that is
// staged or on the NIC and not completed counts in inUse, so that a staged one always finds a free
// slot. 0 <= recvs <= recvLimit likewise for the receive queue.
type rail struct {
	// The fields of every post and completion come first, in two cache lines: with a thousand
	// virtual queue pairs they come from memory every time.

	vqp *VirtualQP // its owner: completions are routed to rails
	qp  verbs.QP
	// batch has the staged work requests, lent by the virtual CQ's pool; nil while the rail is not
	// in sender.staged.
	batch  *sendBatch
	idBits wrid.RailBits // the rail's index
	// inUse counts the send slots that are taken. railSet's take and give change it.
	inUse  int
	num    uint32 // of qp
	device uint8  // the local DeviceID: picks local keys
	closed bool   // qp was destroyed
	role   failover.Role
	// lastPSN is the first packet sequence number of the last connection in which the queue pair
	// could send.
	lastPSN uint32
	// givesUp is the time after which the NIC gives up on a silent peer; 0 is never.
	givesUp time.Duration
	// gidPort is the UDP port in this end's GID if the peer may not understand that; otherwise 0.
	gidPort uint16
	railConn
	stats railCounters
	log   failover.Log // outstanding work, if failover is in force

	ability *ability.Rail // of a data rail with ByAbility; otherwise nil
	// back is the state of a lost rail and of its return, if this end offers failover; otherwise
	// nil.
	back *comeback

	maxSGE     int // pieces of memory that one fragment may have
	maxRecvSGE int // pieces of memory that one receive may have
	// maxMessage is the longest message in bytes: the port's limit, at most 2 GiB.
	maxMessage uint64
	// slots is how many work requests the send queue holds.
	slots int

	// recvs counts the receives and credits that are posted and have not completed.
	recvs int
	// recvLimit is the most of them, and own how many of them the rail keeps posted itself.
	recvLimit, own int
	// recvsToPost counts the rail's own receives (credits, or Spray's watch) that are to be posted:
	// all at first, later those that messages have used up. receiver.recvsToPost is the sum.
	recvsToPost int
	// creditsPosted counts the credits ever posted; it numbers them.
	creditsPosted uint64
	inbox         dqplb.Inbox // arrivals on the credits
}

// railConn is a rail's state of the connection that it carries. Every connection begins with a
// fresh one.
type railConn struct {
	// limit is how many send slots may be taken: rail.slots, or fewer if the peer posts fewer
	// credits.
	limit   int
	peerDev uint8 // the peer's DeviceID: picks remote keys
	// dirty means that plain data went out since the last numbered message: before a notification,
	// this rail must carry a marker that proves that the data has arrived.
	dirty bool
	// down means that the rail was lost, and others have its work: see recovery.loseRail.
	down bool
	// recvsRefused means that the queue pair refused a receive permanently after a failure, or is
	// down. No more receives are posted on it.
	recvsRefused bool
	psn          uint32 // first packet sequence number that the rail sends
	peerNum      uint32 // of the queue pair that it is connected to
	// stopErr is why the queue pair has refused the move to ERR, which is tried again; nil if it
	// has not.
	stopErr error
}

// newConn returns the rail's part of a connection to a peer that is not known yet.
//
// It draws a packet sequence number that is a quarter to half of all numbers ahead of the last
// connection's. Packets of that connection may still be on their way between the same queue pairs.
// If their numbers were among those of the new connection, they would be carried out in place of
// its own packets, or acknowledge packets that have not arrived. With this distance they lie behind
// its first number, unless the last connection has sent four million packets.
func (r *rail) newConn() railConn {
	psn := (r.lastPSN + 1<<22 + rand.Uint32N(1<<22)) % (1 << 24)
	return railConn{psn: psn, peerDev: r.device, limit: r.slots}
}

// railCounters are the counters of [RailStats]. messages counts SENDs and notifications of Spray.
type railCounters struct {
	bytes, fragments, messages, errors, refused uint64
}

// newRail makes the rail of a physical queue pair, with the limits of a rail among several.
func newRail(cfg *Config, qp verbs.QP, index int) *rail {
	limits := qp.Cap()
	r := &rail{
		qp:         qp,
		num:        qp.Num(),
		idBits:     wrid.BitsOf(index),
		device:     uint8(qp.Device().ID()),
		maxSGE:     max(1, limits.MaxSendSGE),
		maxRecvSGE: limits.MaxRecvSGE,
		slots:      max(1, min(cfg.MaxMsgCntPerQP, limits.MaxSendWR)),
		recvLimit:  max(1, min(cfg.MaxMsgCntPerQP, limits.MaxRecvWR)),
		lastPSN:    rand.Uint32(),
	}
	r.railConn = r.newConn()
	return r
}

// recover makes the rail log its work, so that others can replace it. Its queue has room for
// control messages beyond its slots.
func (r *rail) recover(state *failover.Rail) {
	r.back = &comeback{state: state}
	r.slots = max(1, min(r.slots, r.qp.Cap().MaxSendWR-failover.ControlSlots, failover.MaxOutstanding))
	r.limit, r.recvLimit = r.slots, min(r.recvLimit, failover.MaxOutstanding)
}

// works reports whether the rail carries work, or waits for its peer to carry some.
func (r *rail) works() bool { return r.back.state.Works() }

// drawPSN draws the upper 16 bits of a packet sequence number, which travel in a control message:
// never 0, and ahead of the rail's last connection like that of newConn.
func (r *rail) drawPSN() uint16 {
	return max(1, uint16(r.lastPSN>>8+1<<14+rand.Uint32N(1<<14)))
}

// controlRecvs is how many receives a data rail of Spray keeps posted for control messages.
const controlRecvs = 32

// comeback is the state of a lost rail, with everything needed to bring it back.
type comeback struct {
	state *failover.Rail
	setup [setupSteps]connectStep // how the queue pair was connected
	limit int                     // rail.limit in full service
	grow  uint64                  // the work it must have carried before it gets more; 0 in full service
	// emptied means that receives of the user came back without a message, to be posted elsewhere.
	emptied bool
	lostAt  time.Time // when it was taken out of service; zero once that is settled
}

// These are the steps in which a queue pair is connected.
const (
	stepInit = iota
	stepRTR
	stepRTS
	setupSteps
)

// connectStep is one transition on the way to RTS.
type connectStep struct {
	attr verbs.QPAttr
	mask verbs.QPAttrMask
}

// note records how the queue pair was connected.
func (b *comeback) note(attr *verbs.QPAttr, mask verbs.QPAttrMask) {
	if mask&verbs.QPAttrState == 0 {
		return
	}
	switch attr.State {
	case verbs.StateInit:
		b.setup[stepInit] = connectStep{*attr, mask}
	case verbs.StateRTR:
		b.setup[stepRTR] = connectStep{*attr, mask}
	case verbs.StateRTS:
		b.setup[stepRTS] = connectStep{*attr, mask}
	}
}

// completions returns how many completions the rail may have outstanding.
func (r *rail) completions() int {
	if r.back != nil {
		return r.slots + r.recvLimit + failover.ControlSlots
	}
	return r.slots + r.recvLimit
}

func (r *rail) index() int { return r.idBits.Index() }

func (r *rail) hasRoom() bool { return r.inUse < r.limit }

// staged returns how many work requests wait to be posted. The rest of the rail's inUse is on the
// NIC.
func (r *rail) staged() int {
	if r.batch == nil {
		return 0
	}
	return r.batch.tail - r.batch.head
}

// onNIC reports whether the NIC holds a send of the rail. A completion while it holds none is
// spurious.
func (r *rail) onNIC() bool { return r.inUse > r.staged() }

// toError moves the queue pair to ERR, so that the NIC flushes what it still holds. In RESET there
// is nothing to flush. A queue pair that refuses keeps what it holds, so the move must be tried
// again, unless its device is gone.
func (r *rail) toError() {
	r.stopErr = nil
	if s := r.qp.State(); s == verbs.StateReset || s == verbs.StateErr || r.closed {
		return
	}
	err := r.qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState)
	if err != nil && !errors.Is(err, verbs.ErrDeviceGone) {
		r.stopErr = err
	}
}

// carrier describes the rails, one entry for each NIC and port of the peer.
func (s *railSet) carrier(cfg *Config, failover bool) Carrier {
	c := Carrier{Scheme: cfg.Scheme, Failover: failover}
	type path struct {
		device uint8
		peer   verbs.GID
	}
	places := map[path]int{}
	for _, r := range s.all {
		attr, err := r.qp.Query()
		if err != nil {
			attr = verbs.QPAttr{}
		}
		at := path{r.device, attr.AH.DGID}
		i, ok := places[at]
		if !ok {
			i = len(c.NICs)
			places[at] = i
			c.NICs = append(c.NICs, carrierNIC(r.qp.Device(), int(cfg.Conn.port(r.qp.Device())), &attr))
		}
		c.NICs[i].QPs++
	}
	return c
}

// carrierNIC describes a NIC, and the path of one of its queue pairs.
func carrierNIC(dev verbs.Device, port int, attr *verbs.QPAttr) CarrierNIC {
	n := CarrierNIC{Device: dev.Name(), PeerGID: attr.AH.DGID, MTU: attr.PathMTU.Bytes()}
	if p, ok := dev.(interface{ ProviderName() string }); ok {
		n.Provider = p.ProviderName()
	}
	if d, err := dev.Query(); err == nil {
		n.Software = d.Software
	}
	if e, err := dev.QueryGID(port, int(attr.AH.SGIDIndex)); err == nil && attr.PathMTU != 0 {
		n.GID = e.GID
	}
	return n
}
