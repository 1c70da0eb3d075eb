package ibverbx

import (
	"encoding/json"
	"errors"
	"math/big"
	"reflect"
	"testing"

	"ibverbx/verbs"
)

// FuzzRemoteMR parses descriptions of the peer's memory, and posts with them. An accepted
// description survives a round trip. A request is accepted if and only if it stays within the
// region and there is a key for each device of the peer. The work requests that reach the NICs stay
// within it, too.
func FuzzRemoteMR(f *testing.F) {
	for _, s := range []struct {
		text   string
		off, n uint64
	}{
		{`{"addr":"140737488355328","length":"1048576","rkeys":{"0":4294967295,"1":7}}`, 0, 1000},
		{`{"addr":"140737488355328","length":"1048576","rkeys":{"0":4294967295,"1":7,"63":9}}`, 1<<20 - 8, 8},
		{`{"addr":"18446744073709551600","length":"10","rkeys":{"0":1,"1":1}}`, 20, 4}, // wraps to 4
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
		newRecorded(f, 2, 1, Config{FragmentSize: 100, MaxMsgCntPerQP: 4}),
		newRecorded(f, 2, 1, Config{FragmentSize: 1 << 31, MaxMsgCntPerQP: 4, Scheme: Spray}),
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
				t.Fatalf("accepted a key for device %d", dev)
			}
		}
		if r.Addr()+r.Len() < r.Addr() {
			t.Fatalf("the region wraps: %d+%d", r.Addr(), r.Len())
		}
		again := RemoteMR{}
		text, err := json.Marshal(r)
		if err = errors.Join(err, json.Unmarshal(text, &again)); err != nil || r.keys != nil &&
			!reflect.DeepEqual(again, r) {
			t.Fatalf("%v is written as %s, and read back as %v, %v", r, text, again, err)
		}
		if s := r.At(off); s.Length != 0 && (s.Addr < r.Addr() || s.Addr+s.Length != r.Addr()+r.Len()) ||
			off < r.Len() && s.Length != r.Len()-off {
			t.Fatalf("from %d on it is %v", off, s)
		}
		for _, q := range ends {
			postWith(t, q, r.Slice(off, n), verbs.Opcode(op%5))
		}
	})
}

// postWith posts a request for the whole of a remote segment, and checks the work requests that
// reach the NICs.
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
	pollNow(t, q.CQ()) // flushed completions
	for _, qp := range append(q.qps, q.notify) {
		for _, p := range qp.posts {
			if p.Bytes() == 0 {
				continue // the NIC does not look at its address
			}
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
	if err = errors.Join(err, q.Connect(Elsewhere(card))); err != nil {
		t.Fatal(err)
	}
}

// refusal is the error with which a request must be refused, or nil, computed without overflow.
func refusal(q *VirtualQP, wr *SendWR) error {
	k, n := wr.Remote.Keys, wr.Remote.Length
	sum := func(a, b uint64) *big.Int {
		return new(big.Int).Add(new(big.Int).SetUint64(a), new(big.Int).SetUint64(b))
	}
	switch {
	case n == 0 && wr.Opcode.IsAtomic():
		return ErrLength
	case n == 0:
		return nil // touches no memory
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
