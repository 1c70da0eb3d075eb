package udp

import (
	"errors"
	"io/fs"
	"net/netip"
	"testing"

	"ibverbx/verbs"
)

// Bursts are as long as the rules let them be, and no longer.
func TestBurst(t *testing.T) {
	many := func(count, value int, more ...int) (list []int) {
		for range count {
			list = append(list, value)
		}
		return append(list, more...)
	}
	for _, test := range []struct {
		name    string
		lengths []int
		want    int
	}{
		{"none", nil, 0},
		{"one", []int{5}, 1},
		{"of nothing", []int{0, 0}, 1},
		{"equal", []int{5, 5, 5}, 3},
		{"the last shorter", []int{5, 5, 4}, 3},
		{"behind a shorter one", []int{5, 4, 4, 4}, 2},
		{"a longer one", []int{5, 5, 6}, 2},
		{"a longer one at once", []int{5, 6, 6}, 1},
		{"the last of nothing", []int{5, 5, 0}, 2},
		{"first packet of a message", []int{4128, 4112, 4112}, 2},
		{"packets of path MTU 4096", many(20, 4112), 15},
		{"packets of path MTU 1024", many(100, 1040), 62},
		{"a shorter one where another would not fit", many(15, 4112, 900), 16},
		{"a shorter one that does not fit", many(15, 4112, 4000), 15},
		{"at most 64", many(100, 24), 64},
		{"at most 64, with the shorter one", many(64, 24, 10), 64},
		{"all that fits", []int{MaxBurst - 1, 1}, 2},
		{"more than fits", []int{MaxBurst, 1}, 1},
		{"longer than anything", []int{MaxBurst + 1, MaxBurst + 1}, 1},
	} {
		packets := make([]Packet, len(test.lengths))
		for i, length := range test.lengths {
			packets[i].Payload = make([]byte, length)
		}
		if got := Burst(packets); got != test.want {
			t.Errorf("%s: %d, not %d", test.name, got, test.want)
		}
	}
}

// An error says what, between whom, and why; its sentinel and the system's errno can be tested for.
func TestError(t *testing.T) {
	local, remote := netip.MustParseAddrPort("192.0.2.1:4791"), netip.MustParseAddrPort("192.0.2.2:4791")
	for _, test := range []struct {
		err  Error
		want string
	}{
		{Error{Op: "send", Local: local, Remote: remote, Err: ErrTooLarge, Errno: fs.ErrInvalid,
			Detail: "no"},
			"send: 192.0.2.1:4791 to 192.0.2.2:4791: datagram too large for the path (invalid argument): no"},
		{Error{Op: "receive", Local: local, Errno: fs.ErrPermission},
			"receive: 192.0.2.1:4791: permission denied"},
		{Error{Op: "listen", Err: verbs.ErrInvalid, Detail: "no local address"},
			"listen: invalid argument: no local address"},
	} {
		if got := test.err.Error(); got != test.want {
			t.Errorf("%q, not %q", got, test.want)
		}
		for _, beneath := range []error{test.err.Err, test.err.Errno} {
			if beneath != nil && !errors.Is(&test.err, beneath) {
				t.Errorf("%v is not %v", &test.err, beneath)
			}
		}
	}
}
