package stream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ibverbx/nics"
	"ibverbx/transport"
)

func le32(list ...uint32) (b []byte) {
	for _, n := range list {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return b
}

func le64(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }

// A peer that breaks the protocol ends its link with the reason. Its streams are reset at both
// ends, nothing panics, the budget holds, and another link goes on.
func TestHostilePeer(t *testing.T) {
	type message struct {
		kind transport.AMID
		id   uint32
		data []byte
	}
	for name, c := range map[string]struct {
		says string
		send []message
	}{
		"more than the window": {"which may have", slices.Repeat([]message{
			{kindData, 1, make([]byte, 4000)}}, 3)},
		"no bytes":            {"0 bytes", []message{{kindData, 1, nil}}},
		"bytes for no stream": {"which is not open", []message{{kindData, 99, []byte{1}}}},
		"a chunk not granted": {"does not have", []message{{kindPut, 1, le32(3, 10)}}},
		"more than a chunk": {"in a chunk of", []message{{kindWant, 1, le32(1 << 20)},
			{kindPut, 1, le32(7, 65537)}}},
		"a chunk twice": {"does not have", []message{{kindWant, 1, le32(1 << 20)}, {kindPut, 1, le32(7, 9)},
			{kindPut, 1, le32(7, 9)}}},
		"half a put":           {"a put of 4 bytes", []message{{kindPut, 1, le32(0)}}},
		"returns a stranger":   {"is returned", []message{{kindReturn, 1, le32(1000)}}},
		"ends twice":           {"ends twice", []message{{kindFin, 1, le64(0)}, {kindFin, 1, le64(0)}}},
		"bytes behind the end": {"has ended it", []message{{kindFin, 1, le64(0)}, {kindData, 1, []byte{1}}}},
		"wants behind the end": {"behind its end", []message{{kindFin, 1, le64(0)}, {kindWant, 1, le32(0)}}},
		"wants without number": {"a want of 0", []message{{kindWant, 1, nil}}},
		"half a shrinking":     {"must be 16", []message{{kindShrink, 1, le64(0)}}},
		"shrinks to nothing": {"lowers", []message{{kindShrink, 1,
			slices.Concat(le64(firstWindow), le64(0))}}},
		"shrinks to more": {"lowers", []message{{kindShrink, 1,
			slices.Concat(le64(firstWindow), le64(firstWindow+1))}}},
		"a wrong total":     {"ends behind 5", []message{{kindFin, 1, le64(5)}}},
		"half a number":     {"a number of 3", []message{{kindFin, 1, []byte{1, 2, 3}}}},
		"opens twice":       {"twice", []message{{kindOpen, 1, nil}}},
		"accepts":           {"answered twice", []message{{kindAccept, 1, nil}}},
		"less space":        {"may send", []message{{kindSpace, 1, le64(0)}}},
		"endless space":     {"may send", []message{{kindSpace, 1, le64(1 << 63)}}},
		"chunks of nothing": {"chunk 5 of 0", []message{{kindGrant, 1, le32(5)}}},
		"half a chunk":      {"a list of", []message{{kindGrant, 1, []byte{1}}}},
		"a slab of nothing": {"slab 0", []message{{kindSlab, 0, []byte("{")}}},
		"a slab out of turn": {"slab 7", []message{{kindSlab, 7,
			[]byte(`{"addr":"0","length":"1","rkeys":{"77":1}}`)}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := over(t, nics.Soft)
			l := listen(t, cfg)
			a, b := dial(t, l, cfg)
			x, y := dial(t, listen(t, cfg), cfg)
			for _, m := range c.send {
				for {
					err := a.link.sendText(a.link.ep, m.kind, m.id, m.data)
					if err == nil || b.link.failure() != nil {
						break
					}
					if err != transport.ErrNoResource {
						t.Fatal(err)
					}
				}
			}
			_, err := b.Read(make([]byte, 1<<20))
			for err == nil {
				_, err = b.Read(make([]byte, 1<<20))
			}
			// An end that the peer has declared may have been read before the link failed.
			<-b.link.failed
			why := b.link.failure()
			if !errors.Is(why, ErrProtocol) || !strings.Contains(why.Error(), c.says) {
				t.Errorf("%v", why)
			}
			if _, err := b.Write([]byte{1}); !errors.Is(err, syscall.ECONNRESET) ||
				!errors.Is(err, ErrProtocol) {
				t.Errorf("the stream: %v", err)
			}
			if _, err := a.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the peer's: %v", err)
			}
			mustWrite(t, x, []byte("goes on"))
			mustRead(t, y, 7)
		})
	}
}

// A peer that opens streams without end gets refusals, and takes no more than the backlog.
func TestHostileOpens(t *testing.T) {
	cfg := over(t, nics.Soft)
	cfg.Backlog, cfg.Memory = 10, leastMemory
	l := listen(t, cfg)
	a, b := dial(t, l, cfg)
	for id := uint32(100); id < 1000; id++ {
		for a.link.sendText(a.link.ep, kindOpen, id, nil) == transport.ErrNoResource {
			a.link.carrier.w.Progress()
		}
	}
	<-b.link.failed // because a's link knows none of the streams that b's accepts
	l.hub.memory.mu.Lock()
	used := l.hub.memory.used
	l.hub.memory.mu.Unlock()
	if len(l.waiting) > cfg.Backlog || used > leastMemory {
		t.Errorf("%d streams wait, %d bytes are promised", len(l.waiting), used)
	}
}

// A peer whose memory has no key that fits ends its link when this end writes to it.
func TestHostileMemory(t *testing.T) {
	cfg := over(t, nics.Soft)
	a, b := pair(t, cfg)
	text := []byte(`{"addr":"4096","length":"524288","rkeys":{"77":1}}`)
	if err := errors.Join(b.link.sendText(b.link.ep, kindSlab, 0, text),
		b.link.sendText(b.link.ep, kindGrant, b.id, le32(3))); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Write(make([]byte, 1<<20)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v", err)
	}
	<-a.link.failed
}

// FuzzStreams gives a link any messages. It may fail, with ErrProtocol, and nothing else happens.
func FuzzStreams(f *testing.F) {
	cfg := over(f, nics.Soft)
	l := listen(f, cfg)
	for _, seed := range [][]byte{{5, 4, 1, 0, 0, 0, 9}, {7, 4, 1, 0, 0, 0, 0, 0, 9, 0},
		{14, 16, 1, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0},
		{6, 8, 1, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0},
		{12, 8, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, {13, 0, 1, 0, 0, 0}, {9, 4, 1, 0, 0, 0, 1, 0, 0, 0},
		{2, 0, 9, 0, 0, 0, 7, 0, 9, 0, 0, 0}, {8, 2, 0, 0, 0, 0, '{', '}'}} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, b := dial(t, l, cfg)
		// Each message: kind, length of the payload, stream, payload.
		for len(data) >= 6 {
			kind, n := transport.AMID(data[0]%uint8(kindLast-1)+1), min(int(data[1]), len(data)-6)
			for _, end := range []*link{a.link, b.link} {
				err := end.handle(kind, data[2:6], data[6:6+n])
				if err != nil {
					if !errors.Is(err, ErrProtocol) {
						t.Fatal(err)
					}
					end.fail(err)
				}
			}
			data = data[6+n:]
		}
		if used := a.link.carrier.hub.memory.used; used < 0 || used > defaultMemory {
			t.Fatalf("%d bytes are promised", used)
		}
		_, _ = a.Close(), b.Close()
		a.link.fail(errLinkClosed) // so the next input has a link of its own
		for {
			select {
			case c := <-l.waiting:
				_ = c.Close()
				continue
			default:
			}
			break
		}
	})
}

// What has arrived when the link ends is read first: all of it before io.EOF if the peer had closed
// the stream, otherwise before ECONNRESET.
func TestArrivedOutlivesTheLink(t *testing.T) {
	for _, closes := range []bool{true, false} {
		a, b := pair(t, over(t, nics.Soft))
		data := bytes.Repeat([]byte("0123456789abcdef"), 6000)
		mustWrite(t, a, data) // some in messages, the rest in chunks
		if closes {
			noError(t, a.Close())
		}
		arrived := func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.in.unread == len(data) && b.in.fin == closes
		}
		for !arrived() {
			time.Sleep(time.Millisecond)
		}
		mustRead(t, b, 50_000)
		b.link.fail(errors.New("the peer has died"))
		got, err := io.ReadAll(b)
		reset := errors.Is(err, syscall.ECONNRESET)
		if !bytes.Equal(got, data[50_000:]) || closes != (err == nil) || closes == reset {
			t.Errorf("closed %t: %d bytes and %v", closes, len(got), err)
		}
		if _, err := b.Write(data); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("write: %v", err)
		}
		noError(t, b.Close())
	}
}

// The memory of a link is released after all of its streams have ended, whoever ends it and however
// many do at once.
func TestLinkEndsOnce(t *testing.T) {
	a, b := pair(t, over(t, nics.Soft))
	mustWrite(t, a, make([]byte, 100_000))
	b.mu.Lock() // so the first to end the link stops here
	var ended sync.WaitGroup
	ended.Go(func() { b.link.fail(errors.New("the worker notices")) })
	for b.link.failure() == nil {
		time.Sleep(time.Millisecond)
	}
	noError(t, a.link.talk.Close()) // and the peer has gone
	<-b.link.talk.Done()
	b.link.pool.mu.Lock()
	slabs := len(b.link.pool.slabs)
	b.link.pool.mu.Unlock()
	b.mu.Unlock()
	ended.Wait()
	if slabs == 0 {
		t.Error("the memory was released while a stream had bytes in it")
	}
}

type panics struct{}

func (panics) Write([]byte) (int, error) { panic("on purpose") }

// A writer that panics holds nothing of the link, and takes nothing off the stream.
func TestWriterPanics(t *testing.T) {
	a, b := pair(t, over(t, nics.Soft))
	mustWrite(t, a, []byte("kept"))
	func() {
		defer func() { _ = recover() }()
		_, _ = b.WriteTo(panics{})
	}()
	if got := mustRead(t, b, 4); string(got) != "kept" {
		t.Errorf("read %q", got)
	}
	b.link.pins.Wait()
}
