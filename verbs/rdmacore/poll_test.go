//go:build linux && (amd64 || arm64)

package rdmacore_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"ibverbx/verbs"
)

func TestPollSends(t *testing.T) {
	r := newRig(t, openStandin(t, standinConfig{}), rigConfig{})
	var id uint64
	for op := verbs.OpRDMAWrite; op.Valid(); op++ {
		id++
		wr := r.send(id<<56|id, 8)
		wr.Opcode = op
		r.post(wr)
		want := verbs.WC{ID: wr.ID, Opcode: op.WCOpcode(), QPNum: r.qp.Num(), ByteLen: 8}
		if got := r.poll(r.cq, 1)[0]; got != want {
			t.Errorf("%v:\n got %+v\nwant %+v", op, got, want)
		}
	}
	unsignaled := r.send(1, 8)
	unsignaled.Flags = 0
	r.post(unsignaled, r.send(2, 8))
	if wc := r.poll(r.cq, 1)[0]; wc.ID != 2 {
		t.Errorf("%+v", wc)
	}
}

func TestPollSignalAll(t *testing.T) {
	r := newRig(t, openStandin(t, standinConfig{}), rigConfig{signalAll: true})
	wr := r.send(7, 8)
	wr.Flags = 0
	r.post(wr)
	if wc := r.poll(r.cq, 1)[0]; wc.ID != 7 {
		t.Errorf("%+v", wc)
	}
}

func TestPollReceives(t *testing.T) {
	r := newRig(t, openStandin(t, standinConfig{}), rigConfig{})
	const id, bytes, imm = 0xfedcba9876543210, 0x01020304, 0xa1b2c3d4
	for kind, want := range []verbs.WC{
		{Opcode: verbs.WCRecv},
		{Opcode: verbs.WCRecv, Flags: verbs.WCWithImm, Imm: imm},
		{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, Imm: imm},
	} {
		r.recv(verbs.RecvWR{ID: id, SGL: r.sge(0, 64)})
		if r.completeRecv(0, r.qp.Num(), bytes, imm, int32(kind), 0) == 0 {
			t.Fatal("no receive is posted")
		}
		want.ID, want.ByteLen, want.QPNum, want.SrcQP = id, bytes, r.qp.Num(), 0x424242
		got := r.poll(r.rcq, 1)[0]
		if want.Flags == 0 {
			got.Imm = 0 // means nothing
		}
		if got != want {
			t.Errorf("kind %d:\n got %+v\nwant %+v", kind, got, want)
		}
	}
}

// Every status arrives, and of the fields that real NICs leave undefined with it none does: the
// stand-in fills them with garbage.
func TestPollStatuses(t *testing.T) {
	s := openStandin(t, standinConfig{})
	d := s.device(t)
	const lastOfC = verbs.Status(23) // IBV_WC_TM_RNDV_INCOMPLETE: those without a name come as numbers
	for st := verbs.StatusLocLenErr; st <= lastOfC; st++ {
		t.Run(st.Name(), func(t *testing.T) {
			r := rigOn(t, s, d, rigConfig{})
			r.recv(verbs.RecvWR{ID: 50}, verbs.RecvWR{ID: 51})
			s.status(uint32(st), 0x8700+uint32(st), 1)
			r.post(r.send(1, 8), r.send(2, 8))
			want := []verbs.WC{
				{ID: 1, Status: st, VendorErr: 0x8700 + uint32(st), QPNum: r.qp.Num(),
					Opcode: verbs.WCUnknown},
				{ID: 2, Status: verbs.StatusWRFlushErr, VendorErr: 0xf9, QPNum: r.qp.Num(),
					Opcode: verbs.WCUnknown},
			}
			wcs := r.poll(r.cq, 2)
			flushed := r.poll(r.rcq, 2)
			if wcs[0] != want[0] || wcs[1] != want[1] {
				t.Errorf("\n got %+v\nwant %+v", wcs, want)
			}
			for i, wc := range flushed {
				if wc != (verbs.WC{ID: uint64(50 + i), Status: verbs.StatusWRFlushErr, VendorErr: 0xf9,
					QPNum: r.qp.Num(), Opcode: verbs.WCUnknown}) {
					t.Errorf("flushed receive %+v", wc)
				}
			}
			if got := r.qp.State(); got != verbs.StateErr {
				t.Errorf("the queue pair is in %v after a failed completion", got)
			}
			is(t, wcs[0].Status, st)
		})
	}
}

// A poll brings as many as there is room for, however many crossings it takes, and leaves the rest.
func TestPollBatches(t *testing.T) {
	r := newRig(t, openStandin(t, standinConfig{}), rigConfig{depth: 2048, cap: verbs.QPCap{MaxSendWR: 1024}})
	for _, room := range []int{1, 63, 64, 65, 128, 200, 1024} {
		wrs := make([]verbs.SendWR, 300)
		for i := range wrs {
			wrs[i] = r.send(uint64(i), uint32(i))
		}
		r.post(wrs...)
		wcs := make([]verbs.WC, room)
		got := 0
		for got < len(wrs) {
			n, err := r.cq.Poll(wcs)
			if err != nil || n != min(room, len(wrs)-got) {
				t.Fatalf("room for %d, after %d: %d %v", room, got, n, err)
			}
			for i, wc := range wcs[:n] {
				if wc.ID != uint64(got+i) || wc.ByteLen != uint32(got+i) {
					t.Fatalf("completion %d is %+v", got+i, wc)
				}
			}
			got += n
		}
	}
	for _, none := range [][]verbs.WC{nil, {}} {
		if n, err := r.cq.Poll(none); n != 0 || err != nil {
			t.Errorf("no room: %d %v", n, err)
		}
	}
	// A successful completion overwrites every field left over from a failed one.
	stale := []verbs.WC{{ID: 1, Status: 1, Opcode: 1, VendorErr: 1, ByteLen: 1, Imm: 1, QPNum: 1, SrcQP: 1,
		Flags: 1 << 31}}
	r.post(r.send(9, 8))
	if n, err := r.cq.Poll(stale); n != 1 || err != nil ||
		stale[0] != (verbs.WC{ID: 9, ByteLen: 8, QPNum: r.qp.Num()}) {
		t.Errorf("%d %+v %v", n, stale, err)
	}
}

// A poll that fails returns a negative number, which is no errno: mlx5 and mlx4 have -2 of their
// own (CQ_POLL_ERR). The queue is unusable, because completions are lost; the NIC is not affected.
func TestPollFails(t *testing.T) {
	s := openStandin(t, standinConfig{})
	for _, result := range []int32{-1, -2} {
		r := newRig(t, s, rigConfig{})
		r.failCall("ibv_poll_cq", result, 1, 0)
		for range 2 {
			n, err := r.cq.Poll(make([]verbs.WC, 4))
			if n != 0 || errors.Is(err, syscall.ENOENT) || errors.Is(err, verbs.ErrDeviceGone) {
				t.Errorf("C returned %d: %d completions, %v", result, n, err)
			}
			mentions(t, err, "poll: standin0: ibv_poll_cq", "completions are lost")
		}
		r.poll(r.rcq, 0) // another queue is not affected
	}
}

// Two devices hand out the same numbers.
func TestSameNumberOnTwoDevices(t *testing.T) {
	s := openStandin(t, standinConfig{})
	list := devices(t, s.open(t, ""))
	var r [2]*rig
	for i := range r {
		r[i] = rigOn(t, s, list[i], rigConfig{})
	}
	for r[0].qp.Num() != r[1].qp.Num() {
		low := 0
		if r[1].qp.Num() < r[0].qp.Num() {
			low = 1
		}
		r[low] = rigOn(t, s, list[low], rigConfig{})
	}
	s.status(uint32(verbs.StatusRetryExcErr), 0, 1)
	r[0].post(r[0].send(1, 8))
	r[1].post(r[1].send(2, 8))
	bad, good := r[0].poll(r[0].cq, 1)[0], r[1].poll(r[1].cq, 1)[0]
	if bad.Status != verbs.StatusRetryExcErr || good.Status != verbs.StatusSuccess {
		t.Errorf("%+v, %+v", bad, good)
	}
	if a, b := r[0].qp.State(), r[1].qp.State(); a != verbs.StateErr || b != verbs.StateRTS {
		t.Error(fmt.Sprint("states ", a, b))
	}
}
