package roce

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

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
