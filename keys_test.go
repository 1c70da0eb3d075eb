package ibverbx

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"reflect"
	"strings"
	"testing"

	"ibverbx/verbs"
)

func TestKeysCoverTheirRangeAndNoMore(t *testing.T) {
	const top = math.MaxUint64
	for _, c := range []struct {
		base, length, addr, n uint64
		want                  bool
	}{
		{1000, 100, 1000, 100, true},
		{1000, 100, 1000, 101, false},
		{1000, 100, 999, 1, false},
		{1000, 100, 999, 0, false},
		{1000, 100, 1099, 1, true},
		{1000, 100, 1100, 0, true},
		{1000, 100, 1100, 1, false},
		{1000, 100, 1050, top, false},
		{1000, 100, 1050, top - 1049, false}, // the sum is 0
		{top - 9, 10, top - 9, 10, true},     // up to the end
		{top - 9, 10, top, 1, true},
		{top - 9, 10, top, 2, false},
		{top - 9, 10, 0, 1, false}, // wraps
		{top - 9, 10, top - 9, top, false},
		{0, 0, 0, 0, true},
		{0, 0, 0, 1, false},
		{0, top, 0, top, true}, // raw memory
		{0, top, 1 << 63, 1 << 62, true},
		{0, top, top - 5, 5, true},
		{0, top, top - 5, 100, false}, // wraps
		{0, top, 1 << 63, 1 << 63, false},
	} {
		k := Keys{base: c.base, length: c.length}
		if got := k.covers(c.addr, c.n); got != c.want {
			t.Errorf("%s covers %s: %v", addrRange(c.base, c.length), addrRange(c.addr, c.n), got)
		}
	}
}

func TestKeysByDevice(t *testing.T) {
	k := NewKeys(map[verbs.DeviceID]uint32{0: 7, 63: 9, 64: 11, 255: 12})
	for _, c := range []struct {
		dev verbs.DeviceID
		key uint32
		ok  bool
	}{{0, 7, true}, {1, 0, false}, {63, 9, true}, {64, 0, false}, {255, 0, false}} {
		if key, ok := k.Key(c.dev); key != c.key || ok != c.ok {
			t.Errorf("device %d: key %d, %v", c.dev, key, ok)
		}
	}
	if k.have != 1|1<<63 || k.at(63) != 9 {
		t.Errorf("have %#x", k.have)
	}
	if key, ok := (*Keys)(nil).Key(0); ok || key != 0 {
		t.Error("nil keys have a key")
	}
}

func remoteSegment(addr, n uint64, devices ...verbs.DeviceID) RemoteSegment {
	keys := map[verbs.DeviceID]uint32{}
	for _, d := range devices {
		keys[d] = 0x01020304 * (uint32(d) + 1)
	}
	return RemoteSegment{Addr: addr, Length: n, Keys: NewKeys(keys)}
}

func TestSegmentBinary(t *testing.T) {
	all := make([]verbs.DeviceID, verbs.MaxDevices)
	for i := range all {
		all[i] = verbs.DeviceID(i)
	}
	var k Keys
	for _, s := range []RemoteSegment{
		{}, {Addr: 5, Length: 6}, remoteSegment(0, 0), remoteSegment(1<<40, 4096, 0),
		remoteSegment(math.MaxUint64-9, 9, 3, 63), remoteSegment(8, 1, all...),
	} {
		b := s.AppendBinary([]byte("before"))
		if len(b)-6 != s.BinarySize() {
			t.Errorf("%v: %d bytes, BinarySize %d", s, len(b)-6, s.BinarySize())
		}
		got, rest, err := k.DecodeSegment(append(b, "behind"...)[6:])
		if err != nil || string(rest) != "behind" || got.Addr != s.Addr || got.Length != s.Length {
			t.Fatalf("%v: read as %v, %q, %v", s, got, rest, err)
		}
		for dev := range verbs.DeviceID(verbs.MaxDevices + 1) {
			want, has := s.Keys.Key(dev)
			if key, ok := got.Keys.Key(dev); ok != has || key != want {
				t.Fatalf("%v: device %d: key %#x, %t: want %#x, %t", s, dev, key, ok, want, has)
			}
		}
		if !k.covers(s.Addr, s.Length) || s.Addr+s.Length+1 > s.Addr && k.covers(s.Addr, s.Length+1) {
			t.Errorf("%v: bounds are not the segment's", s)
		}
	}
}

func TestSegmentBinaryRefusals(t *testing.T) {
	good := remoteSegment(64, 8, 1, 2).AppendBinary(nil)
	change := func(i int, v byte) []byte {
		b := bytes.Clone(good)
		b[i] = v
		return b
	}
	k := *NewKeys(map[verbs.DeviceID]uint32{7: 7})
	before := k
	for want, b := range map[string][]byte{
		"must be 17 at least": good[:16], "0 bytes": nil, "3 keys in 10 bytes": change(16, 3),
		"2 keys in 9 bytes":        good[:len(good)-1],
		"65 keys":                  append(change(16, 65), make([]byte, 5*65)...),
		"device 64":                change(22, 64),
		"device 1: ":               change(22, 1),
		"beyond the address space": append(bytes.Repeat([]byte{0xff}, 16), 0),
	} {
		_, _, err := k.DecodeSegment(b)
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
		if k != before {
			t.Fatalf("%q: the keys have changed", want)
		}
	}
}

func TestSegmentBinaryAllocatesNothing(t *testing.T) {
	s := remoteSegment(64, 8, 1, 2)
	b := make([]byte, 0, 64)
	var k Keys
	if n := testing.AllocsPerRun(100, func() {
		if _, _, err := k.DecodeSegment(s.AppendBinary(b)); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

// FuzzSegmentBinary decodes segments. An accepted one encodes to the same bytes; a refused one
// changes nothing.
func FuzzSegmentBinary(f *testing.F) {
	f.Add([]byte{})
	f.Add(remoteSegment(64, 8, 1, 2).AppendBinary(nil))
	f.Add(append(remoteSegment(1, 2, 0, 63).AppendBinary(nil), 1, 2, 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		var k Keys
		s, rest, err := k.DecodeSegment(b)
		if err != nil {
			if !errors.Is(err, verbs.ErrInvalid) || k != (Keys{}) {
				t.Fatal(err)
			}
			return
		}
		if again := append(s.AppendBinary(nil), rest...); !bytes.Equal(again, b) {
			t.Fatalf("% x\nencodes to\n% x", b, again)
		}
	})
}

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
