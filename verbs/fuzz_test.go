package verbs

import (
	"errors"
	"net/netip"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// chooses is what a filter that was accepted chooses, said in another way: an entry is a pattern
// for path.Match, and a device stands where the first entry that matches it does. ok is false where
// the choice must be refused.
func chooses(text string, names []string) (chosen []Selection, ok bool) {
	list, exclude := strings.CutPrefix(text, "^")
	matches := func(entry, name string) bool {
		pattern, _, _ := strings.Cut(strings.TrimPrefix(entry, "="), ":")
		// Brackets and backslashes mean nothing in a filter.
		pattern = strings.NewReplacer(`\`, `\\`, `[`, `\[`, `?`, `\?`).Replace(pattern)
		match, err := path.Match(pattern, name)
		return match && err == nil
	}
	if text == "" || exclude {
		for i, name := range names {
			if text == "" || !slices.ContainsFunc(strings.Split(list, ","),
				func(e string) bool { return matches(e, name) }) {
				chosen = append(chosen, Selection{Index: i})
			}
		}
		return chosen, true
	}
	ports := map[int]int{}
	for _, entry := range strings.Split(list, ",") {
		_, text, _ := strings.Cut(entry, ":")
		port, _ := strconv.Atoi(text)
		found := false
		for i, name := range names {
			if !matches(entry, name) {
				continue
			}
			found = true
			if !slices.ContainsFunc(chosen, func(s Selection) bool { return s.Index == i }) {
				chosen = append(chosen, Selection{Index: i})
			}
			if ports[i] != 0 && port != 0 && ports[i] != port {
				return nil, false
			}
			ports[i] = max(ports[i], port)
		}
		if !found {
			return nil, false
		}
	}
	for i := range chosen {
		chosen[i].Port = ports[chosen[i].Index]
	}
	return chosen, true
}

// FuzzDeviceFilter reads filters. What is printed reads as the same, the choice is what the
// reference makes, and every refusal is of limited length.
func FuzzDeviceFilter(f *testing.F) {
	for _, s := range []string{
		"", "mlx5_0", "=mlx5_0:2,mlx5_1*", "^mlx5_2,=mlx5_3", "*", "^*", "*:7,rxe0:7", "^", ",", "a::", "=*",
		"^^a", "a\x00", "ö:1",
		"a:256", "a:01",
		"mlx5_1:1,mlx5_1:2", "mlx5_*,mlx5_0:3", `a\,[a],a?`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		filter, err := ParseDeviceFilter(s)
		if err != nil {
			if !errors.Is(err, ErrInvalid) || len(err.Error()) > 3000 {
				t.Fatalf("%q: %v", s, err)
			}
			if left := (DeviceFilter{}); !reflect.DeepEqual(filter, left) {
				t.Fatalf("%q is refused, and is %v", s, filter)
			}
			return
		}
		again, err := ParseDeviceFilter(filter.String())
		if err != nil || !reflect.DeepEqual(again, filter) {
			t.Fatalf("%q reads back as %q (%v)", s, again, err)
		}
		chosen, err := filter.Select(nics)
		if err != nil && !errors.Is(err, ErrInvalid) {
			t.Fatalf("%q: %v", s, err)
		}
		if want, ok := chooses(s, nics); ok != (err == nil) || ok && !slices.Equal(chosen, want) {
			t.Fatalf("%q chooses %v (%v), want %v", s, chosen, err, want)
		}
	})
}

// FuzzParseGID reads GIDs. One is refused just when it is no address, and what is printed reads as
// the same.
func FuzzParseGID(f *testing.F) {
	for _, s := range []string{
		"fe80::1", "::ffff:10.0.0.1", "0000:0000:0000:0000:0000:ffff:0a00:0001", "10.0.0.1", "::",
		"fe80::1%eth0", "::1/64", "", "1:2:3",
		"::ffff:169.254.0.1", "febf::1", "fec0::1", strings.Repeat(":", 5000),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		gid, err := ParseGID(s)
		addr, addrErr := netip.ParseAddr(s)
		if (err == nil) != (addrErr == nil && addr.Zone() == "") {
			t.Fatalf("%q: %v, %v", s, err, addrErr)
		}
		if err != nil {
			// A GID comes from the peer, and so does what the refusal repeats.
			if !errors.Is(err, ErrInvalid) || !gid.IsZero() || len(err.Error()) > 1000 {
				t.Fatalf("%.100q: %v, %d bytes: %.300v", s, gid, len(err.Error()), err)
			}
			return
		}
		if gid != GID(addr.As16()) {
			t.Fatalf("%q is %v", s, gid)
		}
		if back, err := ParseGID(gid.String()); err != nil || back != gid {
			t.Fatalf("%q became %v became %v, %v", s, gid, back, err)
		}
		local := gid[0] == 0xfe && gid[1]&0xc0 == 0x80 || gid.IsIPv4() && gid[12] == 169 && gid[13] == 254
		if gid.IsIPv4() != addr.Unmap().Is4() || gid.IsLinkLocal() != local {
			t.Fatalf("%v: IPv4 %t, link-local %t", gid, gid.IsIPv4(), gid.IsLinkLocal())
		}
	})
}
