package api_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
	"ibverbx/verbs/verbstest"
)

// checkRefusal checks that a document was refused with ErrInvalid, unless it is no JSON at all, and
// that the error repeats no more of it than fits into a line.
func checkRefusal(t *testing.T, err error) {
	t.Helper()
	var syntax *json.SyntaxError
	foreign := errors.Is(err, verbs.ErrUnreachable) || errors.Is(err, ibverbx.ErrOwnCard)
	if !errors.Is(err, verbs.ErrInvalid) && !foreign && !errors.As(err, &syntax) || len(err.Error()) > 1000 {
		t.Fatalf("%d bytes: %.300v", len(err.Error()), err)
	}
}

// FuzzBusinessCard parses cards. An accepted card is within the limits and survives a round trip.
// A virtual queue pair either connects with it, or refuses it and is unchanged.
func FuzzBusinessCard(f *testing.F) {
	for _, s := range []string{
		`{"qpNums":["0000000017","0000000018"],"notifyQpNum":"0000000000"}`,
		`{"qpNums":["17","18"],"notifyQpNum":"19","scheme":"dqplb","mtu":4096,"credits":256,"rawImm":true,` +
			`"rails":[{"device":0,"gid":"fd00::1:0","psn":5},` +
			`{"device":1,"gid":"::ffff:1.2.3.4","psn":16777215},` +
			`{"device":63,"gid":"::1","lid":9,"psn":0}]}`,
		`{"qpNums":["1","1"],"scheme":"spray","mtu":256}`,
		`{"qpNums":["99999999999"]}`, `null`, `{"rails":[{}],"qpNums":["1"]}`,
		`{"qpNums":["1"],"credits":-1}`, `[[[`, `{"QPNUMS":["1"]}`,
		`{"qpNums":["1"],"credits":` + strings.Repeat("1", 3000) + `}`,
		`{"qpNums":["1"],"rails":[{"gid":"` + strings.Repeat("x", 3000) + `"}]}`,
	} {
		f.Add([]byte(s))
	}
	dev := verbstest.NewNull(1).Device(0)
	var ends []*ibverbx.VirtualQP
	for _, cfg := range []ibverbx.Config{
		{QPsPerDevice: 1}, {QPsPerDevice: 2}, {QPsPerDevice: 2, Scheme: ibverbx.Spray},
		{QPsPerDevice: 2, NoNotifyQP: true},
	} {
		cfg.Conn.PeerGIDs = []verbs.GID{{15: 1}, {15: 2}, {15: 3}}
		q, err := ibverbx.Open([]verbs.Device{dev}, cfg)
		if err != nil {
			f.Fatal(err)
		}
		ends = append(ends, q)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		card := ibverbx.BusinessCard{Scheme: "as before"}
		if err := json.Unmarshal(data, &card); err != nil {
			checkRefusal(t, err)
			if !reflect.DeepEqual(card, ibverbx.BusinessCard{Scheme: "as before"}) {
				t.Fatalf("the refused card was changed to %+v", card)
			}
			return
		}
		if bytes.Equal(bytes.TrimSpace(data), []byte("null")) {
			return // JSON's null changes nothing
		}
		if n := len(card.QPNums); n < 1 || n > ibverbx.MaxRails || len(card.Rails) > ibverbx.MaxRails+1 ||
			card.Credits < 0 || card.MTU > verbs.MTU4096 {
			t.Fatalf("accepted: %+v", card)
		}
		for _, r := range card.Rails {
			if r.Device >= verbs.MaxDevices || r.PSN >= 1<<24 {
				t.Fatalf("accepted: %+v", r)
			}
		}
		if again := vqptest.ThroughJSON(t, card); !reflect.DeepEqual(normal(again), normal(card)) {
			t.Fatalf("%+v reads back as %+v", card, again)
		}
		for _, q := range ends {
			fits := len(card.QPNums) == q.DataRails() && (card.NotifyQPNum == 0) == q.Config().NoNotifyQP
			switch err := q.Connect(card); {
			case err == nil && q.State() == verbs.StateRTS && fits:
			case (errors.Is(err, verbs.ErrInvalid) || errors.Is(err, ibverbx.ErrOwnCard)) &&
				q.State() == verbs.StateReset && len(err.Error()) < 1000:
			default:
				t.Fatalf("%v in %v with %+v", err, q.State(), card)
			}
			if err := q.Reset(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// normal removes the difference between nil and empty rails.
func normal(c ibverbx.BusinessCard) ibverbx.BusinessCard {
	if len(c.Rails) == 0 {
		c.Rails = nil
	}
	return c
}

// FuzzParseScheme parses schemes: the two that String prints are accepted, and no other, which
// leaves the scheme as it was.
func FuzzParseScheme(f *testing.F) {
	for _, s := range []string{"dqplb", "spray", "DQPLB", "", "scheme 2", " spray", "single"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s := ibverbx.Spray
		err := s.UnmarshalText([]byte(text))
		if (err == nil) != (text == ibverbx.DQPLB.String() || text == ibverbx.Spray.String()) {
			t.Fatalf("%q: %v, %v", text, s, err)
		}
		if err != nil {
			checkRefusal(t, err)
			if parsed, e := ibverbx.ParseScheme(text); parsed != 0 || e == nil || s != ibverbx.Spray {
				t.Fatalf("%q: %v, %v", text, parsed, e)
			}
		}
		if back, e := s.MarshalText(); err == nil && (e != nil || string(back) != text) {
			t.Fatalf("%q is printed as %q, %v", text, back, e)
		}
	})
}

// alter overwrites parts of a card: keys of the document, and with "rail0", "rail1" and so on keys
// of one rail.
func alter(t *testing.T, card ibverbx.BusinessCard, with string) ([]byte, bool) {
	t.Helper()
	type object = map[string]json.RawMessage
	var changes object
	if json.Unmarshal([]byte(with), &changes) != nil {
		return nil, false
	}
	original, err := json.Marshal(card)
	if err != nil {
		t.Fatal(err)
	}
	var doc object
	var rails []object
	if err := errors.Join(json.Unmarshal(original, &doc), json.Unmarshal(doc["rails"], &rails)); err != nil {
		t.Fatal(err)
	}
	for i, rail := range rails {
		var of object
		if text, ok := changes[fmt.Sprint("rail", i)]; ok && json.Unmarshal(text, &of) == nil {
			for key, value := range of {
				rail[key] = value
			}
		}
	}
	if doc["rails"], err = json.Marshal(rails); err != nil {
		t.Fatal(err)
	}
	for key, value := range changes {
		doc[key] = value
	}
	altered, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return altered, true
}

// alteredPair is two ends over stepped NICs. One of them connects with an altered card.
type alteredPair struct {
	fabric *soft.Fabric
	ends   [2]*ibverbx.VirtualQP
	mrs    [2]*ibverbx.MR
	// sends and receives that each end has accepted: IDs from 0 on, receives with alteredRecv
	posted [2][2]uint64
	done   [2][2]uint64
	failed bool
}

const alteredRecv = 1 << 40

func newAlteredPair(t *testing.T, cfg ibverbx.Config, seed uint64) *alteredPair {
	t.Helper()
	cfg.Conn.Access = verbs.AccessAll
	l := &alteredPair{}
	var err error
	l.fabric, err = soft.New(soft.Config{Devices: 4, Stepped: true, Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	for i := range l.ends {
		if l.ends[i], err = ibverbx.Open([]verbs.Device{l.fabric.Device(2 * i), l.fabric.Device(2*i + 1)},
			cfg); err != nil {
			t.Fatal(err)
		}
		if l.mrs[i], err = l.ends[i].Domain().Register(make([]byte, 4096), verbs.AccessAll); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// traffic posts requests of every kind at both ends, as far as they are accepted.
func (l *alteredPair) traffic(t *testing.T) {
	t.Helper()
	for i, q := range l.ends {
		for _, local := range []ibverbx.Segment{{}, l.mrs[i].Slice(2048, 64), {}} {
			n, err := q.PostRecv(ibverbx.RecvWR{ID: alteredRecv + l.posted[i][1], Local: local})
			l.accepted(t, i, 1, n, err)
		}
	}
	for i, q := range l.ends {
		for k, op := range []verbs.Opcode{
			verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead, verbs.OpRDMARead,
			verbs.OpAtomicFetchAdd,
			verbs.OpSend, verbs.OpRDMAWriteWithImm, verbs.OpRDMAWrite,
		} {
			wr := ibverbx.SendWR{ID: l.posted[i][0], Opcode: op, Flags: verbs.SendSignaled, Imm: uint32(k)}
			wr.Local, wr.Remote = l.mrs[i].Slice(uint64(64*k), 1000),
				l.mrs[1-i].Remote().At(2048+uint64(64*k))
			if op.IsAtomic() || op.IsSend() {
				wr.Local.Length = 8
			}
			n, err := q.PostSend(wr)
			l.accepted(t, i, 0, n, err)
		}
	}
}

// accepted counts what was posted. A post may fail only because the virtual queue pair has failed,
// or because the altered card names devices without keys.
func (l *alteredPair) accepted(t *testing.T, end, direction, n int, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, ibverbx.ErrFailed) && !errors.Is(err, ibverbx.ErrNoKey) {
		t.Fatal(err)
	}
	l.posted[end][direction] += uint64(n)
}

// poll checks what both ends report: each accepted request once, and in order.
func (l *alteredPair) poll(t *testing.T) {
	t.Helper()
	var wcs [16]ibverbx.WC
	for i, q := range l.ends {
		for n := len(wcs); n == len(wcs); {
			var err error
			if n, err = q.CQ().Poll(wcs[:]); err != nil && !errors.Is(err, ibverbx.ErrClosed) {
				t.Fatal(err)
			}
			for _, wc := range wcs[:n] {
				direction := int(wc.ID / alteredRecv)
				done, posted := &l.done[i][direction], l.posted[i][direction]
				if wc.ID%alteredRecv != *done || *done >= posted {
					t.Fatalf("end %d reports %+v in place of number %d of %d", i, wc, *done, posted)
				}
				*done++
				l.failed = l.failed || wc.Status != verbs.StatusSuccess
			}
		}
		if s := q.Stats(); s.SendRing > 64 || s.RecvRing > 64 || s.OutOfOrder > 64 || s.Banked > 64 {
			t.Fatalf("too much is kept: %+v", s)
		}
	}
}

// run lets the NICs make progress, up to a number of steps. It returns whether every accepted
// request was reported by then.
func (l *alteredPair) run(t *testing.T) bool {
	t.Helper()
	for range 100 {
		moved := l.fabric.Run(8)
		if l.poll(t); moved == 0 || l.done == l.posted {
			break
		}
	}
	return l.done == l.posted
}

// FuzzConnect connects one end with an altered card. Either Connect refuses it and changes nothing,
// so that the original card connects and all traffic succeeds; or Connect accepts it, and then
// every request is reported once and nothing stays open, whether the traffic succeeds or not.
func FuzzConnect(f *testing.F) {
	for _, s := range []string{
		`{}`,
		`{"credits":1}`, `{"credits":9223372036854775807}`, `{"credits":0}`, `{"mtu":256}`, `{"mtu":0}`,
		`{"rdAtomic":0}`,
		`{"rdAtomic":255}`, `{"rdAtomic":1}`,
		`{"rawImm":false}`, `{"scheme":"spray"}`, `{"scheme":""}`, `{"scheme":"x"}`,
		`{"qpNums":["17","17","18"]}`, `{"qpNums":["16777215","1","2","3"]}`,
		`{"notifyQpNum":"0","rails":null}`, `{"notifyQpNum":"1"}`,
		`{"rails":null}`,
		`{"rail0":{"device":63}}`, `{"rail0":{"device":64}}`, `{"rail1":{"gid":"::"}}`,
		`{"rail2":{"gid":"fe80::dead"}}`,
		`{"rail4":{"psn":0}}`, `{"rail0":{"psn":16777216}}`,
		`{"rail0":{"lid":65535}}`, `{"rail0":{"device":0,"gid":"fd00::1"},"rail1":{"device":0}}`,
	} {
		for shape := range byte(2) {
			f.Add(shape, uint16(1), s)
		}
	}
	f.Fuzz(func(t *testing.T, shape byte, seed uint16, with string) {
		l := newAlteredPair(t, ibverbx.Config{
			Scheme: ibverbx.Scheme(shape & 1), QPsPerDevice: 2, FragmentSize: 100, MaxMsgCntPerQP: 4,
			Credits: 4 + int(shape>>1&7), MaxBanked: 2,
		}, uint64(seed))
		a, b := l.ends[0], l.ends[1]
		cardA, errA := a.Card()
		cardB, errB := b.Card()
		if err := errors.Join(errA, errB); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := errors.Join(a.Close(), b.Close()); err != nil {
				t.Fatal(err)
			}
			if l.poll(t); l.done != l.posted {
				t.Fatalf("%v of %v requests were reported", l.done, l.posted)
			}
			if err := errors.Join(l.mrs[0].Close(), l.mrs[1].Close(), l.fabric.Close()); err != nil {
				t.Fatalf("leak: %v", err)
			}
		}()
		altered, ok := alter(t, cardB, with)
		if !ok {
			return
		}
		var card ibverbx.BusinessCard
		err := json.Unmarshal(altered, &card)
		if err == nil {
			err = a.Connect(card)
		}
		if err != nil {
			checkRefusal(t, err)
			if a.State() != verbs.StateReset || a.Err() != nil {
				t.Fatalf("%v: the end is left in %v, %v", err, a.State(), a.Err())
			}
			if err := a.Connect(cardB); err != nil {
				t.Fatalf("with the original card: %v", err)
			}
		}
		if err := b.Connect(cardA); err != nil {
			t.Fatal(err)
		}
		l.traffic(t)
		if all := l.run(t); err != nil && (!all || l.failed) {
			t.Fatalf("connected with the original card: %v of %v requests were reported, %v, %v", l.done,
				l.posted, a.Err(), b.Err())
		}
	})
}
