package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
	"ibverbx/verbs/verbstest"
)

func TestBusinessCardWireForm(t *testing.T) {
	gid := verbs.GID{10: 0xff, 11: 0xff, 12: 10, 15: 1}
	for _, c := range []struct {
		card ibverbx.BusinessCard
		want string
	}{
		{ibverbx.BusinessCard{QPNums: []uint32{17, 18}},
			`{"qpNums":["0000000017","0000000018"],"notifyQpNum":"0000000000"}`},
		{ibverbx.BusinessCard{QPNums: []uint32{1<<24 - 1}, NotifyQPNum: 5},
			`{"qpNums":["0016777215"],"notifyQpNum":"0000000005"}`},
		{
			ibverbx.BusinessCard{
				QPNums: []uint32{17}, NotifyQPNum: 18, Scheme: "dqplb", MTU: verbs.MTU1024, Credits: 256,
				RawImm: true,
				Rails:  []ibverbx.RailCard{{Device: 3, GID: gid, PSN: 9}, {LID: 4}},
			},
			`{"qpNums":["0000000017"],"notifyQpNum":"0000000018","scheme":"dqplb","mtu":1024,` +
				`"rails":[{"device":3,"gid":"::ffff:10.0.0.1","psn":9},` +
				`{"device":0,"gid":"::","lid":4,"psn":0}],"credits":256,"rawImm":true}`,
		},
	} {
		data, err := json.Marshal(c.card)
		if err != nil || string(data) != c.want {
			t.Errorf("%s, %v\nwant %s", data, err, c.want)
		}
		var back ibverbx.BusinessCard
		if err := json.Unmarshal([]byte(c.want), &back); err != nil || !reflect.DeepEqual(back, c.card) {
			t.Errorf("%s reads as %+v, %v", c.want, back, err)
		}
	}
}

func TestBusinessCardIgnoresWhatItDoesNotKnow(t *testing.T) {
	for _, s := range []string{
		`{"qpNums":["0000000017","0000000018"],"notifyQpNum":"0000000000"}`,
		`{"qpNums":["17","18"]}`,
		`{"qpNums":["0000000017","0000000018"],"notifyQpNum":"0000000000","ports":[1,2],` +
			`"host":{"name":"x"},"version":null}`,
	} {
		var card ibverbx.BusinessCard
		if err := json.Unmarshal([]byte(s), &card); err != nil {
			t.Errorf("%s: %v", s, err)
		}
		if want := (ibverbx.BusinessCard{QPNums: []uint32{17, 18}}); !reflect.DeepEqual(card, want) {
			t.Errorf("%s reads as %+v", s, card)
		}
	}
}

func TestBusinessCardRefusals(t *testing.T) {
	many := `"0000000001"` + strings.Repeat(`,"0000000001"`, ibverbx.MaxRails)
	rail := `{"device":0,"gid":"::1","psn":0}`
	for _, c := range []struct{ data, says string }{
		{`[]`, "array"},
		{`null`, "0 queue pairs"},
		{`{}`, "0 queue pairs"},
		{`{"qpNums":[]}`, "0 queue pairs"},
		{`{"qpNums":[` + many + `]}`, "129 queue pairs: must be 1 to 128"},
		{`{"qpNums":"0000000017"}`, "string"},
		{`{"qpNums":[17]}`, "number"},
		{`{"qpNums":["0000000000"]}`, "must be 1 to 2^24-1"},
		{`{"qpNums":[""]}`, "decimal"},
		{`{"qpNums":["-1"]}`, "decimal"},
		{`{"qpNums":["+1"]}`, "decimal"},
		{`{"qpNums":["0x11"]}`, "decimal"},
		{`{"qpNums":["1_1"]}`, "decimal"},
		{`{"qpNums":[" 17"]}`, "decimal"},
		{`{"qpNums":["0016777216"]}`, "below 2^24"},
		{`{"qpNums":["99999999999999999999999999999999999999"]}`, `"99999999999999999999"`}, // cut short
		{`{"qpNums":["1"],"notifyQpNum":"0016777216"}`, "below 2^24"},
		{`{"qpNums":["1"],"notifyQpNum":0}`, "number"},
		{`{"qpNums":["1"],"mtu":1500}`, "mtu 1500"},
		{`{"qpNums":["1"],"mtu":-1}`, "mtu -1"},
		{`{"qpNums":["1"],"mtu":8192}`, "mtu 8192"},
		{`{"qpNums":["1"],"mtu":1024.5}`, "1024.5"},
		{`{"qpNums":["1"],"credits":-1}`, "credits -1"},
		{`{"qpNums":["1"],"credits":1e99}`, "1e99"},
		{`{"qpNums":["1"],"rawImm":1}`, "number"},
		{`{"qpNums":["1"],"scheme":7}`, "number"},
		{`{"qpNums":["1","2"],"rails":[` + rail + `]}`, "1 rails described for 2 queue pairs"},
		{`{"qpNums":["1"],"notifyQpNum":"2","rails":[` + rail + `]}`, "1 rails described for 2 queue pairs"},
		{`{"qpNums":["1"],"rails":[` + rail + `,` + rail + `]}`, "2 rails described for 1"},
		{`{"qpNums":["1"],"rails":[{"device":64,"gid":"::1","psn":0}]}`, "device 64"},
		{`{"qpNums":["1"],"rails":[{"device":256,"gid":"::1","psn":0}]}`, "256"},
		{`{"qpNums":["1"],"rails":[{"device":-1,"gid":"::1","psn":0}]}`, "-1"},
		{`{"qpNums":["1"],"rails":[{"gid":"::1","psn":16777216}]}`, "psn 16777216"},
		{`{"qpNums":["1"],"rails":[{"gid":"fe80::1%eth0"}]}`, "no IPv6 address"},
		{`{"qpNums":["1"],"rails":[{"gid":"nowhere"}]}`, "no IPv6 address"},
		{`{"qpNums":["1"],"rails":[{"gid":"::1","lid":65536}]}`, "65536"},
		{`{"qpNums":["7","7"],"rails":[` + rail + `,` + rail + `]}`, "7"},
		{`{"qpNums":["7"],"notifyQpNum":"7","rails":[` + rail + `,` + rail + `]}`, "7"},
		{`{"qpNums":["1"],"x":"` + strings.Repeat("x", 64<<10) + `"}`, "bytes long"},
	} {
		card := ibverbx.BusinessCard{QPNums: []uint32{99}}
		err := json.Unmarshal([]byte(c.data), &card)
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), c.says) ||
			!strings.HasPrefix(err.Error(), "ibverbx: business card") {
			t.Errorf("%.80s: error %v: want one that says %q", c.data, err, c.says)
		}
		if len(card.QPNums) != 1 || card.QPNums[0] != 99 {
			t.Errorf("%.80s: the card was changed to %+v", c.data, card)
		}
	}
	// Two queue pairs of one number are on two devices.
	both := `{"qpNums":["7","7"],"rails":[` + rail + `,{"device":1,"gid":"::1","psn":0}]}`
	if err := json.Unmarshal([]byte(both), &ibverbx.BusinessCard{}); err != nil {
		t.Errorf("%s: %v", both, err)
	}
}

// A card of 64 KiB is read, whatever fills it, and none that is longer.
func TestCardsAreBounded(t *testing.T) {
	const before, after = `{"qpNums":["7"],"rails":[{"gid":"::1","psn":0}],"x":"`, `"}`
	for _, n := range []int{65535, 65536, 65537} {
		fill := strings.Repeat("x", n-len(before)-len(after))
		err := json.Unmarshal([]byte(before+fill+after), &ibverbx.BusinessCard{})
		if n > 65536 {
			want := fmt.Sprintf("ibverbx: business card: invalid argument: %d bytes long: at most 65536", n)
			if err == nil || err.Error() != want {
				t.Errorf("%v, want %s", err, want)
			}
		} else if err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// The largest card that a virtual queue pair can have survives a round trip.
func TestLargestBusinessCard(t *testing.T) {
	devices := make([]verbs.Device, 64)
	null := verbstest.NewNull(len(devices))
	for i := range devices {
		devices[i] = null.Device(i)
	}
	q, err := ibverbx.Open(devices, ibverbx.Config{QPsPerDevice: 2})
	if err != nil {
		t.Fatal(err)
	}
	card, err := q.Card()
	if err != nil || len(card.QPNums) != ibverbx.MaxRails || len(card.Rails) != ibverbx.MaxRails+1 {
		t.Fatal(err, len(card.QPNums))
	}
	for i := range card.Rails {
		for j := range card.Rails[i].GID {
			card.Rails[i].GID[j] = 0xee
		}
		card.Rails[i].LID, card.Rails[i].PSN = 0xffff, 1<<24-1
	}
	if data, _ := json.Marshal(card); len(data) > 20<<10 {
		t.Errorf("%d bytes long", len(data))
	}
	if got := vqptest.ThroughJSON(t, card); !reflect.DeepEqual(got, card) {
		t.Error("the card does not survive the round trip")
	}
	if err := errors.Join(q.Connect(vqptest.Elsewhere(card)), q.Close(), null.Close()); err != nil {
		t.Error(err)
	}
}

func TestConnectRefusesCardsThatDoNotFit(t *testing.T) {
	fabric := vqptest.NewFabric(t, soft.Config{Devices: 2})
	multi := ibverbx.Config{QPsPerDevice: 2}
	for _, c := range []struct {
		name string
		cfg  ibverbx.Config
		edit func(*ibverbx.BusinessCard)
		says string
	}{
		{"scheme", multi, func(c *ibverbx.BusinessCard) { c.Scheme = "spray" },
			"the peer uses \"spray\", this end dqplb: configure both alike"},
		{"unknown scheme", multi, func(c *ibverbx.BusinessCard) { c.Scheme = "later" },
			"the peer uses \"later\""},
		{"more queue pairs", multi, func(c *ibverbx.BusinessCard) {
			c.QPNums, c.Rails = append(c.QPNums, 99), append(c.Rails, ibverbx.RailCard{Device: 9})
		}, "the peer has 3 queue pairs, this end 2: configure both alike"},
		{"fewer queue pairs", multi, func(c *ibverbx.BusinessCard) {
			c.QPNums, c.Rails = c.QPNums[1:], c.Rails[1:]
		}, "the peer has 1 queue pairs, this end 2"},
		{"no notify QP", multi, func(c *ibverbx.BusinessCard) { c.NotifyQPNum, c.Rails = 0, c.Rails[:2] },
			"notify QP"},
		{"a notify QP", ibverbx.Config{QPsPerDevice: 2, NoNotifyQP: true},
			func(c *ibverbx.BusinessCard) {
				c.NotifyQPNum, c.Rails = 99, append(c.Rails, ibverbx.RailCard{})
			}, "notify QP"},
		{"a notify QP for one", ibverbx.Config{QPsPerDevice: 1},
			func(c *ibverbx.BusinessCard) {
				c.NotifyQPNum, c.Rails = 99, append(c.Rails, ibverbx.RailCard{})
			}, "notify QP"},
		{"empty", multi, func(c *ibverbx.BusinessCard) { *c = ibverbx.BusinessCard{} }, "0 queue pairs"},
		{"numbers", multi, func(c *ibverbx.BusinessCard) { c.QPNums[1] = 1 << 24 },
			"queue pair 1 has number 16777216"},
		{"number 0", multi, func(c *ibverbx.BusinessCard) { c.QPNums[1] = 0 }, "number 0"},
		{"number of the notify QP", multi, func(c *ibverbx.BusinessCard) { c.NotifyQPNum = 1 << 24 },
			"notify QP has number 16777216"},
		{"largest number of the notify QP", multi,
			func(c *ibverbx.BusinessCard) { c.NotifyQPNum = math.MaxUint32 }, "notify QP has number"},
		{"first number", multi, func(c *ibverbx.BusinessCard) { c.FirstNumber = 1<<24 - 1 },
			"first number 16777215"},
		{"mtu", multi, func(c *ibverbx.BusinessCard) { c.MTU = 6 }, "mtu code 6"},
		{"credits", multi, func(c *ibverbx.BusinessCard) { c.Credits = -1 }, "credits -1"},
		{"psn", multi, func(c *ibverbx.BusinessCard) { c.Rails[2].PSN = 1 << 24 }, "rail 2 has psn 16777216"},
		{"device", multi, func(c *ibverbx.BusinessCard) { c.Rails[1].Device = verbs.MaxDevices },
			"rail 1 is on device 64"},
		{"the largest values", multi, func(c *ibverbx.BusinessCard) {
			c.QPNums[1], c.NotifyQPNum, c.FirstNumber = 1<<24-1, 1<<24-2, 1<<24-2
			c.Rails[1].PSN, c.Rails[1].Device, c.MTU = 1<<24-1, verbs.MaxDevices-1, verbs.MTU4096
		}, ""},
		{"rails", multi, func(c *ibverbx.BusinessCard) { c.Rails = c.Rails[:1] }, "1 rails"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := ibverbx.Open([]verbs.Device{fabric.Device(0)}, c.cfg)
			if err != nil {
				t.Fatal(err)
			}
			b, err := ibverbx.Open([]verbs.Device{fabric.Device(1)}, c.cfg)
			if err != nil {
				t.Fatal(err)
			}
			card := cardOf(t, b)
			c.edit(&card)
			if c.says == "" {
				if err := errors.Join(a.Connect(card), a.Close(), b.Close()); err != nil {
					t.Error(err)
				}
				return
			}
			if err := a.Connect(card); !errors.Is(err, verbs.ErrInvalid) ||
				!strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v: want one that says %q", err, c.says)
			}
			if a.State() != verbs.StateReset || a.Err() != nil {
				t.Errorf("the virtual queue pair is left in %v, %v", a.State(), a.Err())
			}
			vqptest.ConnectBoth(t, a, b) // the right card connects
			if err := a.Connect(card); err == nil {
				t.Error("a connected one connects again")
			}
			card = cardOf(t, b)
			if err := a.Connect(card); !errors.Is(err, verbs.ErrState) ||
				!strings.Contains(err.Error(), "reset it first") {
				t.Errorf("connecting a connected one: %v", err)
			}
			if err := errors.Join(a.Close(), b.Close()); err != nil {
				t.Error(err)
			}
			if err := a.Connect(card); !errors.Is(err, ibverbx.ErrClosed) {
				t.Errorf("connecting a closed one: %v", err)
			}
		})
	}
}

func TestRemoteMRRoundTrip(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{QPsPerDevice: 1}})
	r := l.B.MR.Remote()
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	k := r.At(0).Keys
	key2, _ := k.Key(2)
	key3, _ := k.Key(3)
	if want := fmt.Sprintf(`{"addr":"%d","length":"%d","rkeys":{"2":%d,"3":%d}}`, r.Addr(), r.Len(), key2,
		key3); string(data) != want {
		t.Errorf("%s, want %s", data, want)
	}
	got := vqptest.ThroughJSON(t, r)
	if got.Addr() != l.B.MR.Addr() || got.Len() != l.B.MR.Len() || !reflect.DeepEqual(got, r) {
		t.Errorf("reads as %+v", got)
	}
	if s := got.At(got.Len() + 1); s.Length != 0 {
		t.Errorf("beyond the end there are %d bytes", s.Length)
	}
	if s := got.At(10); s.Addr != got.Addr()+10 || s.Length != got.Len()-10 {
		t.Errorf("from 10: %v", s)
	}
	zero := ibverbx.RemoteMR{}
	if data, err := json.Marshal(zero); err != nil || string(data) != `{"addr":"0","length":"0","rkeys":{}}` {
		t.Errorf("no memory: %s, %v", data, err)
	}
	if got := vqptest.ThroughJSON(t, zero); got.Len() != 0 || zero.At(0).Length != 0 ||
		zero.Slice(1, 2).Keys != nil {
		t.Errorf("no memory: %v", got)
	}
}

func TestRemoteMRRefusals(t *testing.T) {
	for _, s := range []string{
		`7`, `[]`, `"x"`, `{`, ``,
		`{"addr":1,"length":"1","rkeys":{}}`,
		`{"addr":"-1","length":"1"}`,
		`{"addr":"0x10","length":"1"}`,
		`{"addr":"18446744073709551616","length":"1"}`,
		`{"addr":"18446744073709551615","length":"2"}`,
		`{"addr":"9223372036854775808","length":"9223372036854775809"}`,
		`{"addr":"1","length":"18446744073709551615"}`,
		`{"addr":"1","length":"1","rkeys":{"64":1}}`,
		`{"addr":"1","length":"1","rkeys":{"256":1}}`,
		`{"addr":"1","length":"1","rkeys":{"-1":1}}`,
		`{"addr":"1","length":"1","rkeys":{"x":1}}`,
		`{"addr":"1","length":"1","rkeys":{"0":4294967296}}`,
		`{"addr":"1","length":"1","rkeys":{"0":-1}}`,
		`{"addr":"1","length":"1","rkeys":[1]}`,
	} {
		var r ibverbx.RemoteMR
		if err := json.Unmarshal([]byte(s), &r); err == nil || r.Addr() != 0 || r.Len() != 0 {
			t.Errorf("%s reads as %v, %v", s, r, err)
		}
	}
}
