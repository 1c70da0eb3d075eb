package verbs

import (
	"encoding/json"
	"errors"
	"go/build"
	"slices"
	"testing"
)

func TestMTU(t *testing.T) {
	for code, want := range []int{0, 256, 512, 1024, 2048, 4096, 0} {
		if got := MTU(code).Bytes(); got != want {
			t.Errorf("code %d: %d bytes, want %d", code, got, want)
		}
	}
}

func TestGIDIsLinkLocal(t *testing.T) {
	for text, want := range map[string]bool{
		"fe80::1": true, "febf::1": true, "::ffff:169.254.1.1": true,
		"fec0::1": false, "2001:db8::1": false, "::ffff:10.0.0.1": false, "::ffff:169.253.1.1": false,
		"::": false,
	} {
		if gid, err := ParseGID(text); err != nil || gid.IsLinkLocal() != want {
			t.Errorf("%s: link-local %t, %v", text, gid.IsLinkLocal(), err)
		}
	}
}

func TestGIDUDPAddr(t *testing.T) {
	for text, want := range map[string]string{
		"fd69:6276:7278:0:9c41:ffff:c000:201": "192.0.2.1:40001",
		"fd69:6276:7278:0:0:ffff:c000:201":    "192.0.2.1:0",
		"fd69:6276:7278:0:9c41:fffe:c000:201": "",
		"fd69:6276:7278:1:9c41:ffff:c000:201": "",
		"::ffff:192.0.2.1":                    "",
		"fe80::1":                             "",
	} {
		gid, err := ParseGID(text)
		if err != nil {
			t.Fatal(err)
		}
		if at, ok := gid.UDPAddr(); ok != (want != "") || ok && at.String() != want {
			t.Errorf("%s contains %v, %v, want %q", text, at, ok, want)
		}
	}
}

func TestGIDText(t *testing.T) {
	for _, c := range []struct {
		gid  GID
		text string
	}{
		{GID{}, "::"},
		{GID{0: 0xfe, 1: 0x80, 15: 1}, "fe80::1"},
		{GID{10: 0xff, 11: 0xff, 12: 10, 15: 1}, "::ffff:10.0.0.1"},
		{GID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, "1:203:405:607:809:a0b:c0d:e0f"},
	} {
		if got := c.gid.String(); got != c.text {
			t.Errorf("%q, want %q", got, c.text)
		}
		if got, err := ParseGID(c.text); err != nil || got != c.gid {
			t.Errorf("%q: %v, %v", c.text, got, err)
		}
		data, err := json.Marshal(map[string]GID{"gid": c.gid})
		if err != nil || string(data) != `{"gid":"`+c.text+`"}` {
			t.Errorf("JSON %s, %v", data, err)
		}
		var back map[string]GID
		if err := json.Unmarshal(data, &back); err != nil || back["gid"] != c.gid {
			t.Errorf("JSON %s: %v, %v", data, back, err)
		}
		if c.gid.IsZero() != (c.text == "::") {
			t.Errorf("%v: zero %t", c.gid, c.gid.IsZero())
		}
	}
	if got, err := ParseGID("0000:0000:0000:0000:0000:ffff:0a00:0001"); err != nil ||
		got.String() != "::ffff:10.0.0.1" {
		t.Errorf("the kernel's spelling: %v, %v", got, err)
	}
	for _, bad := range []string{"", "x", "fe80::1%eth0", "1:2:3", "::1/64"} {
		gid := GID{15: 1}
		if err := gid.UnmarshalText([]byte(bad)); !errors.Is(err, ErrInvalid) || gid != (GID{15: 1}) {
			t.Errorf("%q: %v, %v", bad, gid, err)
		}
	}
}

func TestQPCapDefaults(t *testing.T) {
	if got, want := (QPCap{}).WithDefaults(), (QPCap{128, 128, 4, 4, 64}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if c := (QPCap{1, 2, 3, 4, 5}); c.WithDefaults() != c {
		t.Errorf("%+v, want %+v", c.WithDefaults(), c)
	}
}

// On a platform of 32 bits the package has a file whose only purpose is a compile error that says
// so; on one of 64 bits it has not.
func TestPlatformsOf32BitsAreRefused(t *testing.T) {
	for arch, refused := range map[string]bool{"386": true, "arm": true, "mips": true, "mipsle": true,
		"amd64": false, "arm64": false, "ppc64le": false, "riscv64": false, "s390x": false,
		"loong64": false} {
		platform := build.Default
		platform.GOOS, platform.GOARCH, platform.CgoEnabled = "linux", arch, false
		pkg, err := platform.ImportDir(".", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(pkg.GoFiles, "bits32.go"); got != refused {
			t.Errorf("linux/%s: refused %v, want %v", arch, got, refused)
		}
	}
}
