package roce

import (
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/udp"
	"ibverbx/verbs/roce/internal/wire"
	"ibverbx/verbs/verbstest"
)

// NICs that send alike divide a quarter of the buffer, and do so for a period after the last one in
// which they did. One that sends little beside a busy one does not count.
func TestDivision(t *testing.T) {
	d, now := &Device{crowd: crowd{own: 1 << 20}}, crowdPeriod
	var a, b, c share
	for i, step := range []struct {
		after int64
		from  *share
		bytes int
		want  int
	}{
		{0, &a, 100_000, 1 << 20},
		{0, &b, 1000, 1 << 20},
		{0, &b, 49_000, 1 << 18},
		{0, &c, 100_000, 1 << 17},
		{crowdPeriod, &a, 1000, 1 << 17},
		{0, &a, 99_000, 1 << 17},
		{crowdPeriod, &a, 1000, 1 << 20},
		{0, &b, 1000, 1 << 18},
		{2 * crowdPeriod, &a, 1, 1 << 20},
	} {
		now += step.after
		d.arrived(step.from, now, step.bytes)
		if got := wire.Credits(d.crowd.grant.Value()) << 10; got != step.want {
			t.Errorf("step %d: %d bytes for each, want %d", i, got, step.want)
		}
	}
}

// Processes that share a processor send in turns of milliseconds: all of them count.
func TestDivisionAmongTurns(t *testing.T) {
	d := &Device{crowd: crowd{own: 1 << 20}}
	var from [5]share
	for i := range 20 {
		d.arrived(&from[i%5], int64(i+1)*int64(2*time.Millisecond), 100_000)
	}
	if want := wire.AckCredits(1 << 20 / 10 >> 10); d.crowd.grant != want {
		t.Errorf("%d KiB for each, want %d", wire.Credits(d.crowd.grant.Value()), wire.Credits(want.Value()))
	}
}

// A NIC that disconnects and connects again counts once, and what it did not send not at all.
func TestDivisionCountsOnce(t *testing.T) {
	n := openVirtual(t, Config{})
	from, to := newNode(t, n.nics[0].Device, writeSize), newNode(t, n.nics[1].Device, writeSize)
	for range 4 {
		qp, peer := from.newQP(t), to.newQP(t)
		must(t, verbstest.Connect(qp, peer, verbstest.ConnectConfig{Port: 1}))
		_, err := qp.PostSend([]verbs.SendWR{from.write(to, 0, writeSize)})
		must(t, err)
		must(t, n.await(t, from).Status.Err())
		c := &to.dev.crowd
		if c.total < writeSize || c.senders() != 1 {
			t.Errorf("%d bytes have arrived, from %d NICs", c.total, c.senders())
		}
		counted := c.total
		source := qp.path.to.Source()
		forged := seal(source, to.dev.local, wire.Header{Opcode: wire.WriteMiddle, DestQP: peer.Num(),
			PSN: qp.core.Attr.SQPSN + 1<<20}, make([]byte, 512))
		n.push(happening{at: n.now, what: arrives, nic: n.nics[1],
			packet: udp.Datagram{Data: forged, From: source, Bundle: 1}})
		for peer.engine.Stats().Ahead == 0 {
			n.step()
		}
		if c.total != counted {
			t.Errorf("%d bytes of a forged packet count", c.total-counted)
		}
		must(t, qp.Close())
		must(t, peer.Close())
	}
}
