package ibverbx

import (
	"encoding/json"
	"errors"
	"math/big"
	"reflect"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// FuzzRemoteMR reads descriptions of the peer's memory, and posts with them. What is taken reads as
// the same when written; a request is taken just when it stays within the region and there is a key
// for each device of the peer; and what reaches the NICs names nothing else.
func FuzzRemoteMR(f *testing.F) {
	for _, s := range []struct {
		text   string
		off, n uint64
	}{
		{`{"addr":"140737488355328","length":"1048576","rkeys":{"0":4294967295,"1":7}}`, 0, 1000},
		{`{"addr":"140737488355328","length":"1048576","rkeys":{"0":4294967295,"1":7,"63":9}}`, 1<<20 - 8, 8},
		{`{"addr":"18446744073709551600","length":"10","rkeys":{"0":1,"1":1}}`, 20, 4}, // goes round to 4
		{`{"addr":"4096","length":"64","rkeys":{"0":1,"1":1}}`, 1<<64 - 1, 8},
		{`{"addr":"4096","length":"64","rkeys":{"0":1,"1":1}}`, 60, 8},
		{`{"addr":"1","length":"18446744073709551614","rkeys":{"0":1,"1":1}}`, 7, 1 << 62},
		{`{"addr":"4096","length":"64","rkeys":{"0":1}}`, 0, 8},
		{`{"addr":"18446744073709551615","length":"2","rkeys":{}}`, 0, 0},
		{`{"addr":"0","length":"18446744073709551615"}`, 0, 1},
		{`null`, 0, 1}, {`{"rkeys":{"64":1}}`, 0, 1}, {`{"addr":1}`, 0, 1},
		{`{"rkeys":{"00":1,"0":2}}`, 0, 1}, {`{`, 0, 1},
	} {
		for op := range byte(7) {
			f.Add([]byte(s.text), s.off, s.n, op)
		}
	}
	ends := []*recorded{
		newRecorded(f, 2, 1, Config{MaxMsgSize: 100, MaxMsgCntPerQP: 4}),
		newRecorded(f, 2, 1, Config{MaxMsgSize: 1 << 31, MaxMsgCntPerQP: 4, Scheme: Spray}),
	}
	f.Fuzz(func(t *testing.T, data []byte, off, n uint64, op byte) {
		var r RemoteMR
		if err := json.Unmarshal(data, &r); err != nil {
			var syntax *json.SyntaxError
			if !errors.Is(err, verbs.ErrInvalid) && !errors.As(err, &syntax) || len(err.Error()) > 1000 ||
				r.keys != nil {
				t.Fatalf("%d bytes: %.300v", len(err.Error()), err)
			}
			return
		}
		var keys struct{ RKeys map[uint8]uint32 }
		_ = json.Unmarshal(data, &keys)
		for dev := range keys.RKeys {
			if dev >= verbs.MaxDevices {
				t.Fatalf("took a key for device %d", dev)
			}
		}
		if r.Addr()+r.Len() < r.Addr() {
			t.Fatalf("it goes round the address space: %d+%d", r.Addr(), r.Len())
		}
		again := RemoteMR{}
		text, err := json.Marshal(r)
		if err = errors.Join(err, json.Unmarshal(text, &again)); err != nil || r.keys != nil &&
			!reflect.DeepEqual(again, r) {
			t.Fatalf("%v is written as %s, and read as %v, %v", r, text, again, err)
		}
		if s := r.At(off); s.Length != 0 && (s.Addr < r.Addr() || s.Addr+s.Length != r.Addr()+r.Len()) ||
			off < r.Len() && s.Length != r.Len()-off {
			t.Fatalf("from %d there is %v", off, s)
		}
		for _, q := range ends {
			postWith(t, q, r.Slice(off, n), verbs.Opcode(op%5))
		}
	})
}

// postWith posts a request of as many bytes as a piece of the peer's memory has, and looks at what
// reaches the NICs.
func postWith(t *testing.T, q *recorded, remote RemoteSegment, op verbs.Opcode) {
	t.Helper()
	if op.IsSend() {
		op = verbs.OpAtomicFetchAdd
	}
	local := NewKeys(map[verbs.DeviceID]uint32{0: 1, 1: 2})
	wr := SendWR{Opcode: op, Flags: verbs.SendSignaled, Imm: 5,
		Local: Segment{Length: remote.Length, Keys: local}, Remote: remote}
	n, err := q.PostSend(wr)
	if want := refusal(q.VirtualQP, &wr); !errors.Is(err, want) || (n == 1) != (want == nil) {
		t.Fatalf("%v of %v: %d, %v, want %v", op, remote, n, err, want)
	}
	for range 3 {
		pollNow(t, q.CQ())
	}
	if err := q.Reset(); err != nil {
		t.Fatal(err)
	}
	pollNow(t, q.CQ()) // what was flushed
	for _, qp := range append(q.qps, q.notify) {
		for _, p := range qp.posts {
			key, ok := remote.Keys.Key(qp.Device().ID())
			if end := p.RemoteAddr + p.Bytes(); !ok || p.RKey != key || p.RemoteAddr < remote.Addr ||
				end > remote.Addr+remote.Length {
				t.Fatalf("%v of %v: posted %d bytes at %#x with key %d", op, remote, p.Bytes(), p.RemoteAddr,
					p.RKey)
			}
		}
		qp.posts, qp.recvs = qp.posts[:0], qp.recvs[:0]
	}
	card, err := q.Card()
	if err = errors.Join(err, q.Connect(card)); err != nil {
		t.Fatal(err)
	}
}

// refusal is why a request cannot be, counted without bounds; nil if it can.
func refusal(q *VirtualQP, wr *SendWR) error {
	k, n := wr.Remote.Keys, wr.Remote.Length
	sum := func(a, b uint64) *big.Int {
		return new(big.Int).Add(new(big.Int).SetUint64(a), new(big.Int).SetUint64(b))
	}
	switch {
	case n == 0:
		return ErrLength
	case k == nil:
		return ErrNoKey
	}
	for dev := range verbs.DeviceID(2) {
		if _, ok := k.Key(dev); !ok {
			return ErrNoKey
		}
	}
	switch {
	case wr.Remote.Addr < k.base || sum(wr.Remote.Addr, n).Cmp(sum(k.base, k.length)) > 0:
		return ErrBounds
	case wr.Opcode.IsAtomic() && n != 8:
		return ErrLength
	case wr.Opcode.IsAtomic() && wr.Remote.Addr%8 != 0:
		return ErrAlignment
	}
	return nil
}

// FuzzPassedCompletions gives a virtual queue pair of one queue pair completions of any content.
// There is nothing to compare them with, so each is reported as it is, but for what is not defined;
// the first that failed is the error, and closing waits for nobody.
func FuzzPassedCompletions(f *testing.F) {
	wc := func(status, opcode, flags byte, qp byte) []byte {
		return []byte{status, opcode, flags, qp, 1, 2, 3, 4, 5, 6, 7, 8}
	}
	join := func(parts ...[]byte) (all []byte) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	ok, writes, receives := byte(verbs.StatusSuccess), byte(verbs.WCRDMAWrite), byte(verbs.WCRecvRDMAWithImm)
	f.Add(join(wc(ok, writes, 0, 0), wc(ok, receives, byte(verbs.WCWithImm), 0), wc(ok, receives, 0, 0)))
	f.Add(join(wc(byte(verbs.StatusRetryExcErr), 255, 255, 0), wc(byte(verbs.StatusWRFlushErr), receives, 255,
		0), wc(ok, writes, 0, 0)))
	f.Add(join(wc(ok, 255, 255, 1), wc(255, 255, 255, 0)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1024 {
			return
		}
		null := verbstest.NewNull(1)
		q, err := Open([]verbs.Device{null.Device(0)}, Config{QPsPerDevice: 1, MaxMsgCntPerQP: 4})
		if err != nil {
			t.Fatal(err)
		}
		card, err := q.Card()
		if err = errors.Join(err, q.Connect(card)); err != nil {
			t.Fatal(err)
		}
		if _, err := q.PostRecv(RecvWR{ID: 1}, RecvWR{ID: 2}); err != nil {
			t.Fatal(err)
		}
		var failed error
		for in := (program{data}); len(in.data) > 0; {
			wc := verbs.WC{Status: verbs.Status(in.byte()), Opcode: verbs.WCOpcode(in.byte()),
				Flags: verbs.WCFlags(in.byte())}
			wc.QPNum = q.send.rails.data[0].num + uint32(in.byte()%4)
			wc.ID, wc.Imm = uint64(in.uint32())<<32|uint64(in.byte()), in.uint32()
			wc.ByteLen, wc.VendorErr = wc.Imm, wc.Imm
			want := WC{ID: wc.ID, Status: wc.Status, QPNum: q.Num()}
			switch {
			case wc.Status != verbs.StatusSuccess:
				want.Opcode, want.VendorErr = verbs.WCUnknown, wc.VendorErr
			default:
				want.Opcode = wc.Opcode
				if wc.Opcode.IsRecv() {
					want.ByteLen = uint64(wc.ByteLen)
				}
				if wc.Opcode.IsRecv() && wc.Flags&verbs.WCWithImm != 0 {
					want.Imm, want.Flags = wc.Imm, verbs.WCWithImm
				}
			}
			got := q.cq.ProcessCompletions(nil, 0, wc)
			if wc.QPNum != q.send.rails.data[0].num {
				if len(got) != 0 {
					t.Fatalf("%+v of nobody's queue pair is reported as %+v", wc, got)
				}
				continue
			}
			if len(got) != 1 || got[0] != want {
				t.Fatalf("%+v is reported as %+v, want %+v", wc, got, want)
			}
			if failed == nil {
				failed = wc.Status.Err()
			}
			if !errors.Is(q.Err(), failed) || (failed == nil) != (q.Err() == nil) {
				t.Fatalf("error %v, want %v", q.Err(), failed)
			}
		}
		start := time.Now()
		if err := errors.Join(q.Close(), null.Close()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 900*time.Millisecond {
			t.Fatalf("closing took %v", took)
		}
	})
}
