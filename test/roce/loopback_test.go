package roce

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// BenchmarkLoopback moves bytes between this process and one that it starts, through the loopback
// interface: by RDMA writes over verbs/roce, by TCP and unix sockets of package net, and by UCX's
// puts and tagged messages over TCP where ucx_perftest is installed.
//
// "1MiB" has up to four messages under way; MB/s is of 10^6 bytes, cpu-ms/GiB what both processes
// took of their processors. "8B" goes there and back: ns/op is the whole way, one-way-µs half of
// it. Machines differ from hour to hour: run it some ten times in turn, and compare within a run:
//
//	for i in $(seq 10); do go test ./test/roce -run XXX -bench Loopback -benchtime 0.3s; done
//
// UCX begins anew for each number of messages that the benchmark tries: give it one, as in
// -bench Loopback/1MiB/ucx -benchtime 3000x.
func BenchmarkLoopback(b *testing.B) {
	for _, test := range []struct {
		name string
		size int
	}{{"1MiB", 1 << 20}, {"8B", short}} {
		for _, way := range []struct {
			name    string
			measure func(b *testing.B, size int) figures
		}{
			{"roce", over(dialRoCE)},
			{"tcp", over(dialTCP)},
			{"unix", over(dialUnix)},
			{"ucx-put", measureUCXPut},
			{"ucx-tag", measureUCXTag},
		} {
			b.Run(test.name+"/"+way.name, func(b *testing.B) {
				way.measure(b, test.size).report(b, test.size)
			})
		}
	}
}

const (
	short = 8 // bytes of a message that comes back
	depth = 4 // how many of the others are under way
)

// figures are what b.N messages took.
type figures struct {
	elapsed time.Duration
	cpu     time.Duration // of both processes
}

func (f figures) report(b *testing.B, size int) {
	ns := float64(f.elapsed.Nanoseconds()) / float64(b.N)
	b.ReportMetric(ns, "ns/op")
	if size == short {
		b.ReportMetric(ns/2000, "one-way-µs")
		return
	}
	b.ReportMetric(float64(size)/ns*1000, "MB/s")
	b.ReportMetric(float64(f.cpu.Microseconds())/1000/(float64(b.N)*float64(size)/(1<<30)), "cpu-ms/GiB")
}

// way is a way for messages of one size to the other process.
type way interface {
	run(messages int)
	usage() time.Duration // of the processors, by both processes so far
}

// over measures a way.
func over(dial func(b *testing.B, size int) way) func(*testing.B, int) figures {
	return func(b *testing.B, size int) figures {
		w := dial(b, size)
		w.run(100) // warm
		before := w.usage()
		b.ResetTimer()
		w.run(b.N)
		b.StopTimer()
		return figures{b.Elapsed(), w.usage() - before}
	}
}

// peerEnv tells a process of this test's binary that it is the other end: the way, and the size.
const peerEnv = "IBVERBX_LOOPBACK_PEER"

// TestMain runs the other end where this process is to be that.
func TestMain(m *testing.M) {
	name, size, _ := strings.Cut(os.Getenv(peerEnv), " ")
	n, _ := strconv.Atoi(size)
	talk := &conversation{json.NewEncoder(os.Stdout), json.NewDecoder(os.Stdin)}
	switch name {
	case "":
		os.Exit(m.Run())
	case "roce":
		serveRoCE(talk, n)
	case "writer":
		writeUntilTold(talk, n)
	default:
		serveSocket(talk, name, n)
	}
}

// conversation is what the two processes say to each other beside the traffic.
type conversation struct {
	out *json.Encoder
	in  *json.Decoder
}

func (c *conversation) say(what any) { must(c.out.Encode(what)) }

func (c *conversation) hear(what any) { must(c.in.Decode(what)) }

// tellUsage answers each question with what this process took of the processors, until the other
// end has gone.
func (c *conversation) tellUsage() {
	for {
		var question string
		if c.in.Decode(&question) != nil {
			return
		}
		c.say(selfUsage())
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// selfUsage is the processor time of this process.
func selfUsage() time.Duration {
	var u syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// peer is the process at the other end.
type peer struct{ *conversation }

// startPeer starts the other end, which ends with the benchmark or test.
func startPeer(b testing.TB, name string, size int) peer {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", peerEnv, name, size))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(err)
	out, err := cmd.StdoutPipe()
	must(err)
	must(cmd.Start())
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return peer{&conversation{json.NewEncoder(in), json.NewDecoder(out)}}
}

func (p peer) usage() (both time.Duration) {
	p.say("usage?")
	p.hear(&both)
	return both + selfUsage()
}

// socket is the way through a connection of package net. Long messages are answered by one byte.
type socket struct {
	peer
	conn  net.Conn
	out   []byte
	reply []byte
}

func dialTCP(b *testing.B, size int) way  { return dialSocket(b, "tcp", size) }
func dialUnix(b *testing.B, size int) way { return dialSocket(b, "unix", size) }

func dialSocket(b *testing.B, network string, size int) way {
	p := startPeer(b, network, size)
	var addr string
	p.hear(&addr)
	conn, err := net.Dial(network, addr)
	must(err)
	b.Cleanup(func() { _ = conn.Close() })
	return &socket{peer: p, conn: conn, out: make([]byte, size), reply: make([]byte, replySize(size))}
}

func replySize(size int) int {
	if size != short {
		return 1
	}
	return size
}

func (s *socket) run(messages int) {
	ahead := 1
	if len(s.out) != short {
		ahead = depth
	}
	for sent, answered := 0, 0; answered < messages; answered++ {
		for ; sent < messages && sent-answered < ahead; sent++ {
			_, err := s.conn.Write(s.out)
			must(err)
		}
		_, err := io.ReadFull(s.conn, s.reply)
		must(err)
	}
}

// serveSocket answers the messages of one connection.
func serveSocket(talk *conversation, network string, size int) {
	address := "127.0.0.1:0"
	if network == "unix" {
		dir, err := os.MkdirTemp("", "loopback")
		must(err)
		defer func() { _ = os.RemoveAll(dir) }()
		address = dir + "/socket"
	}
	l, err := net.Listen(network, address)
	must(err)
	talk.say(l.Addr().String())
	conn, err := l.Accept()
	must(err)
	go func() {
		buf, reply := make([]byte, size), make([]byte, replySize(size))
		for {
			if _, err := io.ReadFull(conn, buf); err != nil {
				return
			}
			if _, err := conn.Write(reply); err != nil {
				return
			}
		}
	}()
	talk.tellUsage()
}

// UCX's own benchmark, where it is installed, over TCP: its puts, which are what our writes are,
// and its tagged messages, for which the receiver posts receives. Each end needs a processor: UCX
// polls and gives none away.
func measureUCXPut(b *testing.B, size int) figures {
	return measureUCX(b, size, "ucp_put_bw", "ucp_put_lat")
}

func measureUCXTag(b *testing.B, size int) figures { return measureUCX(b, size, "tag_bw", "tag_lat") }

// measureUCX runs one of two tests, for long and for short messages.
func measureUCX(b *testing.B, size int, long, brief string) figures {
	const tool = "ucx_perftest"
	if _, err := exec.LookPath(tool); err != nil {
		b.Skip(err)
	}
	start := func(args ...string) (*exec.Cmd, *strings.Builder) {
		cmd, out := exec.Command(tool, args...), &strings.Builder{}
		// A put travels in segments of 8 KiB unless it may have larger ones, and is slower then.
		cmd.Env = append(os.Environ(), "UCX_TLS=tcp", "UCX_NET_DEVICES=lo",
			"UCX_TCP_TX_SEG_SIZE=1m", "UCX_TCP_RX_SEG_SIZE=1m")
		cmd.Stdout, cmd.Stderr = out, out
		must(cmd.Start())
		return cmd, out
	}
	const (
		port   = "18515"
		warmUp = 1000 // messages
	)
	server, _ := start("-p", port)
	time.Sleep(100 * time.Millisecond) // it does not say when it listens
	test, messages := long, b.N
	if size == short {
		test, messages = brief, 2*b.N
	}
	client, out := start("127.0.0.1", "-p", port, "-t", test, "-s", strconv.Itoa(size), "-f",
		"-n", strconv.Itoa(messages), "-w", strconv.Itoa(warmUp), "-O", strconv.Itoa(depth))
	err := client.Wait()
	_ = server.Process.Kill() // it is the client's to end, if all is well
	_ = server.Wait()
	perMessage, parseErr := overall(out.String())
	if err != nil || parseErr != nil {
		b.Fatalf("%v, %v:\n%s", err, parseErr, out)
	}
	f := figures{elapsed: time.Duration(perMessage * float64(messages) * 1000)}
	for _, cmd := range []*exec.Cmd{client, server} {
		f.cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	f.cpu = f.cpu * time.Duration(messages) / time.Duration(messages+warmUp) // without what warmed up
	return f
}

// overall is the average time of a message in ucx_perftest's table: the fourth number of its last
// line, microseconds.
func overall(table string) (float64, error) {
	lines := strings.Split(strings.TrimSpace(table), "\n")
	fields := strings.Fields(lines[len(lines)-1])
	if len(fields) < 4 {
		return 0, fmt.Errorf("no figures in %q", lines[len(lines)-1])
	}
	return strconv.ParseFloat(fields[3], 64)
}
