package main

import (
	"encoding/json"
	"errors"
	"net"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/nics"
	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
	"ibverbx/verbs/roce"
	"ibverbx/verbs/soft"
)

var roceAt = regexp.MustCompile(`roce[0-9]+ at [^ ,\n]+`)

// connectsOverRoCE measures with a listening end over roce, and returns the NICs of both ends.
func connectsOverRoCE(t *testing.T, listen, connect string) []string {
	t.Helper()
	server, address := listening(t, "perf --listen "+listen)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	code, out, errs := command(t, "perf --connect "+strings.ReplaceAll(connect, "PORT", port)+quick)
	codeB, outB, errsB := server.wait(t)
	if code != exitOK || codeB != exitOK || !strings.Contains(out, "messages verified byte for byte") ||
		!strings.Contains(outB, "messages verified byte for byte") {
		t.Fatalf("connecting: exit %d, %s\n%s\nlistening: exit %d, %s\n%s", code, errs, out, codeB, errsB,
			outB)
	}
	nics := roceAt.FindAllString(out, -1)
	if got := roceAt.FindAllString(outB, -1); !slices.Equal(got, nics) {
		t.Errorf("one end names %q, the other %q", nics, got)
	}
	return nics
}

// TestRoCEApart measures between two ends over UDP sockets. Without --device they use the address
// over which they have met, and the second one that comes to it another port.
func TestRoCEApart(t *testing.T) {
	for _, tt := range []struct{ listen, connect string }{
		{"127.0.0.1:0", "127.0.0.1:PORT"},
		{"[::]:0", "localhost:PORT"},
		{"[::1]:0", "[::1]:PORT"}, // over IPv6 the second NIC of an address would find no port
		{"127.0.0.1:0", "127.0.0.1:PORT --op send --mode lat"},
		{"127.0.0.1:0", "127.0.0.1:PORT --layer transport --op put -b"},
	} {
		nics := connectsOverRoCE(t, tt.listen+" --provider roce", tt.connect+" --provider roce")
		if len(nics) != 2 || nics[0] == nics[1] || !strings.HasPrefix(nics[0], "roce0 at 127.0.0.1:") ||
			!strings.HasPrefix(nics[1], "roce0 at 127.0.0.1:") {
			t.Errorf("%s: NICs %q", tt.connect, nics)
		}
	}
}

// TestRoCEAddressesAlone shows that addresses ask for roce, whatever else the host has.
func TestRoCEAddressesAlone(t *testing.T) {
	setRealNICs(t, errors.New("open device: mlx5_0: permission denied"))
	nics := connectsOverRoCE(t, "127.0.0.1:0 -d 127.0.0.34", "127.0.0.1:PORT -d 127.0.0.35")
	if len(nics) != 2 || !strings.Contains(nics[0], "127.0.0.35:") {
		t.Errorf("NICs %q", nics)
	}
	waiting, _ := listening(t, "perf --listen 127.0.0.1:0 --udp-port 47914 -d ::1")
	waiting.cancel()
	if _, _, errs := waiting.wait(t); !strings.Contains(errs, " with roce0 at [::1]:47914\n") {
		t.Errorf("stderr %s", errs)
	}
	code, out, errs := command(t, "devices -d 127.0.0.32,127.0.0.33")
	if code != exitOK || errs != "" || strings.Count(out, "RoCE v2") != 2 {
		t.Errorf("exit %d, stdout\n%s\nstderr %s", code, out, errs)
	}
	for _, of := range []string{"perf --listen 127.0.0.1:0", "perf --connect 127.0.0.1:1", "devices",
		"perftest ib_write_bw"} {
		code, out, errs := command(t, of+" -d ::1,127.0.0.1,::1")
		if code != exitUsage || out != "" || !strings.Contains(errs, "names ::1 twice") {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", of, code, out, errs)
		}
	}
}

// setRealNICs lets the host have no RDMA NIC, or some of which none can be opened.
func setRealNICs(t *testing.T, why error) {
	t.Helper()
	replaceProvider(t, realNICs, func(nics.Config) (verbs.Provider, error) { return nil, why })
}

// replaceProvider puts another source of NICs in the place of one.
func replaceProvider(t *testing.T, name string, open func(nics.Config) (verbs.Provider, error)) {
	t.Helper()
	before := providers
	t.Cleanup(func() { providers = before })
	providers = append([]nics.Source{{Name: name, Open: open}}, before...)
}

// The notes of hosts without a usable RDMA NIC.
const (
	roceNote    = "no RDMA NIC here: using UDP sockets (provider roce)"
	shmNote     = "no RDMA NIC here: sharing memory with processes of this host (provider shm)"
	shmDownNote = "no RDMA NIC here has a port that is up: sharing memory with processes of this host " +
		"(provider shm)"
)

// TestProviderByItself measures between two processes of a host without an RDMA NIC: both say that
// they share memory, or use roce if one of them asks for it.
func TestProviderByItself(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs shared memory, which is of Linux")
	}
	setRealNICs(t, rdmacore.ErrNoDevice)
	for _, tt := range []struct{ connect, provider, note string }{
		{"", shmNICs, shmNote},
		{" --layer tagged --op send --mode lat", shmNICs, shmNote},
		{" --provider roce", roceNICs, roceNote + "; no shared memory: the other end: NICs of " +
			"provider roce were asked for"},
		{" --provider shm", shmNICs, shmNote},
	} {
		server, address := listening(t, "perf --json --listen 127.0.0.1:0")
		code, out, errs := command(t, "perf --connect "+address+quick+tt.connect)
		codeB, outB, errsB := server.wait(t)
		asks := strings.Contains(tt.connect, "--provider")
		if code != exitOK || codeB != exitOK || !strings.Contains(errsB, tt.note) ||
			asks == strings.Contains(errs, tt.note) || !strings.Contains(out, "messages verified") {
			t.Fatalf("exit %d, stderr %s\n%s\nlistening: exit %d, %s\n%s", code, errs, out, codeB, errsB,
				outB)
		}
		var doc bench.Report
		if err := json.Unmarshal([]byte(outB), &doc); err != nil {
			t.Fatal(err)
		}
		if doc.Note != tt.note || doc.Params.Provider != tt.provider || doc.Peer.Provider != tt.provider {
			t.Errorf("note %q, provider %q, peer's %q", doc.Note, doc.Params.Provider, doc.Peer.Provider)
		}
	}
	server, address := listening(t, "perf --provider shm --listen 127.0.0.1:0")
	code, _, errs := command(t, "perf --provider roce --connect "+address+quick)
	const why = "unreachable: no shared memory: the other end: NICs of provider roce were asked for"
	if code != exitFailed || !strings.Contains(errs, why) {
		t.Errorf("with other NICs: exit %d, stderr %s", code, errs)
	}
	for busy := true; busy; busy = strings.Contains(errs, errBusy.Error()) { // until it has noticed
		code, _, errs = command(t, "perf --connect "+address+quick)
	}
	if code != exitOK { // the other end waits for the next one
		t.Fatalf("the next client: exit %d, stderr %s", code, errs)
	}
	if code, _, errs := server.wait(t); code != exitOK {
		t.Errorf("listening: exit %d, %s", code, errs)
	}
}

// TestSharedMemoryBesideNICs measures between two processes of a host with RDMA NICs: both say that
// they share memory, unless the flags ask for NICs.
func TestSharedMemoryBesideNICs(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs shared memory, which is of Linux")
	}
	fabric, err := soft.New(soft.Config{Devices: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer fabric.Close()
	replaceProvider(t, realNICs, func(nics.Config) (verbs.Provider, error) {
		return half{fabric, realNICs, []verbs.Device{fabric.Device(0), fabric.Device(1)}}, nil
	})
	const shares = "all processes are on this host: sharing memory (provider shm)"
	for flags, c := range map[string]struct{ here, there, nics string }{
		"":                     {shares, shares, "shm0"},
		" --nics 2":            {"", "NICs of provider rdmacore were asked for", "soft0"},
		" -x 1 --nics 1":       {"", "NICs of provider rdmacore were asked for", "soft0"},
		" --provider rdmacore": {"", "NICs of provider rdmacore were asked for", "soft0"},
		" -d soft1":            {"", "NICs of provider rdmacore were asked for", "soft1"},
	} {
		server, address := listening(t, "perf --listen 127.0.0.1:0")
		code, out, errs := command(t, "perf --connect "+address+quick+flags)
		codeB, _, errsB := server.wait(t)
		if code != exitOK || codeB != exitOK || !strings.Contains(errs, c.here) ||
			!strings.Contains(errsB, c.there) || !strings.Contains(out, c.nics) {
			t.Errorf("%s: exit %d, stderr %s\n%s\nlistening: exit %d, %s", flags, code, errs, out, codeB,
				errsB)
		}
	}
}

// unplugged is a NIC without a link.
type unplugged struct{ verbs.Device }

func (u unplugged) QueryPort(n int) (verbs.PortAttr, error) {
	attr, err := u.Device.QueryPort(n)
	attr.State = verbs.PortDown
	return attr, err
}

// TestRoCEWithoutALink uses roce where no port of an RDMA NIC is up, and says why. devices lists
// the NICs that are there.
func TestRoCEWithoutALink(t *testing.T) {
	fabric, err := soft.New(soft.Config{Devices: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer fabric.Close()
	replaceProvider(t, realNICs, func(nics.Config) (verbs.Provider, error) {
		return half{fabric, realNICs, []verbs.Device{unplugged{fabric.Device(0)}}}, nil
	})
	server, address := listening(t, "perf --listen 127.0.0.1:0")
	code, out, errs := command(t, "perf --connect "+address+quick)
	codeB, _, errsB := server.wait(t)
	if code != exitOK || codeB != exitOK || !strings.Contains(errs, shmDownNote) ||
		!strings.Contains(errsB, shmDownNote) || !strings.Contains(out, "messages verified") {
		t.Errorf("exit %d, stderr %s\n%s\nlistening: exit %d, %s", code, errs, out, codeB, errsB)
	}
	if code, out, errs := command(t, "devices"); code != exitOK || !strings.Contains(out, "soft0") ||
		!strings.Contains(out, "DOWN") {
		t.Errorf("devices: exit %d, %s\n%s", code, errs, out)
	}
	replaceProvider(t, realNICs, func(nics.Config) (verbs.Provider, error) {
		return half{fabric, realNICs, []verbs.Device{unplugged{fabric.Device(0)}, fabric.Device(1)}}, nil
	})
	server, _ = listening(t, "perf --listen 127.0.0.1:0")
	server.cancel()
	if _, _, errs := server.wait(t); !strings.Contains(errs, "soft0: no port is up") ||
		!strings.Contains(errs, "going on without it") || !strings.Contains(errs, "with soft1\n") {
		t.Errorf("stderr %s", errs)
	}
}

// TestRoCEAndInfiniBand refuses two ends whose NICs do not reach each other. The listening end
// waits for the next one.
func TestRoCEAndInfiniBand(t *testing.T) {
	server, address := listening(t, "perf --listen 127.0.0.1:0 --provider roce")
	code, out, errs := command(t, "perf --provider infiniband --connect "+address+quick)
	if code != exitUsage || out != "" ||
		!strings.Contains(errs, "the NICs of the two ends do not reach each "+
			"other: infiniband (InfiniBand) and roce (RoCEv2") {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
	}
	server.says(t, 1, "still listening")
	server.cancel()
	if _, _, errs := server.wait(t); !strings.Contains(errs, "do not reach each other") {
		t.Errorf("the listening end says %q", errs)
	}
}

// TestRoCEPort measures over a UDP port that was named.
func TestRoCEPort(t *testing.T) {
	nics := connectsOverRoCE(t, "127.0.0.1:0 --provider roce -d 127.0.0.10 --udp-port 14791",
		"127.0.0.1:PORT --provider roce -d 127.0.0.11 --udp-port 14791")
	if want := []string{"roce0 at 127.0.0.11:14791", "roce0 at 127.0.0.10:14791"}; !slices.Equal(nics, want) {
		t.Errorf("NICs %q", nics)
	}
	code, _, errs := command(t, "perf --connect 127.0.0.1:1 --udp-port 14791")
	if code != exitUsage || !strings.Contains(errs, "add --provider roce") {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
}

// TestRoCERate measures queue pairs whose rate is bounded, where it shows that they are.
func TestRoCERate(t *testing.T) {
	t.Parallel() // most of the time it waits
	if testing.Short() {
		t.Skip("takes as long as a measurement does")
	}
	const rate = 0.01 // GB a second
	for try := 1; ; try++ {
		code, out, errs := command(
			t, "perf --provider roce --rate-limit 80Mbit --qps 1 --nics 1 -s 64K -D 1 "+
				"--json")
		var report struct {
			Results []struct {
				GB float64 `json:"gb_per_second"`
			}
		}
		if err := json.Unmarshal([]byte(out), &report); code != 0 || err != nil || len(report.Results) != 1 {
			t.Fatalf("exit %d, %v, %s", code, err, errs)
		}
		got := report.Results[0].GB
		if got <= 1.05*rate && got >= 0.2*rate {
			break
		}
		if try == 3 { // a busy machine is slower, or counts in a second what is due to the one before
			t.Fatalf("%v GB a second, of %v", got, rate)
		}
	}
	for args, want := range map[string]string{
		"--rate-limit 1Gbit":                     "software NICs have --nic-speed",
		"--provider rdmacore --rate_limit 1Gbit": "add --provider roce",
	} {
		code, _, errs := command(t, "perf "+args)
		if code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: exit %d, stderr %q", args, code, errs)
		}
	}
}

// TestRoCEWithoutAnAnswer measures where UDP does not come through, as behind a firewall.
func TestRoCEWithoutAnAnswer(t *testing.T) {
	replaceProvider(t, roceNICs, func(cfg nics.Config) (verbs.Provider, error) {
		p, err := roce.Open(cfg.RoCE)
		if err == nil {
			p.Device(0).SetLink(false)
		}
		return p, err
	})
	server, address := listening(t, "perf --listen 127.0.0.1:0 --provider roce")
	code, _, errs := command(t, "perf --provider roce --retry-count 1 --connect "+address+quick)
	if code != exitFailed || !strings.Contains(errs, "RETRY_EXC_ERR") ||
		!strings.Contains(errs, "check that no firewall drops UDP") {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
	server.says(t, 1, "still listening")
	server.cancel()
	server.wait(t)
}

// TestRoCEBadDevices refuses what is no address or interface of this host.
func TestRoCEBadDevices(t *testing.T) {
	for args, want := range map[string]string{
		"-d nic7":                "is neither an address nor an interface of this host (have ",
		"-d mlx5_0:1":            `"mlx5_0:1" is neither`,
		"-d 127.0.0.1,":          `"" is neither`,
		"-d 127.0.0.1,127.0.0.1": "names 127.0.0.1 twice",
		"--library /x":           "--library is where real NICs are found",
		"--udp-port 65536":       "--udp-port 65536: must be 1 to 65535",
		"--rate-limit 400":       "the slowest has 1 Mbit/s; give a unit, as in 10Gbit",
	} {
		for _, of := range []string{"perf --listen 127.0.0.1:0", "perf --connect 127.0.0.1:1", "perf",
			"devices"} {
			if of == "devices" && (strings.HasPrefix(args, "--udp-port") ||
				strings.HasPrefix(args, "--rate")) {
				continue // which has no such flag
			}
			code, out, errs := command(t, of+" --provider roce "+args)
			if code != exitUsage || out != "" || !strings.Contains(errs, want) {
				t.Errorf("%s %s: exit %d, stdout %q, stderr %q, want %q", of, args, code, out, errs, want)
			}
		}
	}
	code, _, errs := command(t, "perf --listen 127.0.0.1:0 --provider roce -d 192.0.2.77")
	if code != exitFailed || !strings.Contains(errs, "192.0.2.77:4791: not an address of this host") {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
	code, _, errs = command(t, "perf --listen 127.0.0.1:0 --provider roce --gid-index 7")
	if code != exitUsage || !strings.Contains(errs, "has port 1, with GID 0") {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
}

// infiniBand is a NIC of InfiniBand.
type infiniBand struct{ verbs.Device }

func (d infiniBand) QueryPort(n int) (verbs.PortAttr, error) {
	attr, err := d.Device.QueryPort(n)
	attr.LinkLayer = verbs.LinkLayerInfiniBand
	return attr, err
}
