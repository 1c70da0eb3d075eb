package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// A goroutine that reads a region while another closes it sees all of it, or nothing.
func TestMRIsReadWhileItCloses(t *testing.T) {
	fabric := vqptest.NewFabric(t, soft.Config{Devices: 2})
	dom, err := ibverbx.NewDomain(fabric.Device(0), fabric.Device(1))
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		mr, err := dom.Register(make([]byte, 64), verbs.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		whole := mr.Remote()
		var wg sync.WaitGroup
		start := make(chan struct{})
		for range 2 {
			wg.Go(func() {
				<-start
				for open := true; open; {
					n := len(mr.Bytes())
					if n != 64 && n != 0 {
						t.Errorf("a region of 64 bytes has %d", n)
					}
					open = n != 0
					r := mr.Remote()
					if r.Len() == 0 {
						continue
					}
					for dev := range verbs.DeviceID(2) {
						want, _ := whole.At(0).Keys.Key(dev)
						if key, ok := r.At(0).Keys.Key(dev); !ok || key != want {
							t.Errorf("key %d of device %d (there: %v), want %d", key, dev, ok, want)
						}
					}
				}
			})
		}
		close(start)
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if mr.Bytes() != nil || mr.Remote().Len() != 0 {
			t.Errorf("a closed region has %d bytes and describes %d", len(mr.Bytes()), mr.Remote().Len())
		}
	}
	if err := dom.Close(); err != nil {
		t.Error(err)
	}
}

// A description of the peer's memory that lacks a field is refused, and changes nothing.
func TestIncompleteRemoteMR(t *testing.T) {
	var r ibverbx.RemoteMR
	if err := json.Unmarshal([]byte(`{"addr":"4096","length":"64","rkeys":{"0":7}}`), &r); err != nil {
		t.Fatal(err)
	}
	for text, missing := range map[string]string{
		`{}`:                           `"addr", "length", "rkeys"`,
		`null`:                         `"addr", "length", "rkeys"`,
		`{"addr":"1"}`:                 `"length", "rkeys"`,
		`{"addr":"1","length":"2"}`:    `"rkeys"`,
		`{"length":"2","rkeys":{}}`:    `"addr"`,
		`{"addr":"1","rkeys":{"0":1}}`: `"length"`,
		`{"addr":null,"length":"2","rkeys":null}`: `"addr", "rkeys"`,
	} {
		err := json.Unmarshal([]byte(text), &r)
		if want := "ibverbx: remote memory: invalid argument: missing " + missing + ": "; !errors.Is(err,
			verbs.ErrInvalid) || !strings.HasPrefix(fmt.Sprint(err), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
		if r.Addr() != 4096 || r.Len() != 64 {
			t.Errorf("%s has changed it: %d, %d", text, r.Addr(), r.Len())
		}
	}
	// The JSON of a closed region, and of the zero value, can be read.
	text, err := json.Marshal(ibverbx.RemoteMR{})
	if err = errors.Join(err, json.Unmarshal(text, &r)); err != nil || r.Len() != 0 {
		t.Errorf("%s: %v", text, err)
	}
}

// A piece of memory is written as its address in hexadecimal digits and its length in decimal ones.
func TestTextOfASegment(t *testing.T) {
	const want = "0x1f00000000+1999"
	local := ibverbx.Segment{Addr: 0x1f << 32, Length: 1999}
	remote := ibverbx.RemoteSegment{Addr: 0x1f << 32, Length: 1999}
	if local.String() != want || remote.String() != want {
		t.Errorf("%v and %v, want %s", local, remote, want)
	}
}
