package soft

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// What each alteration does to a write or send, with 0xab in its payload and an immediate of 5.
func TestRewrite(t *testing.T) {
	for _, c := range []struct {
		name   string
		opcode verbs.Opcode
		change func(*verbs.SendWR)
		status verbs.Status // of the request
		recv   string       // the receive's opcode and immediate, "" for none
		at     int          // where in the peer's buffer the payload lands, -1 for nowhere
	}{
		{"nil", verbs.OpRDMAWriteWithImm, nil, verbs.StatusSuccess, "RECV_RDMA_WITH_IMM 5", 0},
		{"immediate", verbs.OpRDMAWriteWithImm, func(wr *verbs.SendWR) { wr.Imm += 2 }, verbs.StatusSuccess,
			"RECV_RDMA_WITH_IMM 7", 0},
		{"address", verbs.OpRDMAWriteWithImm, func(wr *verbs.SendWR) { wr.RemoteAddr += 64 },
			verbs.StatusSuccess, "RECV_RDMA_WITH_IMM 5", 64},
		{"beyond", verbs.OpRDMAWrite, func(wr *verbs.SendWR) { wr.RemoteAddr += 1 << 20 },
			verbs.StatusRemAccessErr, "", -1},
		{"key", verbs.OpRDMAWrite, func(wr *verbs.SendWR) { wr.RKey ^= 1 }, verbs.StatusRemAccessErr, "", -1},
		{"a notification more", verbs.OpRDMAWrite,
			func(wr *verbs.SendWR) { wr.Opcode, wr.Imm = verbs.OpRDMAWriteWithImm, 9 },
			verbs.StatusSuccess, "RECV_RDMA_WITH_IMM 9", 0},
		{"a notification less", verbs.OpRDMAWriteWithImm,
			func(wr *verbs.SendWR) { wr.Opcode = verbs.OpRDMAWrite }, verbs.StatusSuccess, "", 0},
		{"an immediate more", verbs.OpSend, func(wr *verbs.SendWR) { wr.Opcode = verbs.OpSendWithImm },
			verbs.StatusSuccess, "RECV 5", 128},
		{"an immediate less", verbs.OpSendWithImm, func(wr *verbs.SendWR) { wr.Opcode = verbs.OpSend },
			verbs.StatusSuccess, "RECV 0", 128},
		{"another operation", verbs.OpSend, func(wr *verbs.SendWR) { wr.Opcode = verbs.OpRDMAWrite },
			verbs.StatusSuccess, "RECV 0", 128},
		{"what does not count", verbs.OpRDMAWriteWithImm, func(wr *verbs.SendWR) {
			wr.ID, wr.Flags, wr.SGL[0].LKey, wr.SGL[0].Length = 99, 0, 0, 1
			wr.SGL, wr.Inline, wr.Swap = nil, []byte{1}, 3
		}, verbs.StatusSuccess, "RECV_RDMA_WITH_IMM 5", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBothModes(t, func(t *testing.T, cfg Config) {
				f, a, b := pair(t, cfg, endConfig{})
				i := f.Inject(Fault{Kind: Rewrite, Rewrite: c.change})
				b.recv(verbs.RecvWR{ID: 1, SGL: b.sge(128, 64)})
				a.buf[0], a.buf[1] = 0xab, 0xab
				wr := a.write(b, 2, 0, 2)
				wr.Opcode, wr.Imm = c.opcode, 5
				a.post(wr)
				wcs, err := drain(t, a.cq, 1)
				if err != nil || wcs[0].ID != 2 || wcs[0].Status != c.status || i.Hits() != 1 {
					t.Fatalf("%+v %v, %d hits", wcs, err, i.Hits())
				}
				if c.status == verbs.StatusSuccess && wcs[0].Opcode != c.opcode.WCOpcode() {
					t.Error(wcs[0].Opcode)
				}
				for off := 0; off <= 128; off += 64 {
					if got := b.buf[off] == 0xab && b.buf[off+1] == 0xab; got != (off == c.at) {
						t.Errorf("at %d: % x", off, b.buf[off:off+2])
					}
				}
				switch {
				case c.recv != "":
					wcs, err := drain(t, b.rcq, 1)
					if got := fmt.Sprintf("%v %d", wcs[0].Opcode, wcs[0].Imm); err != nil || got != c.recv {
						t.Errorf("%s %v, want %s", got, err, c.recv)
					}
				case c.status == verbs.StatusSuccess:
					nothing(t, b.rcq)
				}
			})
		})
	}
}

// An inline payload is copied before it is altered, and a request that has to wait is altered once.
func TestRewriteOnce(t *testing.T) {
	inBothModes(t, func(t *testing.T, cfg Config) {
		f, a, b := pair(t, cfg, endConfig{}, func(c *connection) { c.RNRRetry = 6 })
		f.Inject(Fault{Kind: Rewrite, Count: -1, Rewrite: func(wr *verbs.SendWR) {
			wr.Imm++
			wr.Inline[0] = 'x'
		}})
		a.post(verbs.SendWR{ID: 1, Opcode: verbs.OpSendWithImm, Flags: verbs.SendInline | verbs.SendSignaled,
			Inline: []byte("inline"), Imm: 1})
		if cfg.Stepped {
			for range 3 {
				do(t, f, "execute")
				do(t, f, "timer")
			}
		}
		b.recv(verbs.RecvWR{ID: 2, SGL: b.sge(0, 64)})
		a.mustDrain("1 SUCCESS")
		if wcs, err := drain(t, b.rcq, 1); err != nil || wcs[0].Imm != 2 || string(b.buf[:6]) != "inline" {
			t.Errorf("%+v %v %q", wcs, err, b.buf[:6])
		}
	})
}

// Which of ten requests are struck.
func TestFaultSkipAndCount(t *testing.T) {
	for _, c := range []struct {
		fault Fault
		want  string
	}{
		{Fault{Device: &Device{core: nic.Device{Name: "soft9"}}}, ".........."},
		{Fault{}, "x........."},
		{Fault{Skip: 3}, "...x......"},
		{Fault{Skip: 3, Count: 2}, "...xx....."},
		{Fault{Skip: 8, Count: 9}, "........xx"},
		{Fault{Skip: 8, Count: -1}, "........xx"},
		{Fault{Count: -1}, "xxxxxxxxxx"},
		{Fault{Skip: 1, Count: 2, Match: func(wr *verbs.SendWR) bool { return wr.ID%3 == 0 }}, "...x..x..."},
		{Fault{QPNum: 18}, ".........."},
	} {
		t.Run(c.fault.String(), func(t *testing.T) {
			inBothModes(t, func(t *testing.T, cfg Config) {
				f, a, b := pair(t, cfg, endConfig{})
				c.fault.Kind = Rewrite
				c.fault.Rewrite = func(wr *verbs.SendWR) { wr.Imm = 'x' }
				i := f.Inject(c.fault)
				for id := range uint64(10) {
					b.recv(verbs.RecvWR{ID: id})
					wr := a.write(b, id, 0, 8)
					wr.Opcode, wr.Imm = verbs.OpRDMAWriteWithImm, '.'
					a.post(wr)
				}
				var got []byte
				for range 10 {
					wcs, err := drain(t, b.rcq, 1)
					must(t, err)
					got = append(got, byte(wcs[0].Imm))
				}
				if string(got) != c.want || i.Hits() != strings.Count(c.want, "x") {
					t.Errorf("%s, %d hits, want %s", got, i.Hits(), c.want)
				}
				i.Remove()
			})
		})
	}
}

// The text of a fault says what it does, where and when.
func TestFaultString(t *testing.T) {
	f := newFabric(t, Config{})
	match := func(*verbs.SendWR) bool { return true }
	for _, c := range []struct {
		fault Fault
		want  string
	}{
		{Fault{}, "fail send (RETRY_EXC_ERR) on any nic, the 1st request"},
		{Fault{Device: f.Device(1), QPNum: 17, Skip: 2, Status: verbs.StatusRemAccessErr},
			"fail send (REM_ACCESS_ERR) on soft1 qp 17, the 3rd request"},
		{Fault{Kind: FailRecv, Device: f.Device(0), Skip: 1, Match: match},
			"fail recv (LOC_PROT_ERR) on soft0, the 2nd matching request"},
		{Fault{Kind: RefuseSend, Count: 3, Skip: 10},
			"refuse send (out of memory) on any nic, requests 11 to 13"},
		{Fault{Kind: RefuseRecv, Count: -1, Err: errors.New("mine"), Match: match},
			"refuse recv (mine) on any nic, every receive"},
		{Fault{Kind: Delay, Delay: time.Millisecond, QPNum: 18, Count: -1, Skip: 20},
			"delay (1ms) on any nic qp 18, every request from the 21st on"},
		{Fault{Kind: KillNIC, Device: f.Device(1), Skip: 11}, "kill nic on soft1, the 12th request"},
		{Fault{Kind: 200, Skip: 110}, "fault 200 on any nic, the 111th request"},
	} {
		if got := c.fault.String(); got != c.want {
			t.Errorf("%s\nwant %s", got, c.want)
		}
	}
}

// Every kind is listed, and each has its own text.
func TestFaultKinds(t *testing.T) {
	want := []FaultKind{FailSend, FailAfterData, FailRecv, RefuseSend, RefuseRecv, StallQP, Delay,
		FailQP, CutLink, KillNIC, OverrunCQ, Rewrite, ArriveLate, PlaceLate}
	if got := FaultKinds(); !slices.Equal(got, want) {
		t.Error(got)
	}
	seen := map[string]bool{}
	for _, k := range FaultKinds() {
		for _, s := range []string{k.String(), k.Description()} {
			if s == "" || seen[s] || strings.Contains(s, "\n") || len(s) > 80 {
				t.Errorf("%d: %q", k, s)
			}
			seen[s] = true
		}
	}
	for _, none := range []FaultKind{FaultKind(len(want)), 200} {
		if none.String() != fmt.Sprintf("fault %d", int(none)) || none.Description() == "" {
			t.Error(none, none.Description())
		}
	}
	// A kind that does not exist strikes nothing.
	f, a, b := pair(t, Config{}, endConfig{})
	i := f.Inject(Fault{Kind: 200})
	a.post(a.write(b, 1, 0, 8))
	a.mustDrain("1 SUCCESS")
	if i.Hits() != 0 {
		t.Error(i.Hits())
	}
}

// Requests are counted as one counts: 1st, 2nd, 3rd, 4th, 11th, 21st, 111th.
func TestOrdinals(t *testing.T) {
	for n, want := range map[int]string{1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 10: "10th", 11: "11th",
		12: "12th", 13: "13th", 14: "14th", 21: "21st", 22: "22nd", 23: "23rd", 100: "100th", 101: "101st",
		110: "110th", 111: "111th", 112: "112th", 113: "113th", 114: "114th", 121: "121st", 213: "213th",
		1011: "1011th", 1101: "1101st"} {
		if got := ordinal(n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
}
