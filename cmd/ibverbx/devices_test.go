package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
)

// ailing is a device some queries of which fail.
type ailing struct{ verbs.Device }

func (ailing) Query() (verbs.DeviceAttr, error) { return verbs.DeviceAttr{Ports: 2}, nil }

func (d ailing) QueryPort(n int) (verbs.PortAttr, error) {
	if n == 1 {
		return verbs.PortAttr{}, errors.New("port 1 is silent")
	}
	attr, err := d.Device.QueryPort(1)
	attr.GIDTableLen = 4
	return attr, err
}

func (d ailing) QueryGID(_, i int) (verbs.GIDEntry, error) {
	switch i {
	case 1:
		return verbs.GIDEntry{}, nil // a hole
	case 2:
		return verbs.GIDEntry{}, errors.New("GID 2 is silent")
	}
	return d.Device.QueryGID(1, i/2)
}

// TestAilingDevice checks that what can be queried is shown, and what cannot is named.
func TestAilingDevice(t *testing.T) {
	code, out, errs := command(t, "devices --provider ailing")
	if code != exitFailed || !strings.Contains(errs, "port 1 is silent") ||
		!strings.Contains(errs, "GID 2 is silent") || strings.Count(out, "RoCE") != 2 ||
		!strings.Contains(out, "ACTIVE") {
		t.Errorf("exit %d, stderr %q, stdout\n%s", code, errs, out)
	}
}

// TestUnopenedDevice shows that a NIC that cannot be opened is named, and does not hide the others.
func TestUnopenedDevice(t *testing.T) {
	code, out, errs := command(t, "devices --provider partial")
	if code != exitFailed || !strings.Contains(errs, "mlx5_7: permission denied") ||
		!strings.Contains(out, "soft0") {
		t.Errorf("exit %d, stderr %q, stdout\n%s", code, errs, out)
	}
	_, out, _ = command(t, "devices --json --provider partial")
	var doc deviceList
	if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.Devices) != 1 ||
		!strings.Contains(doc.Reason, "mlx5_7") {
		t.Errorf("%v: %+v", err, doc)
	}
	code, out, errs = command(t, "perf --provider partial"+quick)
	if code != exitOK || !strings.Contains(errs, "mlx5_7: permission denied; going on without it") ||
		strings.Count(errs, "\n") != 1 || !strings.Contains(out, "messages verified") {
		t.Errorf("exit %d, stderr %q, stdout\n%s", code, errs, out)
	}
}

// TestNoRealNICs lists the NICs of roce where there are no real ones, and none was asked for.
func TestNoRealNICs(t *testing.T) {
	for _, tt := range []struct {
		why  error
		says bool
	}{
		{rdmacore.ErrNoLibrary, true},
		{rdmacore.ErrNoDevice, true},
		{fmt.Errorf("open devices: the filter leaves none: %w", rdmacore.ErrNoDevice), true},
		{syscall.EACCES, false}, // there is one, which cannot be opened
	} {
		setRealNICs(t, tt.why)
		_, out, errs := command(t, "devices")
		code, filtered, why := command(t, "devices -d mlx5_0")
		if strings.Contains(errs, roceNote) != tt.says || strings.Contains(out, "  lo  ") != tt.says ||
			code != exitFailed || filtered != "" || strings.Contains(why, "take provider roce") != tt.says {
			t.Errorf("%v: stderr %q, stdout %q; with a filter exit %d, %q", tt.why, errs, out, code, why)
		}
		code, out, errs = command(t, "devices -d 127.0.0.3")
		if errs != "" || !strings.Contains(out, "127.0.0.3") || code != exitOK { // which asks for roce
			t.Errorf("%v, and an address: exit %d, stderr %q, stdout %q", tt.why, code, errs, out)
		}
		_, out, _ = command(t, "devices --json")
		var doc deviceList
		if err := json.Unmarshal([]byte(out), &doc); err != nil || (doc.Note == roceNote) != tt.says ||
			(doc.Provider == roceNICs) != tt.says {
			t.Errorf("%v: %v, %+v", tt.why, err, doc)
		}
	}
}

// TestDoctor checks a host without any NIC, which is a failure only if one is needed.
func TestDoctor(t *testing.T) {
	root := "doctor --root " + withoutNICs(t)
	for flags, want := range map[string]int{"": exitOK, " --need-rdma": exitFailed, " --memory 1G": exitOK} {
		code, out, errs := command(t, root+flags)
		if code != want || errs != "" || !strings.HasPrefix(out, "ibverbx uses shared memory") ||
			!strings.Contains(out, "modprobe rdma_rxe") {
			t.Errorf("doctor%s: exit %d, stderr %q, stdout\n%s", flags, code, errs, out)
		}
		code, out, _ = command(t, root+" --json"+flags)
		var doc struct {
			RDMA     bool
			Findings []struct{ Status, Check string }
		}
		if err := json.Unmarshal([]byte(out), &doc); err != nil || code != want || doc.RDMA ||
			len(doc.Findings) == 0 || doc.Findings[0].Check == "" {
			t.Errorf("doctor --json%s: exit %d, %v, %+v", flags, code, err, doc)
		}
	}
	for _, flags := range []string{"--memory lots", "--root /nonexistent"} {
		if code, _, errs := command(t, "doctor "+flags); code != exitUsage || errs == "" {
			t.Errorf("%s: exit %d, stderr %q", flags, code, errs)
		}
	}
}

// withoutNICs makes the root of a host that has no NIC, and no other file either.
func withoutNICs(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "sys"), 0o700); err != nil {
		t.Fatal(err)
	}
	return root
}

// TestDoctorBetweenTwo checks the path between two hosts, which here are one.
func TestDoctorBetweenTwo(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	errs, writer := io.Pipe()
	over := make(chan int, 1)
	go func() {
		over <- run(&console{ctx: ctx, out: io.Discard, err: writer},
			[]string{"doctor", "--listen=127.0.0.1:0", "--provider", "roce"})
	}()
	var address, nics string
	if _, err := fmt.Fscanf(errs, "listening on %s with %s", &address, &nics); err != nil {
		t.Fatal(err)
	}
	read := make(chan error)
	go func() {
		_, err := io.Copy(io.Discard, errs)
		read <- err
	}()
	here := "doctor --provider roce --root " + withoutNICs(t) + " "
	code, out, _ := command(t, here+address)
	if code != exitOK || !strings.Contains(out, "1 MiB written each way and verified") ||
		!strings.Contains(out, "; the path is checked with provider roce.") {
		t.Errorf("exit %d, stdout\n%s", code, out)
	}
	code, out, _ = command(t, "doctor --provider soft "+address)
	if code != exitFailed || !strings.Contains(out, "do: give both ends the same --provider") ||
		strings.Contains(out, "do: check that") {
		t.Errorf("another provider: exit %d, stdout\n%s", code, out)
	}
	stop()
	if code := <-over; code != exitOK {
		t.Errorf("the listening end: exit %d", code)
	}
	if err := errors.Join(writer.Close(), <-read); err != nil {
		t.Error(err)
	}
	code, out, _ = command(t, here+"127.0.0.1:1")
	if code != exitFailed || !strings.Contains(out, "refused") ||
		!strings.Contains(out, "do: start \"ibverbx doctor --listen\" there") ||
		strings.Contains(out, "Config.") {
		t.Errorf("nobody listens: exit %d, stdout\n%s", code, out)
	}
	for _, name := range []string{"doctor", "selftest"} {
		if code, out, errs := command(t, name+" 127.0.0.1:1 --listen=127.0.0.1:0"); code != exitUsage ||
			out != "" || !strings.Contains(errs, "HOST and --listen") {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", name, code, out, errs)
		}
	}
}

// TestServeAndCopy copies a directory to a host and back, with the document of --json.
func TestServeAndCopy(t *testing.T) {
	here, there, token := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "token")
	text := []byte("0123456789abcdef, which both ends know")
	err := errors.Join(os.WriteFile(token, text, 0o600), os.WriteFile(here+"/a", text, 0o640))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	errs, writer := io.Pipe()
	over := make(chan int, 1)
	go func() {
		over <- run(&console{ctx: ctx, out: io.Discard, err: writer},
			[]string{"serve", there, "--listen=127.0.0.1:0", "--token-file", token})
	}()
	var dir, port string
	if _, err := fmt.Fscanf(errs, "ibverbx: serving %s on 127.0.0.1:%s", &dir, &port); err != nil {
		t.Fatal(err)
	}
	read := make(chan error)
	go func() {
		_, err := io.Copy(io.Discard, errs)
		read <- err
	}()
	cp := "cp --json --token-file " + token + " -p " + port + " "
	for _, names := range []string{here + "/. 127.0.0.1:b", "127.0.0.1:b/a " + here + "/c"} {
		code, out, said := command(t, cp+names)
		var doc struct {
			OK      bool
			Files   int
			Carrier struct{ Kind string }
		}
		err := json.Unmarshal([]byte(out), &doc)
		if code != exitOK || err != nil || !doc.OK || doc.Files != 1 || doc.Carrier.Kind != "rdma" {
			t.Errorf("cp %s: exit %d, stderr %q, %v, stdout\n%s", names, code, said, err, out)
		}
	}
	if got, err := os.ReadFile(here + "/c"); err != nil || !bytes.Equal(got, text) {
		t.Errorf("it came back as %q, %v", got, err)
	}
	for names, want := range map[string]int{"a b": exitUsage, "127.0.0.1:../x " + here: exitFailed} {
		if code, out, said := command(t, cp+names); code != want || said == "" {
			t.Errorf("cp %s: exit %d, stderr %q, stdout\n%s", names, code, said, out)
		}
	}
	stop()
	if code := <-over; code != exitOK {
		t.Errorf("serve: exit %d", code)
	}
	if err := errors.Join(writer.Close(), <-read); err != nil {
		t.Error(err)
	}
}

// TestTopTargets refuses what can be no process.
func TestTopTargets(t *testing.T) {
	for _, target := range []string{"abc", "17x", "99999999999"} {
		if code, out, errs := command(t, "top -n 1 "+target); code != exitUsage || out != "" ||
			!strings.Contains(errs, "neither the number of a process nor HOST:PORT") {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", target, code, out, errs)
		}
	}
}

func TestDevices(t *testing.T) {
	code, out, errs := command(t, "devices --provider soft --nics 2")
	if code != exitOK || errs != "" || strings.Count(out, "ACTIVE") != 2 ||
		strings.Count(out, "::ffff:10.") != 2 || !strings.Contains(out, "NETDEV") {
		t.Errorf("exit %d, stderr %q, stdout\n%s", code, errs, out)
	}
	lines := strings.SplitAfter(out, "\n") // a heading, and two GIDs of each NIC
	for _, heading := range []string{"INDEX", "TYPE", "GID"} {
		at := strings.Index(lines[0], "  "+heading) + 2
		for _, line := range lines[1:5] {
			if line[at-2:at] != "  " || line[at] == ' ' {
				t.Errorf("nothing stands below %s:\n%s", heading, out)
			}
		}
	}
	code, out, _ = command(t, "devices --provider soft -d soft2,soft1")
	if code != exitOK || strings.Count(out, "ACTIVE") != 2 ||
		strings.Index(out, "soft2") > strings.Index(out, "soft1") {
		t.Errorf("exit %d, stdout\n%s", code, out)
	}
	code, _, errs = command(t, "devices --provider soft -d mlx5_0")
	if code != exitFailed || !strings.Contains(errs, "no device mlx5_0 (have soft0, soft1, soft2, soft3)") {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
	_, out, _ = command(t, "devices --json --provider soft --nics 3")
	var doc deviceList
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err)
	}
	if list := doc.Devices; doc.Provider != "soft" || doc.Reason != "" || len(list) != 3 ||
		list[2].Name != "soft2" || len(list[2].Ports) != 1 || len(list[2].Ports[0].GIDs) != 2 {
		t.Errorf("got %+v", list)
	}
}

// TestNoDevices checks the output where there is no NIC.
func TestNoDevices(t *testing.T) {
	code, out, errs := command(t, "devices --provider none")
	if code != exitFailed || out != "" || !strings.Contains(errs, "no NIC today") {
		t.Errorf("exit %d, stderr %q, stdout %q", code, errs, out)
	}
	code, out, errs = command(t, "devices --json --provider none")
	var doc deviceList
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err)
	}
	if code != exitFailed || errs == "" || doc.Devices == nil || len(doc.Devices) != 0 ||
		doc.Reason != "no NIC today" {
		t.Errorf("exit %d, stderr %q, document %+v", code, errs, doc)
	}
}

// TestTop looks at perf, which can be watched, and at nothing.
func TestTop(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	code, _, errs := command(t, "top -n 1")
	if code != exitFailed || !strings.Contains(errs, "no process of this user can be watched") {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan int, 1)
	go func() {
		over <- run(&console{ctx: ctx, out: io.Discard, err: io.Discard},
			strings.Fields("perf --scheme dqplb --samples 1 --memory 256K -s 4K -D 1h"))
	}()
	seen := regexp.MustCompile(`"process":"ibverbx perf","name":"dqplb a qp .*"device":|dqplb b qp`)
	for deadline := time.Now().Add(time.Minute); ; {
		code, out, errs := command(t, "top --json -i 10ms")
		if code == exitOK && seen.MatchString(out) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("exit %d, stderr %q, stdout\n%s", code, errs, out)
		}
	}
	stop()
	if code := <-over; code != exitInterrupted {
		t.Errorf("exit %d", code)
	}
}

// TestSelftest tries software NICs, and NICs that there are none of.
func TestSelftest(t *testing.T) {
	code, out, errs := command(t, "selftest --provider soft --probe 1ms --no-conformance")
	if code != exitOK || errs != "" || !strings.Contains(out, "A4: a message pushes the data ahead of it") {
		t.Errorf("exit %d, stderr %q, stdout\n%s", code, errs, out)
	}
	code, out, errs = command(t, "selftest --provider none --json")
	if code != exitFailed || out != "" || !strings.Contains(errs, "no NIC today") {
		t.Errorf("exit %d, stderr %q, stdout\n%s", code, errs, out)
	}
}
