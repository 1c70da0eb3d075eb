package ibverbx

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// pieceKeys are keys that differ by region and by device.
func pieceKeys(region uint32) *Keys {
	return NewKeys(map[verbs.DeviceID]uint32{0: 10 * region, 3: 10*region + 3})
}

// A list is written with the keys of each piece, whole or cut into fragments, and empty pieces,
// which need no keys, are left out.
func TestPieceListNamesEachPieceWithItsKey(t *testing.T) {
	a, b := pieceKeys(1), pieceKeys(2)
	sge := func(addr uint64, length, key uint32) verbs.SGE {
		return verbs.SGE{Addr: addr, Length: length, LKey: key}
	}
	for _, c := range []struct {
		name string
		sgl  []Segment
		same *Keys
		// as device 3 names them, in fragments of 10 bytes and two pieces, and whole
		cut   [][]verbs.SGE
		whole []verbs.SGE
	}{
		{"one region", []Segment{{100, 4, a}, {200, 0, a}, {300, 9, a}}, a,
			[][]verbs.SGE{{sge(100, 4, 13), sge(300, 6, 13)}, {sge(306, 3, 13)}},
			[]verbs.SGE{sge(100, 4, 13), sge(300, 9, 13)}},
		{"two in turn", []Segment{{100, 15, a}, {200, 2, b}, {300, 2, a}}, nil,
			[][]verbs.SGE{{sge(100, 10, 13)}, {sge(110, 5, 13), sge(200, 2, 23)}, {sge(300, 2, 13)}},
			[]verbs.SGE{sge(100, 15, 13), sge(200, 2, 23), sge(300, 2, 13)}},
		{"runs", []Segment{{100, 3, a}, {110, 3, a}, {200, 3, b}, {210, 3, b}}, nil,
			[][]verbs.SGE{{sge(100, 3, 13), sge(110, 3, 13)}, {sge(200, 3, 23), sge(210, 3, 23)}},
			[]verbs.SGE{sge(100, 3, 13), sge(110, 3, 13), sge(200, 3, 23), sge(210, 3, 23)}},
		{"empty ones without keys", []Segment{{}, {100, 3, a}, {}, {200, 3, b}, {}}, nil,
			[][]verbs.SGE{{sge(100, 3, 13), sge(200, 3, 23)}},
			[]verbs.SGE{sge(100, 3, 13), sge(200, 3, 23)}},
		{"nothing", []Segment{{}, {}}, nil, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var l pieceList
			l.set([]Segment{{1, 1, b}, {2, 2, a}, {3, 3, b}, {4, 4, a}, {5, 5, b}}, nil) // an earlier user
			rails := railSet{localDevs: 1<<0 | 1<<3}
			_, keys, err := rails.checkMemory(0, &SendWR{SGL: c.sgl}, rails.localDevs)
			if err != nil || keys != c.same {
				t.Errorf("keys of all: %p, %v, want %p", keys, err, c.same)
			}
			l.set(c.sgl, keys)
			left := uint64(0)
			for _, s := range c.sgl {
				left += s.Length
			}
			room := make([]verbs.SGE, 8)
			if n := l.all(room, keys, 3); !slices.Equal(room[:n], c.whole) {
				t.Errorf("whole: %v, want %v", room[:n], c.whole)
			}
			for i := 0; left != 0; i++ {
				n, got := l.take(room[:2], keys, 3, min(10, left))
				if i == len(c.cut) || !slices.Equal(room[:n], c.cut[i]) {
					t.Fatalf("fragment %d: %v, want %v", i, room[:n], c.cut)
				}
				left -= got
			}
		})
	}
}

// holding is a virtual queue pair over four null queue pairs, with three regions.
type holding struct {
	*VirtualQP
	a, b, c *MR
}

func newHolding(t *testing.T) *holding {
	t.Helper()
	q, err := Open([]verbs.Device{verbstest.NewNull(1).Device(0)}, Config{MaxSGE: 8})
	if err != nil {
		t.Fatal(err)
	}
	connectElsewhere(t, q)
	h := &holding{VirtualQP: q}
	for _, mr := range []**MR{&h.a, &h.b, &h.c} {
		if *mr, err = q.Domain().Register(make([]byte, 4096), verbs.AccessAll); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// list is a scatter list of 8 bytes of each region.
func list(regions ...*MR) (sgl []Segment) {
	for i, mr := range regions {
		sgl = append(sgl, mr.Slice(uint64(16*i), 8))
	}
	return sgl
}

func (h *holding) write(regions ...*MR) SendWR {
	return SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: list(regions...),
		Remote: h.b.Remote().At(0)}
}

func (h *holding) expect(t *testing.T, when string, a, b int64) {
	t.Helper()
	if gotA, gotB := h.a.holds.Load(), h.b.holds.Load(); gotA != a || gotB != b {
		t.Errorf("%s: the regions are held %d and %d times, want %d and %d", when, gotA, gotB, a, b)
	}
}

// A list holds a region once for each run of its pieces, and gives as much back.
func TestListHoldsARegionOnceARun(t *testing.T) {
	h := newHolding(t)
	a, b := h.a, h.b
	n, err := h.PostSend(h.write(a, a, a, a, a, a, a, a), h.write(a, a, b, b, a), h.write(b), h.write(b, b))
	if n != 4 || err != nil {
		t.Fatal(n, err)
	}
	h.expect(t, "posted", 3, 3)
	if err := a.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("a region that requests use: %v", err)
	}
	for done := 0; done < 4; {
		done += len(pollNow(t, h.CQ()))
	}
	h.expect(t, "reported", 0, 0)
	for i := range 3 {
		if _, err := h.PostRecv(RecvWR{ID: uint64(i), SGL: list(a, a, b)}); err != nil {
			t.Fatal(err)
		}
	}
	h.expect(t, "receives posted", 3, 3)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	h.expect(t, "closed", 0, 0)
	for _, mr := range []*MR{a, b} {
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A request that names a closed region leaves no hold behind, and the requests before it keep
// theirs at every moment.
func TestRefusedListGivesItsHoldsBack(t *testing.T) {
	h := newHolding(t)
	a, b := h.a, h.b
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	good := h.write(a, a)
	good.Remote = a.Remote().At(0)
	bad := h.write(a, a, b, a)
	bad.Remote = good.Remote
	n, err := h.PostSend(good, good, bad, good)
	if n != 2 || !errors.Is(err, ErrClosed) {
		t.Fatal(n, err)
	}
	h.expect(t, "posted", 2, closedHolds)
	if _, err := h.PostRecv(RecvWR{SGL: list(a, b)}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	h.expect(t, "refused", 2, closedHolds)
	for done := 0; done < 2; {
		done += len(pollNow(t, h.CQ()))
	}
	h.expect(t, "reported", 0, closedHolds)
}

// The holds of a call on one region are taken in two steps, however many requests and pieces name
// it: one that sees that it is open, one for all others. Lists may alternate between two regions.
func TestHoldsOfARunAreTakenInTwoSteps(t *testing.T) {
	h := newHolding(t)
	a, b, c := h.a, h.b, h.c
	held := holder{}
	hold := func(regions ...*MR) {
		t.Helper()
		wr := h.write(regions...)
		_, keys, err := h.send.rails.checkSend(0, &wr)
		if err != nil {
			t.Fatal(err)
		}
		if err := held.holdSend(0, &wr, keys); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		hold(a, a, a)
		h.expect(t, "first region", 1, 0)
	}
	for range 3 {
		hold(b, a)
		h.expect(t, "two regions in turn", 1, 1)
	}
	hold(c, b, c)
	h.expect(t, "third region", 6, 1)
	held.settle()
	h.expect(t, "settled", 6, 4)
	if got := c.holds.Load(); got != 2 {
		t.Errorf("the third region is held %d times, want 2", got)
	}
	out := h.CQ().sink(nil)
	for range 3 {
		out.releasePieces(list(a, a))
		out.releasePieces(list(b, a))
	}
	h.expect(t, "released", 6, 4)
	out.releasePieces(list(c, b, c))
	h.expect(t, "third region released", 0, 4)
	out.settle()
	h.expect(t, "settled", 0, 0)
	if got := c.holds.Load(); got != 0 {
		t.Errorf("the third region is held %d times, want 0", got)
	}
}

// The step that a single piece of another region costs takes nothing away from the region before
// the last one, which lists remember.
func TestHoldsOfListsAndSinglePiecesMix(t *testing.T) {
	h := newHolding(t)
	a, b := h.a, h.b
	single := h.write(b)
	single.Local, single.SGL = single.SGL[0], nil
	wrs := []SendWR{h.write(a, b), h.write(h.c), single, h.write(b, a), single, h.write(a, b, a)}
	if n, err := h.PostSend(wrs...); n != len(wrs) || err != nil {
		t.Fatal(n, err)
	}
	h.expect(t, "posted", 4, 5)
	for done := 0; done < len(wrs); {
		done += len(pollNow(t, h.CQ()))
	}
	h.expect(t, "reported", 0, 0)
	if err := errors.Join(a.Close(), b.Close(), h.c.Close()); err != nil {
		t.Error(err)
	}
}

const (
	huge         = 5<<30 + 3
	hugeFragment = 512 << 10
	hugeLocal    = 1<<32 - 12345 // crosses a multiple of 4 GiB on either side
	hugeRemote   = 0x7fff_0000_0000 - 777
)

// checkTiles checks that the data posted on the rails covers the remote range and the local pieces
// exactly, in order of address, in fragments of the full size.
func checkTiles(t *testing.T, r *recorded, op verbs.Opcode, pieces []Segment) {
	t.Helper()
	type tile struct {
		rail int
		verbs.SendWR
	}
	var tiles []tile
	for i, qp := range r.qps {
		for _, wr := range qp.posts {
			if wr.Bytes() != 0 {
				tiles = append(tiles, tile{i, wr})
			}
		}
	}
	slices.SortFunc(tiles, func(a, b tile) int { return int(int64(a.RemoteAddr) - int64(b.RemoteAddr)) })
	if len(tiles) != huge/hugeFragment+1 {
		t.Fatalf("%d fragments, want %d", len(tiles), huge/hugeFragment+1)
	}
	perRail := make([]int, len(r.qps))
	remote, piece, off := uint64(hugeRemote), 0, uint64(0)
	for i, f := range tiles {
		dev := uint32(r.qps[f.rail].Device().ID())
		perRail[f.rail]++
		if f.RemoteAddr != remote || f.Opcode != op || f.RKey != 200+dev || f.Flags != verbs.SendSignaled {
			t.Fatalf("fragment %d on device %d: %+v, want %v at %#x", i, dev, f.SendWR, op, remote)
		}
		if want := min(hugeFragment, hugeRemote+huge-remote); f.Bytes() != want {
			t.Fatalf("fragment %d has %d bytes, want %d", i, f.Bytes(), want)
		}
		remote += f.Bytes()
		for _, e := range f.SGL {
			if e.Addr != pieces[piece].Addr+off || e.LKey != 100+dev {
				t.Fatalf("fragment %d on device %d: element %+v, want %#x", i, dev, e, pieces[piece].Addr+off)
			}
			if off += uint64(e.Length); off == pieces[piece].Length {
				piece, off = piece+1, 0
			}
		}
	}
	if remote != hugeRemote+huge || piece != len(pieces) {
		t.Fatalf("%d bytes and %d pieces are missing", hugeRemote+huge-remote, len(pieces)-piece)
	}
	for i, n := range perRail {
		if n < len(tiles)/len(perRail)-1000 {
			t.Errorf("rail %d carried %d of %d fragments", i, n, len(tiles))
		}
	}
}

// A request of more than 4 GiB: lengths and addresses are 64 bits wide wherever they must be.
func TestMessageBeyond4GiB(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead} {
		for _, scheme := range []Scheme{DQPLB, Spray} {
			for _, scattered := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v/%v/scattered=%v", op, scheme, scattered), func(t *testing.T) {
					r := newRecorded(t, 2, 2, Config{Scheme: scheme, FragmentSize: hugeFragment})
					local := hugeKeys(100)
					wr := SendWR{ID: 42, Opcode: op, Flags: verbs.SendSignaled, Imm: 0xabcd,
						Remote: RemoteSegment{Addr: hugeRemote, Length: huge, Keys: hugeKeys(200)}}
					pieces := []Segment{{Addr: hugeLocal, Length: huge, Keys: local}}
					if scattered {
						pieces = []Segment{{Addr: 1 << 40, Length: 4<<30 + 1, Keys: local},
							{Addr: 1 << 41, Length: 1<<30 + 2, Keys: local}}
						wr.SGL = pieces
					} else {
						wr.Local = pieces[0]
					}
					if n, err := r.PostSend(wr); n != 1 || err != nil {
						t.Fatal(n, err)
					}
					wcs := r.finish(t)
					if len(wcs) != 1 ||
						wcs[0] != (WC{ID: 42, Opcode: op.WCOpcode(), QPNum: r.Num(), ByteLen: huge}) {
						t.Fatalf("%+v", wcs)
					}
					numbered := op == verbs.OpRDMAWriteWithImm && scheme == DQPLB
					physical := op
					if op == verbs.OpRDMAWriteWithImm && !numbered {
						physical = verbs.OpRDMAWrite
					}
					checkTiles(t, r, physical, pieces)
					if op == verbs.OpRDMAWriteWithImm && scheme == Spray {
						if p := r.notify.posts; len(p) != 1 || p[0].Imm != 0xabcd || p[0].Bytes() != 0 ||
							p[0].Opcode != op {
							t.Errorf("notifications: %+v", p)
						}
					} else if len(r.notify.posts) != 0 {
						t.Errorf("notifications of a request that has none: %+v", r.notify.posts)
					}
					for _, rail := range r.Stats().Rails {
						if rail.Refused != 0 || rail.Outstanding != 0 {
							t.Errorf("a queue was overrun, or slots are lost: %+v", rail)
						}
					}
				})
			}
		}
	}
}

// The receiver counts the bytes of a message of more than 4 GiB.
func TestNotificationOfMessageBeyond4GiB(t *testing.T) {
	a := newRecorded(t, 2, 2, Config{FragmentSize: hugeFragment})
	b := newRecorded(t, 2, 2, Config{FragmentSize: hugeFragment})
	if _, err := b.PostRecv(RecvWR{ID: 7}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.PostSend(SendWR{
		ID: 42, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: 0xabcd,
		Local:  Segment{Addr: hugeLocal, Length: huge, Keys: hugeKeys(100)},
		Remote: RemoteSegment{Addr: hugeRemote, Length: huge, Keys: hugeKeys(200)},
	}); err != nil {
		t.Fatal(err)
	}
	a.finish(t)
	var got []WC
	for moved := true; moved; {
		moved = false
		for i, qp := range a.qps {
			// One rail runs ahead of the others as far as its credits reach.
			for len(qp.posts) != 0 && b.qps[i].CompleteRecv(qp.posts[0].Imm, uint32(qp.posts[0].Bytes()),
				verbs.WCRecvRDMAWithImm) {
				qp.posts, moved = qp.posts[1:], true
			}
		}
		got = append(got, pollNow(t, b.CQ())...)
	}
	want := WC{ID: 7, Opcode: verbs.WCRecvRDMAWithImm, QPNum: b.Num(), ByteLen: huge, Imm: 0xabcd,
		Flags: verbs.WCWithImm}
	if len(got) != 1 || got[0] != want {
		t.Fatalf("%+v, want %+v; %v", got, want, b.Err())
	}
}
