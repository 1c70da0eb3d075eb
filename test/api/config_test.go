package api_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
	"ibverbx/verbs/verbstest"
)

// Queue pairs are counted over all devices.
func TestRailsOverAllDevices(t *testing.T) {
	cfg := ibverbx.Config{QPsPerDevice: ibverbx.MaxRails / 2}
	if err := errors.Join(cfg.Validate(1), cfg.Validate(2)); err != nil {
		t.Error(err)
	}
	if err := cfg.Validate(3); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), "QPsPerDevice 64 on each of 3 devices") {
		t.Error(err)
	}
}

// MaxMsgCntPerQP None is the NIC's depth, or what fits of that into the virtual CQ.
func TestNoLimitOfMessages(t *testing.T) {
	const depth = 1000
	for _, c := range []struct {
		name string
		cqe  int    // that a CQ of the NIC holds at most
		cq   int    // depth of the virtual CQ; 0 for one of its own
		want [2]int // with one and with two data queue pairs
	}{
		{"all of it", 1 << 20, 0, [2]int{depth, depth}},
		{"a CQ that the NIC does not make deeper", 4096, 0, [2]int{depth, depth / 2}},
		{"a virtual CQ that is not deeper", 1 << 20, 2500, [2]int{depth, depth / 4}},
	} {
		for i, want := range c.want {
			qps := i + 1
			t.Run(fmt.Sprintf("%s, %d", c.name, qps), func(t *testing.T) {
				fabric := vqptest.NewFabric(t, soft.Config{
					Device: soft.DeviceConfig{MaxQPWR: depth, MaxCQE: c.cqe}})
				dom, err := ibverbx.NewDomain(fabric.Device(0))
				if err != nil {
					t.Fatal(err)
				}
				var cq *ibverbx.VirtualCQ
				if c.cq != 0 {
					if cq, err = dom.NewCQ(c.cq); err != nil {
						t.Fatal(err)
					}
				}
				q, err := dom.NewQP(cq, ibverbx.Config{MaxMsgCntPerQP: -1, QPsPerDevice: qps})
				if err != nil {
					t.Fatal(err)
				}
				if got := q.Config().MaxMsgCntPerQP; got != want {
					t.Errorf("%d messages a queue pair, want %d", got, want)
				}
				if got := q.Stats().Rails[0].Limit; got != want {
					t.Errorf("a limit of %d, want %d", got, want)
				}
				if got := q.Config().Credits; got != min(2*want, depth) {
					t.Errorf("%d credits, want twice as many as messages, and no more than %d", got, depth)
				}
				if err := q.Close(); err != nil {
					t.Error(err)
				}
				if cq != nil {
					if err := cq.Close(); err != nil {
						t.Error(err)
					}
				}
				if err := errors.Join(dom.Close()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// The queues of a queue pair have room for failover's own messages, within what the NIC has.
func TestFailoverFitsTheNIC(t *testing.T) {
	for _, c := range []struct{ depth, given, want int }{
		{8, 0, 6}, {8, -1, 6}, {8, 7, 6}, {8, 6, 6}, {8, 5, 5},
		{127, 0, 125}, {128, 0, 126}, {129, 0, 127}, {130, 0, 128}, {1000, 0, 128},
		{128, -1, 126}, {1000, -1, 998}, {1000, 1000, 998}, {1000, 998, 998}, {1000, 500, 500},
		{1 << 14, -1, 1<<14 - 2}, {1 << 15, -1, 1 << 14},
	} {
		for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
			t.Run(fmt.Sprintf("%v/%d of %d", scheme, c.given, c.depth), func(t *testing.T) {
				l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2,
					Fabric: soft.Config{Device: soft.DeviceConfig{MaxQPWR: c.depth, MaxCQE: 1 << 20}},
					QP:     ibverbx.Config{Scheme: scheme, Failover: true, MaxMsgCntPerQP: c.given}})
				for _, r := range l.A.Stats().Rails {
					credited := scheme == ibverbx.DQPLB && !r.Notify && !r.Spare
					if r.Limit > c.want || !credited && r.Limit != c.want {
						t.Errorf("%+v: want a limit of %d", r, c.want)
					}
				}
				sendBothWays(t, l)
				notifyBothWays(t, l)
			})
		}
	}
}

// What the configuration leaves out has the documented default, and a given value is kept.
func TestDefaultsOfTheConfiguration(t *testing.T) {
	fabric := vqptest.NewFabric(t, soft.Config{})
	dom, err := ibverbx.NewDomain(fabric.Device(0))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ given, want ibverbx.Config }{
		{ibverbx.Config{}, ibverbx.Config{FragmentSize: 512 << 10, MaxMsgCntPerQP: 128, Credits: 256,
			MaxBanked: 4096, Linger: time.Second, QPsPerDevice: 4}},
		{ibverbx.Config{MaxMsgCntPerQP: 10}, ibverbx.Config{FragmentSize: 512 << 10, MaxMsgCntPerQP: 10,
			Credits: 20, MaxBanked: 4096, Linger: time.Second, QPsPerDevice: 4}},
		{ibverbx.Config{FragmentSize: 1, MaxMsgCntPerQP: 2, Credits: 3, MaxBanked: 4, Linger: 5,
			QPsPerDevice: 6},
			ibverbx.Config{FragmentSize: 1, MaxMsgCntPerQP: 2, Credits: 3, MaxBanked: 4, Linger: 5,
				QPsPerDevice: 6}},
		{ibverbx.Config{MaxSGE: 3}, ibverbx.Config{FragmentSize: 512 << 10, MaxMsgCntPerQP: 128, Credits: 256,
			MaxBanked: 4096, Linger: time.Second, QPsPerDevice: 4, MaxSGE: 3, MaxRecvSGE: 3}},
		{ibverbx.Config{MaxSGE: 3, MaxRecvSGE: 5}, ibverbx.Config{FragmentSize: 512 << 10,
			MaxMsgCntPerQP: 128, Credits: 256, MaxBanked: 4096, Linger: time.Second, QPsPerDevice: 4,
			MaxSGE: 3, MaxRecvSGE: 5}},
	} {
		q, err := dom.NewQP(nil, c.given)
		if err != nil {
			t.Fatal(err)
		}
		got := q.Config()
		if got.FragmentSize != c.want.FragmentSize || got.MaxMsgCntPerQP != c.want.MaxMsgCntPerQP ||
			got.Credits != c.want.Credits || got.MaxBanked != c.want.MaxBanked ||
			got.MaxSGE != c.want.MaxSGE || got.MaxRecvSGE != c.want.MaxRecvSGE ||
			got.Linger != c.want.Linger || got.QPsPerDevice != c.want.QPsPerDevice || q.Domain() != dom ||
			q.DataRails() != got.QPsPerDevice {
			t.Errorf("got  %+v\nwant %+v", got, c.want)
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(dom.Close()); err != nil {
		t.Error(err)
	}
}

// NICs with limits below the defaults lower them; nothing is refused for that, and data moves.
func TestNICsBelowTheDefaults(t *testing.T) {
	dev := soft.DeviceConfig{MaxQPWR: 16, MaxSGE: 1, MaxInline: 4, MaxMsgSize: 1000, MaxRDAtomic: 2}
	for _, m := range vqptest.Modes {
		t.Run(m.Name, func(t *testing.T) {
			l := m.Link(t, vqptest.LinkConfig{Fabric: soft.Config{Device: dev}})
			cfg := l.A.Config()
			if cfg.MaxMsgCntPerQP != 16 || cfg.Credits != 16 && l.A.DataRails() > 1 ||
				cfg.FragmentSize != 1000 {
				t.Errorf("%d requests and %d credits a queue pair, %d bytes a message", cfg.MaxMsgCntPerQP,
					cfg.Credits, cfg.FragmentSize)
			}
			length := uint64(100_000)
			if l.A.DataRails() == 1 {
				length = 1000
			}
			vqptest.FillRandom(l.A.Buf[:length], 3)
			l.B.ExpectRecv(t, 7)
			l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 1, 0, length))
			vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
			vqptest.IDs(t, l.B.Wait(t, 1), verbs.StatusSuccess)
			vqptest.MustEqual(t, "data", l.B.Buf[:length], l.A.Buf[:length])
			inline := l.A.Write(verbs.OpRDMAWrite, 2, 0, 0)
			inline.Flags, inline.Local = inline.Flags|verbs.SendInline, ibverbx.Segment{}
			inline.Inline, inline.Remote = make([]byte, 5), l.A.Peer.Slice(0, 5)
			if _, err := l.A.PostSend(inline); !errors.Is(err, ibverbx.ErrLength) {
				t.Errorf("5 bytes inline: %v", err)
			}
			inline.Inline = []byte("four")
			l.A.Send(t, inline)
			vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
			vqptest.MustEqual(t, "inline data", l.B.Buf[:4], []byte("four"))
		})
	}
}

// What receives are posted on has room for as many of them as there may be messages: in Spray the
// first queue pair, which takes SENDs, and the notify QP; a single one in either scheme. The others
// hold what the scheme keeps posted.
func TestRoomForReceives(t *testing.T) {
	const messages, credits = 24, 40
	for _, c := range []struct {
		scheme ibverbx.Scheme
		want   []int // the notify QP last
	}{
		{ibverbx.DQPLB, []int{messages}},
		{ibverbx.Spray, []int{messages}},
		{ibverbx.DQPLB, []int{credits, credits, credits, messages}},
		{ibverbx.Spray, []int{messages, 1, 1, messages}},
	} {
		fabric := vqptest.NewFabric(t, soft.Config{})
		q, err := ibverbx.Open([]verbs.Device{fabric.Device(0)}, ibverbx.Config{Scheme: c.scheme,
			QPsPerDevice: max(1, len(c.want)-1), MaxMsgCntPerQP: messages, Credits: credits})
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, qp := range q.QPs() {
			got = append(got, qp.Cap().MaxRecvWR)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: room for %v receives, want %v", c.scheme, got, c.want)
		}
		if err := errors.Join(q.Close()); err != nil {
			t.Error(err)
		}
	}
}

// Each field of the configuration is taken at its bounds and refused beyond, in these words: they
// say the value and what may stand there.
func TestWordsOfARefusedConfiguration(t *testing.T) {
	conn := func(c ibverbx.ConnConfig) ibverbx.Config { return ibverbx.Config{Conn: c} }
	type config = ibverbx.Config
	fabric := ibverbx.ConnConfig{Patience: ibverbx.PatienceFabric}
	devs := []verbs.Device{verbstest.NewNull(1).Device(0)}
	for _, c := range []struct {
		cfg  config
		says string // "" where it is taken
	}{
		{config{}, ""},
		{config{Scheme: ibverbx.Spray}, ""},
		{config{Scheme: 2}, "Scheme 2: have DQPLB (0) and Spray (1)"},
		{config{FragmentSize: 1 << 31}, ""},
		{config{FragmentSize: 1<<31 + 1},
			"FragmentSize 2147483649: a message carries at most 2147483648 bytes"},
		{config{MaxMsgCntPerQP: 1 << 20}, ""},
		{config{MaxMsgCntPerQP: 1<<20 + 1}, "MaxMsgCntPerQP 1048577: must be 1 to 1048576, 0 for 128, " +
			"or -1 for as many as the queue pair holds"},
		{config{MaxMsgCntPerQP: -2},
			"MaxMsgCntPerQP -2: must be 1 to 1048576, 0 for 128, or -1 for as many " +
				"as the queue pair holds"},
		{config{MaxMsgCntPerQP: math.MaxInt}, "MaxMsgCntPerQP 9223372036854775807: must be 1 to 1048576, 0 " +
			"for 128, or -1 for as many as the queue pair holds"}, // and not the credits that follow from it
		{config{Credits: 1 << 20}, ""},
		{config{Credits: 1<<20 + 1}, "Credits 1048577: must be 1 to 1048576, or 0 for twice MaxMsgCntPerQP"},
		{config{Credits: -1}, "Credits -1: must be 1 to 1048576, or 0 for twice MaxMsgCntPerQP"},
		{config{MaxBanked: 1 << 27}, ""},
		{config{MaxBanked: 1<<27 + 1}, "MaxBanked 134217729: must be 1 to 134217728, or 0 for 4096"},
		{config{MaxBanked: -1}, "MaxBanked -1: must be 1 to 134217728, or 0 for 4096"},
		{config{Testing: ibverbx.Testing{FirstNumber: 1<<24 - 2}}, ""},
		{config{Testing: ibverbx.Testing{FirstNumber: 1<<24 - 1}},
			"Testing.FirstNumber 16777215: must be below 2^24-1"},
		{config{MaxSGE: 4096}, ""},
		{config{MaxSGE: 4097}, "MaxSGE 4097: must be 1 to 4096, or 0 for 4"},
		{config{MaxSGE: -1}, "MaxSGE -1: must be 1 to 4096, or 0 for 4"},
		{config{MaxRecvSGE: 4096}, ""},
		{config{MaxRecvSGE: 4097}, "MaxRecvSGE 4097: must be 1 to 4096, or 0 for MaxSGE"},
		{config{MaxRecvSGE: -1}, "MaxRecvSGE -1: must be 1 to 4096, or 0 for MaxSGE"},
		{config{MaxInline: 1 << 20}, ""},
		{config{MaxInline: 1<<20 + 1}, "MaxInline 1048577: must be 1 to 1048576 bytes, or 0 for 64"},
		{config{MaxInline: -1}, "MaxInline -1: must be 1 to 1048576 bytes, or 0 for 64"},
		{config{QPsPerDevice: 128}, ""},
		{config{QPsPerDevice: 129}, "QPsPerDevice 129: must be 1 to 128, or 0 for 4"},
		{config{QPsPerDevice: math.MaxInt}, "QPsPerDevice 9223372036854775807: must be 1 to 128, or 0 for 4"},
		{config{QPsPerDevice: -1}, "QPsPerDevice -1: must be 1 to 128, or 0 for 4"},
		{conn(ibverbx.ConnConfig{GIDIndex: -1}), ""},
		{conn(ibverbx.ConnConfig{GIDIndex: 255}), ""},
		{conn(ibverbx.ConnConfig{GIDIndex: 256}),
			"Conn.GIDIndex 256: must be 1 to 255, 0 (automatic), or -1 for entry 0"},
		{conn(ibverbx.ConnConfig{GIDIndex: -2}),
			"Conn.GIDIndex -2: must be 1 to 255, 0 (automatic), or -1 for entry 0"},
		{conn(ibverbx.ConnConfig{MTU: 5}), ""},
		{conn(ibverbx.ConnConfig{MTU: 6}), "Conn.MTU 6: is a code, 1 (256 bytes) to 5 (4096 bytes)"},
		{conn(fabric), ""},
		{conn(ibverbx.ConnConfig{Patience: ibverbx.PatienceFabric + 1}),
			"Conn.Patience 3: have PatienceAuto (0), PatienceShort (1) and PatienceFabric (2)"},
		{conn(ibverbx.ConnConfig{Timeout: 31}), ""},
		{config{FailoverTimeout: time.Second}, ""},
		{config{Failover: true, FailoverTimeout: time.Second},
			"FailoverTimeout 1s: a NIC takes 3.758096384s to give up its peer (Conn.Timeout 17, " +
				"RetryCount 6): must not be less"},
		{config{Failover: true, FailoverTimeout: 30 * time.Second, Conn: fabric},
			"FailoverTimeout 30s: a NIC takes 30.064771072s to give up its peer (Conn.Timeout 20, " +
				"RetryCount 6): must not be less"},
		{config{Failover: true, FailoverTimeout: 31 * time.Second, Conn: fabric}, ""},
		{config{Failover: true}, ""},
		{config{Failover: true, Conn: ibverbx.ConnConfig{Access: verbs.AccessLocalWrite}},
			"Conn.Access LOCAL_WRITE: Failover needs remote write for its own messages"},
		{config{FailoverTimeout: time.Hour, Conn: ibverbx.ConnConfig{Timeout: 31}}, ""},
		{conn(ibverbx.ConnConfig{Timeout: 32}),
			"Conn.Timeout 32: must be 1 to 31, 0 for that of Patience, or -1 for no timeout"},
		{conn(ibverbx.ConnConfig{RetryCount: 7}), ""},
		{conn(ibverbx.ConnConfig{RetryCount: 8}),
			"Conn.RetryCount 8: must be 1 to 7, 0 for that of Patience, or -1 for none"},
		{conn(ibverbx.ConnConfig{RNRRetry: 7}), ""},
		{conn(ibverbx.ConnConfig{RNRRetry: 8}),
			"Conn.RNRRetry 8: must be 1 to 7, 0 for 7, or -1 for none"},
		{conn(ibverbx.ConnConfig{MinRNRTimer: 31}), ""},
		{conn(ibverbx.ConnConfig{MinRNRTimer: 32}),
			"Conn.MinRNRTimer 32: must be 1 to 31, 0 for 12, or -1 for code 0"},
		{conn(ibverbx.ConnConfig{Timeout: ibverbx.None, RetryCount: ibverbx.None, RNRRetry: ibverbx.None,
			MinRNRTimer: ibverbx.None, GIDIndex: ibverbx.None}), ""},
		{conn(ibverbx.ConnConfig{Timeout: -2}),
			"Conn.Timeout -2: must be 1 to 31, 0 for that of Patience, or -1 for no timeout"},
		{conn(ibverbx.ConnConfig{RetryCount: -2}),
			"Conn.RetryCount -2: must be 1 to 7, 0 for that of Patience, or -1 for none"},
		{conn(ibverbx.ConnConfig{RNRRetry: -2}),
			"Conn.RNRRetry -2: must be 1 to 7, 0 for 7, or -1 for none"},
		{conn(ibverbx.ConnConfig{MinRNRTimer: -2}),
			"Conn.MinRNRTimer -2: must be 1 to 31, 0 for 12, or -1 for code 0"},
		{conn(ibverbx.ConnConfig{SL: 15}), ""},
		{conn(ibverbx.ConnConfig{SL: 16}), "Conn.SL 16: is a code of 4 bits"},
		{conn(ibverbx.ConnConfig{Access: verbs.AccessRemoteWrite}), "Conn.Access REMOTE_WRITE: unknown or " +
			"not a right of queue pairs, or remote write without local write"},
		{conn(ibverbx.ConnConfig{Access: verbs.AccessLocalWrite | verbs.AccessRelaxedOrdering}),
			"Conn.Access LOCAL_WRITE|RELAXED_ORDERING: unknown or not a right of queue pairs, or remote " +
				"write without local write"},
	} {
		want := "<nil>"
		if c.says != "" {
			want = "ibverbx: config: invalid argument: " + c.says
		}
		err := c.cfg.Validate(1)
		if fmt.Sprint(err) != want || c.says != "" && !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%v, want %s", err, want)
		}
		if c.says == "" {
			continue
		}
		if _, err := ibverbx.Open(devs, c.cfg); fmt.Sprint(err) != want {
			t.Errorf("Open: %v, want %s", err, want)
		}
	}
}
