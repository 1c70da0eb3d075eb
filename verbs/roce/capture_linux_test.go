package roce

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/tool"
	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/wire"
	"ibverbx/verbs/verbstest"
)

// What two ends say to each other reads as RoCEv2 in a dissector that knows nothing of us,
// Wireshark's: every opcode, sizes around the path MTU, IPv4 and IPv6, bursts and single packets,
// to ends of this package and to foreign ones, without and with loss. The capture is a real one, of
// the loopback interface of a network namespace. tshark finds the ICRC and does not compute it; the
// test does, from the bytes of the frame.
func TestCapture(t *testing.T) {
	if testing.Short() {
		t.Skip("tshark takes a second for each capture")
	}
	if _, err := exec.LookPath("tshark"); err != nil {
		tool.Missing(t, "tshark", "not installed (Debian: apt install tshark)")
		return
	}
	switch inside, done, err := enterNamespace(t); {
	case done:
		return
	case !inside:
		t.Skipf("no network namespace to capture in: %v", err)
	}
	turnOffBursts(t)
	v4, v6 := []string{"127.0.0.1", "127.0.0.2"}, []string{"::1", secondLoopback}
	single := Config{DisableGSO: true}
	conversations := map[string]captured{
		"IPv4/256":     {addrs: v4, mtu: verbs.MTU256},
		"IPv4/1024":    {addrs: v4, mtu: verbs.MTU1024},
		"IPv4/4096":    {addrs: v4, mtu: verbs.MTU4096},
		"single":       {addrs: v4, mtu: verbs.MTU1024, cfg: single},
		"loss":         {addrs: v4, mtu: verbs.MTU1024, cfg: single, loss: 0.05},
		"strict":       {addrs: v4, mtu: verbs.MTU1024, cfg: Config{Strict: true}},
		"strict, loss": {addrs: v6, mtu: verbs.MTU4096, cfg: Config{Strict: true}, loss: 0.05},
		"IPv6/1024":    {addrs: v6, mtu: verbs.MTU1024},
		"IPv6/4096":    {addrs: v6, mtu: verbs.MTU4096},
	}
	// One file for all, since tshark takes half a second to start.
	names := slices.Sorted(maps.Keys(conversations))
	frames := make([][][]byte, len(names))
	for i, name := range names {
		t.Run(name, func(t *testing.T) { frames[i] = conversations[name].record(t) })
	}
	if t.Failed() {
		return
	}
	name := filepath.Join(t.TempDir(), "roce.pcap")
	writeCapture(t, name, slices.Concat(frames...))
	packets := dissect(t, name)
	if all := len(slices.Concat(frames...)); len(packets) != all {
		t.Fatalf("%d packets of %d frames", len(packets), all)
	}
	for i, name := range names {
		t.Run(name+" dissected", func(t *testing.T) {
			conversations[name].check(t, frames[i], packets[:len(frames[i])])
		})
		packets = packets[len(frames[i]):]
	}
}

// captured is a connection that is recorded.
type captured struct {
	addrs []string
	cfg   Config
	mtu   verbs.MTU
	loss  float64
}

// record gives the frames of a conversation of which the capture misses none.
func (c captured) record(t *testing.T) (frames [][]byte) {
	for tries, missed := 1, uint32(1); missed != 0; tries++ {
		if tries == 10 { // a busy machine does that to some of them
			t.Fatalf("each capture misses frames, the last one %d", missed)
		}
		t.Run(fmt.Sprint("conversation ", tries), func(t *testing.T) {
			s := sniff(t)
			c.talk(t, s)
			frames, missed = s.end(t)
		})
		if t.Failed() {
			return nil
		}
	}
	return frames
}

// check compares what tshark reads with the frames.
func (c captured) check(t *testing.T, frames [][]byte, packets []dissected) {
	seen := map[wire.Opcode]int{}
	ids := map[uint16]int{}
	announced := 0
	for i := range packets {
		p := &packets[i]
		if err := p.check(frames[i], c.mtu); err != "" {
			if t.Errorf("packet %d: %s: %+v", i+1, err, p); i > 8 {
				t.FailNow()
			}
		}
		if p.reserved != 0 {
			announced++
		}
		seen[p.opcode]++
		ids[p.id]++
	}
	for op := range wire.Opcode(255) {
		// Ends of this package send each other no CNP: their answers say that a packet was marked.
		if op.Known() && op != wire.Congestion && seen[op] == 0 {
			t.Errorf("no %v", op)
		}
	}
	// Each end announces itself in its first packets, and where it tells of a gap.
	if c.cfg.Strict && announced != 0 || !c.cfg.Strict && announced == 0 {
		t.Errorf("%d packets announce", announced)
	}
	t.Logf("%d packets, %d of them announce; by identification %v", len(packets), announced, ids)
}

// talk lets every operation of every size around the MTU pass between two ends, until every opcode
// has passed.
func (c captured) talk(t *testing.T, s *sniffer) {
	p := openNICs(t, c.cfg, c.addrs...)
	a, b := newNode(t, p.Device(0), 1<<18), newNode(t, p.Device(1), 1<<18)
	must(t, verbstest.Connect(a.qp, b.qp, verbstest.ConnectConfig{Port: 1,
		Adjust: func(_ verbs.QP, attr *verbs.QPAttr) {
			attr.PathMTU, attr.Timeout = c.mtu, 17 // four seconds in all: a busy machine takes its time
		}}))
	overWire(a, b)
	if c.loss != 0 {
		for i, n := range []*node{a, b} {
			lossy(n.dev, c.loss, uint64(i))
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range a.buf {
		a.buf[i] = byte(rng.Uint32())
	}
	mtu := c.mtu.Bytes()
	sizes := []int{0, 1, 2, 3, 4, 5, mtu - 1, mtu, mtu + 1, 2*mtu - 1, 2 * mtu, 2*mtu + 1, 3*mtu + 2,
		17*mtu + 3}
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMAWrite,
		verbs.OpRDMAWriteWithImm, verbs.OpRDMARead, verbs.OpAtomicFetchAdd, verbs.OpAtomicCmpAndSwp} {
		for i, size := range sizes {
			if op.IsAtomic() {
				size = 8
			}
			wr := a.write(b, uint64(i), size)
			wr.Opcode, wr.Imm = op, uint32(i)
			if op.IsSend() || op.HasImm() {
				_, err := b.qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{
					{Addr: b.mr.Addr(), Length: uint32(len(b.buf)), LKey: b.mr.LKey()}}}})
				must(t, err)
			}
			a.post(t, wr)
			a.succeed(t)
			if op.IsSend() || op.HasImm() {
				b.succeed(t)
			}
		}
	}
	// After a loss or a timeout the window is small, and reads are asked for in parts of a packet
	// or two. It grows again.
	for end := time.Now().Add(20 * time.Second); !s.has(wire.ReadResponseMiddle); {
		if time.Now().After(end) {
			t.Fatal("for 20 seconds no read was answered with more than two packets")
		}
		wr := a.write(b, 0, 17*mtu)
		wr.Opcode = verbs.OpRDMARead
		a.post(t, wr)
		a.succeed(t)
	}
}

// dissected is a packet as tshark sees it.
type dissected struct {
	protocols string
	version   int // of IP
	id        uint16
	df        bool
	ttl       int
	opcode    wire.Opcode
	migrated  bool
	pad       int
	tver      int
	reserved  int
	payload   int
	length    int // of UDP
	icrc      uint32
	complaint string
}

// dissect has tshark read a capture.
func dissect(t *testing.T, name string) (packets []dissected) {
	t.Helper()
	fields := []string{"frame.protocols", "ip.version", "ipv6.version", "ip.id", "ip.flags.df", "ip.ttl",
		"ipv6.hlim",
		"infiniband.bth.opcode", "infiniband.bth.m", "infiniband.bth.padcnt", "infiniband.bth.tver",
		"infiniband.bth.reserved7", "data.len", "udp.length", "infiniband.invariant.crc",
		"_ws.malformed", "_ws.expert.message"}
	// What protocol a payload belongs to is not looked for: random bytes are none.
	args := []string{"-n", "-r", name, "-T", "fields", "--disable-protocol", "rpcordma"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	cmd := exec.Command("tshark", args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v\n%s", err, &stderr)
	}
	for line := range strings.Lines(string(out)) {
		v := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(v) != len(fields) {
			t.Fatalf("tshark says %q", line)
		}
		number := func(s string) int {
			if s == "" {
				return 0
			}
			n, err := strconv.ParseInt(s, 0, 64)
			if err != nil {
				t.Fatalf("tshark says %q: %v", line, err)
			}
			return int(n)
		}
		packets = append(packets, dissected{protocols: v[0], version: number(v[1] + v[2]),
			id: uint16(number(v[3])),
			df: v[4] == "1", ttl: number(v[5] + v[6]), opcode: wire.Opcode(number(v[7])),
			migrated: v[8] == "1",
			pad:      number(v[9]), tver: number(v[10]), reserved: number(v[11]), payload: number(v[12]),
			length: number(v[13]), icrc: uint32(number(v[14])), complaint: v[15] + v[16]})
	}
	return packets
}

// check says what is wrong with a packet; nothing, if it is empty.
func (p *dissected) check(frame []byte, mtu verbs.MTU) string {
	datagram := frame[14:]
	switch want := icrcOf(datagram); {
	case p.complaint != "":
		return p.complaint
	case !strings.Contains(p.protocols, ":udp:infiniband"):
		return "not RoCEv2"
	case !p.opcode.Known():
		return "the opcode is unknown"
	case p.version == 4 && !p.df:
		return "it may be fragmented"
	case p.tver != 0 || !p.migrated:
		return "the BTH is none of RoCEv2"
	case p.payload > mtu.Bytes()+3:
		return "longer than the path MTU"
	case p.length != 8+p.opcode.HeaderLen()+p.payload+wire.ICRCSize:
		return "headers, payload and ICRC are not all"
	case p.icrc != want:
		return fmt.Sprintf("the ICRC should be %08x", want)
	}
	return ""
}

// icrcOf computes the ICRC of an IP packet as the specification says it (IBTA annex A17), byte by
// byte, and in the order of tshark.
func icrcOf(packet []byte) uint32 {
	b := append(slices.Repeat([]byte{0xff}, 8), packet...)
	p := b[8:]
	ones := func(at ...int) {
		for _, i := range at {
			p[i] = 0xff
		}
	}
	udp := 20
	if p[0]>>4 == 4 {
		ones(1, 8, 10, 11)
	} else {
		p[0] |= 0x0f
		ones(1, 2, 3, 7)
		udp = 40
	}
	ones(udp+6, udp+7, udp+8+4)
	sum := crc32.ChecksumIEEE(b[:len(b)-wire.ICRCSize])
	return binary.BigEndian.Uint32(binary.LittleEndian.AppendUint32(nil, sum))
}
