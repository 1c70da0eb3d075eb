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

// measureUCX has UCX's own benchmark put messages over TCP, where it is installed.
func measureUCX(b *testing.B, size int) figures {
	const tool = "ucx_perftest"
	if _, err := exec.LookPath(tool); err != nil {
		b.Skip(err)
	}
	start := func(args ...string) (*exec.Cmd, *strings.Builder) {
		cmd, out := exec.Command(tool, args...), &strings.Builder{}
		cmd.Env = append(os.Environ(), "UCX_TLS=tcp", "UCX_NET_DEVICES=lo")
		cmd.Stdout, cmd.Stderr = out, out
		must(cmd.Start())
		return cmd, out
	}
	const port = "18515"
	server, _ := start("-p", port)
	time.Sleep(100 * time.Millisecond) // it does not say when it listens
	test, messages := "ucp_put_bw", b.N
	if size == short {
		test, messages = "ucp_put_lat", 2*b.N
	}
	client, out := start("127.0.0.1", "-p", port, "-t", test, "-s", strconv.Itoa(size), "-f",
		"-n", strconv.Itoa(messages), "-w", "100", "-O", strconv.Itoa(depth))
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
