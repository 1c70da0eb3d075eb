package ibverbx

import (
	"fmt"
	"slices"
	"testing"

	"ibverbx/verbs"
)

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
