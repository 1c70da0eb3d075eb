package roce

import (
	"flag"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
	"ibverbx/verbs/verbstest"
)

var (
	roundsFlag = flag.Int("rounds", 0, "rounds of TestForeignSpeed; 0 skips it")
	besideFlag = flag.String("beside", "", "two NICs of the kernel, such as rxe0,rxe1, that "+
		"TestForeignSpeed measures "+
		"with each other, beside -foreign with -local")
	burstFlag = flag.Int("burst", 32, "messages of 1 MiB that a round moves")
)

// What NICs in user space and of the kernel do with each other, beside what two of the kernel do:
// bandwidth of one queue pair, messages of 1 MiB, in turns. The least time counts, since others use
// the machine.
func TestForeignSpeed(t *testing.T) {
	if *roundsFlag == 0 || *foreignFlag == "" || *besideFlag == "" {
		t.Skip("-rounds, -foreign, -local and -beside ask for it")
	}
	local := strings.Split(*localFlag, ",")[0]
	ours, foreign := openOurs(t, local), openForeign(t)
	p, err := rdmacore.Open(rdmacore.Config{Devices: *besideFlag})
	check(t, err)
	t.Cleanup(func() { check(t, p.Close()) })
	beside, err := p.Devices()
	check(t, err)
	env := verbstest.Env{Timeout: *waitFlag, GIDIndexOf: gidIndexOf}
	columns := []*column{
		newColumn(t, env, "kernel to kernel", beside[0], beside[1]),
		newColumn(t, env, "ours to kernel", ours, foreign),
		newColumn(t, env, "kernel to ours", foreign, ours),
	}
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpSend} {
		for range *roundsFlag {
			for _, c := range columns {
				c.took = append(c.took, c.measure(op))
			}
		}
		for _, c := range columns {
			best, kernel := slices.Min(c.took), slices.Min(columns[0].took)
			t.Logf("%v %-16s %7.1f MB/s, %.2f of kernel to kernel", op, c.name,
				float64(*burstFlag<<20)/best.Seconds()/1e6, kernel.Seconds()/best.Seconds())
		}
		for _, c := range columns {
			c.took = c.took[:0]
		}
		t.Logf("%+v", ours.Counters())
	}
}

// column is two connected ends that are measured.
type column struct {
	name string
	*verbstest.Pair
	took []time.Duration
}

const (
	speedSize  = 1 << 20
	speedDepth = 8
)

func newColumn(t *testing.T, env verbstest.Env, name string, a, b verbs.Device) *column {
	return &column{name: name, Pair: verbstest.NewPair(verbstest.NewNode(t, env, a),
		verbstest.NewNode(t, env, b),
		verbstest.PairConfig{BufSize: speedSize, SignalAll: true,
			Adjust: func(_ verbs.QP, attr *verbs.QPAttr) { attr.Timeout = patient },
			Cap:    verbs.QPCap{MaxSendWR: speedDepth, MaxRecvWR: 2 * speedDepth}})}
}

// measure moves a burst of messages and returns how long that took.
func (c *column) measure(op verbs.Opcode) time.Duration {
	c.A.T.Helper()
	var wcs [speedDepth]verbs.WC
	poll := func(cq verbs.CQ) int {
		n, err := cq.Poll(wcs[:])
		check(c.A.T, err)
		for i := range wcs[:n] {
			if wcs[i].Status != verbs.StatusSuccess {
				c.A.T.Fatalf("%s: %v of request %d", c.name, wcs[i].Status, wcs[i].ID)
			}
		}
		return n
	}
	begin := time.Now()
	posted, done, given, received := 0, 0, 0, 0
	for done < *burstFlag || op.IsSend() && received < *burstFlag {
		for op.IsSend() && given < *burstFlag && given-received < 2*speedDepth {
			c.B.PostRecv(verbs.RecvWR{SGL: c.B.Buf.SGL(0, speedSize)})
			given++
		}
		for posted < *burstFlag && posted-done < speedDepth {
			c.A.PostSend(verbs.SendWR{Opcode: op, SGL: c.A.Buf.SGL(0, speedSize), RemoteAddr: c.B.Buf.Addr(),
				RKey: c.B.Buf.RKey()})
			posted++
		}
		n := poll(c.A.SendCQ)
		done += n
		m := poll(c.B.RecvCQ)
		if received += m; n+m == 0 {
			runtime.Gosched()
		}
		if time.Since(begin) > *waitFlag {
			c.A.T.Fatalf("%s: %v: %d of %d messages in %v", c.name, op, done, *burstFlag, *waitFlag)
		}
	}
	return time.Since(begin)
}
