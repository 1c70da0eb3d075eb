package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"ibverbx/cmd/ibverbx/internal/bench"
)

var (
	devicesFlag = flag.String("devices", "", "four real NICs, `names` such as rxe0,rxe1,rxe2,rxe3, of "+
		"which wires join the first with the second, and the third with the fourth")
	gidFlag  = flag.String("gid-index", "1", "entry of their GID tables")
	linkFlag = flag.String("link", "", "`command` that sets a link, for a device and \"up\" or \"down\"")
)

const (
	// flowBytes on a wire say that traffic flows over it.
	flowBytes = 4 << 20
	// flowTimeout is how long that may take, and all that is waited for.
	flowTimeout = 30 * time.Second
	// mostStill is how long no request may end. The retries that are asked for need more than three
	// seconds to find out that a link is down; the NICs report it.
	mostStill = 3 * time.Second

	linkFlags = " --json --provider rdmacore --qp-timeout 18 --retry-count 2"
	transfer  = " --failover --failback 300ms --qps 1 --size 64K --tx-depth 16 --memory 16M " +
		"--samples 1 --duration 300s --interval 10ms"
)

// TestLinksGoDown takes a link of each of two processes down and up again in the middle of a
// transfer between them, in both directions. It goes on: no request fails, every byte is compared,
// and all queue pairs that were lost come back. Reads are left out: where responses are lost
// rdma_rxe of Linux 6.1 reports some as successful without their data (a warning of rxe_completer).
func TestLinksGoDown(t *testing.T) {
	if *devicesFlag == "" || *linkFlag == "" {
		t.Skip("-devices and -link say which NICs have links that may go down")
	}
	nics := strings.Split(*devicesFlag, ",")
	if len(nics) != 4 {
		t.Fatalf("-devices %s: want four", *devicesFlag)
	}
	here, there := []string{nics[0], nics[2]}, []string{nics[1], nics[3]}
	for _, scheme := range []string{"dqplb", "spray"} {
		for _, tt := range []struct {
			op   string
			a, b []string // the end with the lower addresses leads when queue pairs come back
		}{{"write-imm", here, there}, {"write", there, here}} {
			t.Run(scheme+"/"+tt.op, func(t *testing.T) {
				x := startTransfer(t, tt.a, tt.b, " --bidirectional --scheme "+scheme+" --op "+tt.op)
				x.flows(t, tt.a[0])
				x.flows(t, tt.a[1])
				x.flap(t, tt.a[0], tt.a[1]) // of end a, while the other wire carries all
				x.flap(t, tt.b[1], tt.b[0]) // of end b
				x.finish(t)
			})
		}
	}
}

// transferEnds are the processes between which data moves.
type transferEnds struct {
	a, b  *child
	flaps uint64
}

// startTransfer starts a process that listens, with NICs b, and one that connects, with NICs a.
func startTransfer(t *testing.T, a, b []string, options string) *transferEnds {
	t.Helper()
	x := &transferEnds{b: startChild(t, "perf --listen 127.0.0.1:0"+linkFlags+" -x "+*gidFlag+" -d "+
		strings.Join(b, ","))}
	var address []string
	x.until(t, "the listening end listens", func() bool {
		address = regexp.MustCompile(`listening on (\S+)`).FindStringSubmatch(content(t, x.b.errs))
		return address != nil
	})
	x.a = startChild(t, "perf --connect "+address[1]+linkFlags+transfer+options+" -x "+*gidFlag+" -d "+
		strings.Join(a, ","))
	return x
}

// until waits until something is so, while both processes run.
func (x *transferEnds) until(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(flowTimeout); !so(); time.Sleep(5 * time.Millisecond) {
		running := x.b.running() && (x.a == nil || x.a.running())
		if running && time.Now().Before(end) {
			continue
		}
		said := "listening end: " + content(t, x.b.errs)
		if x.a != nil {
			said += "\nconnecting end: " + content(t, x.a.errs) + content(t, x.a.out)
		}
		t.Fatalf("not so after %v, both running: %v: %s\n%s", flowTimeout, running, what, said)
	}
}

// flows waits until traffic flows over the wire of a NIC, and returns the longest time for which it
// did not.
func (x *transferEnds) flows(t *testing.T, nic string) (still time.Duration) {
	t.Helper()
	first := carried(t, nic)
	last, moved := first, time.Now()
	x.until(t, "traffic over "+nic, func() bool {
		n, now := carried(t, nic), time.Now()
		still = max(still, now.Sub(moved))
		if n-last >= 64<<10 { // and no single packets
			last, moved = n, now
		}
		return n-first >= flowBytes
	})
	return still
}

// flap takes the link of a NIC down until traffic flows over another wire without it, and up until
// it flows there again and all queue pairs are back.
func (x *transferEnds) flap(t *testing.T, nic, other string) {
	t.Helper()
	setLink(t, nic, "down")
	t.Cleanup(func() { setLink(t, nic, "up") })
	x.flaps++
	cut := time.Now()
	still := x.flows(t, other)
	lasted := time.Since(cut)
	setLink(t, nic, "up")
	up := time.Now()
	x.flows(t, nic)
	x.until(t, "all queue pairs work again", func() bool { return x.working(t) })
	t.Logf("%s: without its link for %v, nothing moved over the other wire for %v at most; all were back "+
		"%v after it was", nic, inMS(lasted), inMS(still), inMS(time.Since(up)))
	if still > mostStill {
		t.Errorf("nothing moved for %v; at most %v", still, mostStill)
	}
}

// working reports whether the kernel has all queue pairs of both processes in RTS.
func (x *transferEnds) working(t *testing.T) bool {
	t.Helper()
	out, err := exec.Command("rdma", "resource", "show", "qp").CombinedOutput()
	if err != nil {
		t.Fatalf("rdma resource show qp: %v: %s", err, out)
	}
	name := filepath.Base(os.Args[0])
	name = " comm " + name[:min(len(name), 15)] + " " // as long as the kernel keeps
	found := 0
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, name) {
			continue
		}
		if found++; !strings.Contains(line, " state RTS ") {
			return false
		}
	}
	return found > 0
}

// finish ends the transfer as a user does, and reads what both processes write.
func (x *transferEnds) finish(t *testing.T) {
	t.Helper()
	a := x.a.interrupt(t)
	x.a = nil
	x.until(t, "the listening end waits for the next", func() bool {
		said := content(t, x.b.errs)
		return strings.Contains(said, "end was interrupted") && strings.HasSuffix(said, "still listening")
	})
	x.b.interrupt(t)
	if len(a.Results) != 1 {
		t.Fatalf("%d results of the connecting end: %s", len(a.Results), a.Error)
	}
	r := &a.Results[0]
	if r.Failed {
		t.Errorf("failed: %s", r.Error)
	}
	if r.Messages == 0 || r.Verified < r.Messages {
		t.Errorf("%d messages, %d verified", r.Messages, r.Verified)
	}
	for name, s := range map[string]*bench.QPStats{"a": &r.Stats.A, "b": &r.Stats.B} {
		t.Logf("end %s lost %d queue pairs, %d came back, and %d work requests were posted again", name,
			s.RailsLost, s.RailsBack, s.Reposted)
		if s.RailsLost < x.flaps || s.RailsBack != s.RailsLost {
			t.Errorf("end %s lost %d queue pairs, %d came back", name, s.RailsLost, s.RailsBack)
		}
		for i := range s.Rails {
			if s.Rails[i].Down {
				t.Errorf("end %s: rail %d (%s) is out of service", name, i, s.Rails[i].Device)
			}
		}
	}
	if r.Timeline == nil {
		t.Fatal("no time line")
	}
	lost, any := standstills(r.Timeline)
	t.Logf("%d messages verified; no request of end a ended for %v at most when links went down, and %v in "+
		"all; %s", r.Verified, lost, any, marked(r.Timeline))
	if lost > mostStill {
		t.Errorf("no request ended for %v when a link went down; at most %v", lost, mostStill)
	}
}

// standstills are the longest time of a time line in which no request ended while queue pairs were
// lost, and the longest of all.
func standstills(line *bench.Timeline) (lost, longest time.Duration) {
	still, during := time.Duration(0), false
	for i, gb := range line.Total {
		if gb > 0 {
			still, during = 0, false
			continue
		}
		still += line.Took(i)
		during = during || slices.ContainsFunc(line.Marks, func(m bench.Mark) bool {
			at := min(int(m.At/line.Interval), len(line.Total)-1)
			return m.Kind == bench.RailsLost && at >= i-1 && at <= i+1
		})
		longest = max(longest, still)
		if during {
			lost = max(lost, still)
		}
	}
	return lost, longest
}

// marked is what happened on a time line.
func marked(line *bench.Timeline) string {
	var said []string
	for _, m := range line.Marks {
		said = append(said, fmt.Sprintf("%v: %s %s", inMS(time.Duration(m.At)), m.Text, m.Kind))
	}
	return strings.Join(said, ", ")
}

// child is this command in a process of its own.
type child struct {
	cmd       *exec.Cmd
	out, errs string        // files with what it writes
	ended     chan struct{} // closed when it has
}

func startChild(t *testing.T, args string) *child {
	t.Helper()
	dir := t.TempDir()
	p := &child{cmd: exec.Command(os.Args[0], strings.Fields(args)...), ended: make(chan struct{}),
		out: filepath.Join(dir, "out"), errs: filepath.Join(dir, "errs")}
	p.cmd.Env = append(os.Environ(), asCommand+"=1")
	out, err := os.Create(p.out)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }() // the process has its own
	errs, err := os.Create(p.errs)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errs.Close() }()
	p.cmd.Stdout, p.cmd.Stderr = out, errs
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // its state says how it ended
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
	})
	return p
}

func (p *child) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// interrupt ends a process by Ctrl-C, and returns the last document that it has written.
func (p *child) interrupt(t *testing.T) (last bench.Report) {
	t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.ended:
	case <-time.After(flowTimeout):
		t.Fatalf("it does not end after Ctrl-C: %s", content(t, p.errs))
	}
	out := content(t, p.out)
	if code := p.cmd.ProcessState.ExitCode(); code != exitInterrupted {
		t.Fatalf("exit code %d, want %d: %s%s", code, exitInterrupted, content(t, p.errs), out)
	}
	documents := json.NewDecoder(strings.NewReader(out))
	for documents.More() {
		last = bench.Report{}
		if err := documents.Decode(&last); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
	}
	return last
}

// setLink sets the link of a NIC.
func setLink(t *testing.T, nic, to string) {
	t.Helper()
	if out, err := exec.Command(*linkFlag, nic, to).CombinedOutput(); err != nil {
		t.Fatalf("%s %s %s: %v: %s", *linkFlag, nic, to, err, out)
	}
}

// carried is how many bytes the wire of a NIC has carried, in both directions.
func carried(t *testing.T, nic string) (bytes int) {
	t.Helper()
	wire := content(t, "/sys/class/infiniband/"+nic+"/ports/1/gid_attrs/ndevs/"+*gidFlag)
	for _, way := range []string{"tx", "rx"} {
		n, err := strconv.Atoi(content(t, "/sys/class/net/"+wire+"/statistics/"+way+"_bytes"))
		if err != nil {
			t.Fatal(err)
		}
		bytes += n
	}
	return bytes
}

// content is what a file holds, without the end of the line.
func content(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func inMS(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
