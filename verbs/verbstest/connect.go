package verbstest

import (
	"fmt"

	"ibverbx/verbs"
)

// ConnectConfig configures [Connect]. The zero value works.
type ConnectConfig struct {
	// Port and GIDIndex are used on both sides; Port 0 means 1.
	Port, GIDIndex int
	// GIDIndexOf, if not nil, returns the entry for a device in place of GIDIndex.
	GIDIndexOf func(d verbs.Device) int
	// Adjust may change the attributes of one side before they are used. They are filled in: all
	// remote access, up to four reads and atomics outstanding, a timeout of 67 ms (code 14), seven
	// retries, RNR retried forever with a timer of 640 µs (code 12).
	Adjust func(local verbs.QP, attr *verbs.QPAttr)
}

// Connect takes two queue pairs from RESET to RTS, each other's peer.
func Connect(a, b verbs.QP, cfg ConnectConfig) error {
	attrA, attrB, err := cfg.attrs(a, b)
	if err != nil {
		return err
	}
	// Both are ready to receive before either may send.
	for _, state := range wayUp {
		if err := step(a, attrA, state); err != nil {
			return err
		}
		if err := step(b, attrB, state); err != nil {
			return err
		}
	}
	return nil
}

// ToRTS takes a queue pair whose peer is elsewhere from RESET to RTS. attr has all attributes that
// the transitions require; its State does not matter.
func ToRTS(qp verbs.QP, attr verbs.QPAttr) error {
	for _, state := range wayUp {
		if err := step(qp, attr, state); err != nil {
			return err
		}
	}
	return nil
}

// wayUp lists the states from RESET to RTS, without RESET.
var wayUp = [...]verbs.QPState{verbs.StateInit, verbs.StateRTR, verbs.StateRTS}

// attrs fills in the attributes of both sides.
func (cfg ConnectConfig) attrs(a, b verbs.QP) (attrA, attrB verbs.QPAttr, err error) {
	if cfg.Port == 0 {
		cfg.Port = 1
	}
	portA, err := a.Device().QueryPort(cfg.Port)
	if err != nil {
		return attrA, attrB, err
	}
	portB, err := b.Device().QueryPort(cfg.Port)
	if err != nil {
		return attrA, attrB, err
	}
	indexA, indexB := cfg.gidIndex(a), cfg.gidIndex(b)
	gidA, err := a.Device().QueryGID(cfg.Port, indexA)
	if err != nil {
		return attrA, attrB, err
	}
	gidB, err := b.Device().QueryGID(cfg.Port, indexB)
	if err != nil {
		return attrA, attrB, err
	}
	mtu := min(portA.ActiveMTU, portB.ActiveMTU)
	attrA = cfg.attr(a, b, gidB.GID, portB, mtu)
	attrB = cfg.attr(b, a, gidA.GID, portA, mtu)
	return attrA, attrB, nil
}

// gidIndex returns which entry of the GID table to use for a queue pair's device.
func (cfg ConnectConfig) gidIndex(qp verbs.QP) int {
	if cfg.GIDIndexOf != nil {
		return cfg.GIDIndexOf(qp.Device())
	}
	return cfg.GIDIndex
}

func (cfg ConnectConfig) attr(local, remote verbs.QP, gid verbs.GID, port verbs.PortAttr,
	mtu verbs.MTU) verbs.QPAttr {
	attr := verbs.QPAttr{
		PathMTU:         mtu,
		DestQPNum:       remote.Num(),
		RQPSN:           psn(remote),
		SQPSN:           psn(local),
		Access:          verbs.AccessAll,
		MaxRDAtomic:     4,
		MaxDestRDAtomic: 4,
		MinRNRTimer:     12,
		Port:            uint8(cfg.Port),
		Timeout:         14,
		RetryCount:      7,
		RNRRetry:        verbs.RNRRetryForever,
		AH: verbs.AH{
			DGID: gid, SGIDIndex: uint8(cfg.gidIndex(local)), HopLimit: 64, DLID: port.LID,
			Port:   uint8(cfg.Port),
			Global: port.LinkLayer != verbs.LinkLayerInfiniBand,
		},
	}
	if cfg.Adjust != nil {
		cfg.Adjust(local, &attr)
	}
	return attr
}

// psn returns the first packet sequence number of a queue pair: near the end of the 24 bits, so
// that it wraps early.
func psn(qp verbs.QP) uint32 { return 0xfffff0 ^ qp.Num()&0xf }

// modifyMask has the attributes that each transition up from RESET requires.
var modifyMask = map[verbs.QPState]verbs.QPAttrMask{
	verbs.StateReset: verbs.QPAttrState,
	verbs.StateInit:  verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess,
	verbs.StateRTR: verbs.QPAttrState | verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPNum |
		verbs.QPAttrRQPSN |
		verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer,
	verbs.StateRTS: verbs.QPAttrState | verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry |
		verbs.QPAttrSQPSN |
		verbs.QPAttrMaxRDAtomic,
	verbs.StateSQD: verbs.QPAttrState,
	verbs.StateErr: verbs.QPAttrState,
}

// step makes one transition up from RESET, or one that requires no attributes.
func step(qp verbs.QP, attr verbs.QPAttr, to verbs.QPState) error {
	attr.State = to
	if err := qp.Modify(&attr, modifyMask[to]); err != nil {
		return fmt.Errorf("queue pair %d of %s to %v: %w", qp.Num(), qp.Device().Name(), to, err)
	}
	return nil
}
