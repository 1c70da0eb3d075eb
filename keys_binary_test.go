package ibverbx

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"ibverbx/verbs"
)

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
