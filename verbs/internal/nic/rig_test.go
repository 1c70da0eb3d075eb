package nic

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"ibverbx/verbs"
)

// rig is a NIC with one of everything, made as the package's documentation says.
type rig struct {
	t    *testing.T
	lock Lock
	open Objects
	dev  Device
	qps  Table[QP]
	pd   PD
	cq   CQ
	ch   *verbs.CompChannel
	qp   *QP
	buf  []byte
	mr   MR
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, qps: NewTable[QP](nil), ch: verbs.NewCompChannel(), buf: make([]byte, 4096)}
	r.dev = Device{Lock: &r.lock, Open: &r.open, Name: "nic0", GIDs: 1, Keys: NewKeys(0, nil),
		Limits: Limits{MaxQPWR: 16, MaxCQE: 64, MaxSGE: 2, MaxInline: 16, MaxMsgSize: 1 << 20,
			MaxRDAtomic: 4}}
	must(t, r.pd.Init(&r.dev))
	must(t, r.cq.Init(&r.dev, nil, verbs.CQConfig{Depth: 4, Channel: r.ch}))
	must(t, r.mr.Register(&r.pd, r.buf, verbs.AccessAll))
	r.qp = r.newQP()
	return r
}

// newQP makes a queue pair.
func (r *rig) newQP() *QP {
	r.t.Helper()
	r.lock.Lock()
	defer r.lock.Unlock()
	sizes, err := r.pd.CheckQP(verbs.QPCap{}, &r.cq, &r.cq)
	must(r.t, err)
	num, ok := r.qps.TakeNum()
	if !ok {
		r.t.Fatal("no number is free")
	}
	q := &QP{Num: num, Cap: sizes, CQs: [2]*CQ{&r.cq, &r.cq}}
	q.Init(&r.pd)
	r.qps.Add(num, q)
	return q
}

// closeQP closes a queue pair.
func (r *rig) closeQP(q *QP) {
	r.lock.Lock()
	defer r.lock.Unlock()
	q.Closed = true
	q.Reset()
	q.Destroy()
	r.qps.Remove(q.Num)
}

// modify changes the queue pair as a provider does.
func (r *rig) modify(attr verbs.QPAttr, mask verbs.QPAttrMask) {
	r.t.Helper()
	next, err := r.qp.CheckModify(&attr, mask|verbs.QPAttrState)
	must(r.t, err)
	Apply(&r.qp.Attr, &attr, mask)
	r.qp.State = next
}

// ready takes the queue pair to RTS.
func (r *rig) ready() {
	r.t.Helper()
	r.modify(verbs.QPAttr{State: verbs.StateInit, Port: 1, Access: verbs.AccessAll},
		verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess)
	r.modify(verbs.QPAttr{State: verbs.StateRTR, PathMTU: verbs.MTU1024, DestQPNum: 9, RQPSN: 1,
		MaxDestRDAtomic: 4, MinRNRTimer: 12, AH: verbs.AH{DGID: verbs.GID{1}, Port: 1, Global: true}},
		verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPNum|verbs.QPAttrRQPSN|
			verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer)
	r.modify(verbs.QPAttr{State: verbs.StateRTS, Timeout: 14, RetryCount: 7, RNRRetry: 7, SQPSN: 2,
		MaxRDAtomic: 4}, verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry|
		verbs.QPAttrSQPSN|verbs.QPAttrMaxRDAtomic)
}

// send posts a request and returns its number.
func (r *rig) send(wr verbs.SendWR) uint64 {
	r.t.Helper()
	must(r.t, r.qp.MaySend())
	must(r.t, r.qp.CheckSend(&wr))
	r.qp.SQ.Push(&wr)
	return r.qp.SQ.Posted - 1
}

// recv posts a receive and returns its number.
func (r *rig) recv(wr verbs.RecvWR) uint64 {
	r.t.Helper()
	must(r.t, r.qp.MayReceive())
	must(r.t, r.qp.CheckRecv(&wr))
	r.qp.RQ.Push(&wr)
	return r.qp.RQ.Posted - 1
}

// sge is a piece of the region.
func (r *rig) sge(at, n int) []verbs.SGE {
	return []verbs.SGE{{Addr: r.mr.Addr() + uint64(at), Length: uint32(n), LKey: r.mr.LKey()}}
}

// sent makes the completion of a request visible.
func (r *rig) sent(seq uint64) {
	r.qp.SQ.Executed, r.qp.SQ.Acked = seq+1, seq+1
	r.qp.Sent(r.cq.Next(false), seq, r.qp.SQ.At(seq))
}

// poll returns what a poll finds.
func (r *rig) poll() ([]verbs.WC, error) {
	var wcs [8]verbs.WC
	n, err := r.cq.Poll(wcs[:])
	return wcs[:n], err
}

// signaled reports whether the channel has an event, and takes it.
func (r *rig) signaled() bool {
	select {
	case <-r.ch.Events():
		return true
	default:
		return false
	}
}

func must(t *testing.T, err error) {
	if err != nil {
		t.Helper() // here, since it takes a microsecond
		t.Fatal(err)
	}
}

// refused demands an error with a sentinel and a detail.
func refused(t *testing.T, what string, err, want error, says string) {
	t.Helper()
	var op *verbs.OpError
	if !errors.Is(err, want) || !errors.As(err, &op) || !strings.Contains(op.Detail, says) {
		t.Errorf("%s: %v; want %v that says %q", what, err, want, says)
	}
}

// garbage is a source for failed completions.
func garbage() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }
