package pmix

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fake stands in for the library.
type fake struct {
	self proc
	// get answers PMIx_Get: a status, and if that is success a value. What a value points to is
	// allocated.
	get func(of *proc, key string) (int32, *value)

	mu    sync.Mutex
	pins  runtime.Pinner
	heap  map[uintptr]bool // allocated
	puts  map[string]string
	calls []string
}

// Functions of the library.
const (
	fnInit = iota + 1
	fnFinalize
	fnPut
	fnCommit
	fnGet
	fnErrorString
	fnFree
)

// library makes a library of it, in which rank 1 of 4 runs.
func (f *fake) library(t *testing.T) *library {
	f.heap, f.puts = map[uintptr]bool{}, map[string]string{}
	if f.self == (proc{}) {
		f.self.rank = 1
		copy(f.self.nspace[:], "job@1")
	}
	t.Cleanup(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.heap) > 0 {
			t.Errorf("%d objects are not freed", len(f.heap))
		}
		f.pins.Unpin()
	})
	return &library{init: fnInit, finalize: fnFinalize, put: fnPut, commit: fnCommit, get: fnGet,
		errorString: fnErrorString, free: fnFree, call: func(fn uintptr, args ...uintptr) uintptr {
			return f.call(t, fn, args)
		}}
}

// alloc allocates memory of the library.
func alloc[T any](f *fake, v *T) uintptr {
	f.mu.Lock()
	defer f.mu.Unlock()
	addr := at(&f.pins, v)
	f.heap[addr] = true
	return addr
}

func (f *fake) call(t *testing.T, fn uintptr, args []uintptr) uintptr {
	f.mu.Lock()
	f.calls = append(f.calls, map[uintptr]string{fnInit: "init", fnFinalize: "finalize", fnPut: "put",
		fnCommit: "commit", fnGet: "get", fnErrorString: "", fnFree: "free"}[fn])
	f.mu.Unlock()
	switch fn {
	case fnInit:
		*object[proc](args[0]) = f.self
	case fnPut:
		v := object[value](args[2])
		f.puts[text(args[1], 512)] = string(memory(uintptr(v.data[0]), int(v.data[1])))
	case fnGet:
		status, v := f.get(object[proc](args[0]), text(args[1], 512))
		if v != nil {
			*object[uintptr](args[4]) = alloc(f, v)
		}
		return uintptr(status)
	case fnErrorString:
		f.mu.Lock()
		defer f.mu.Unlock()
		return at(&f.pins, &[]byte("BAD\n\x00")[0]) // its words are not to be freed
	case fnFree:
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.heap[args[0]] {
			t.Errorf("%#x is freed, and not allocated", args[0])
		}
		delete(f.heap, args[0])
	}
	return success
}

// number is a value.
func number(n uint32) *value { return &value{kind: kindUint32, data: [3]uint64{uint64(n)}} }

// content is a value that the library has allocated.
func (f *fake) content(s string) *value {
	b := new([64]byte)
	copy(b[:], s)
	return &value{kind: kindByteObject, data: [3]uint64{uint64(alloc(f, b)), uint64(len(s))}}
}

// ended is how often the library was left.
func (f *fake) ended() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Count(strings.Join(f.calls, " "), "finalize")
}

// answers has the library answer with what rank 0 has put, and with the size of the job.
func (f *fake) answers(answer func() (int32, *value)) {
	f.get = func(of *proc, _ string) (int32, *value) {
		if of.rank == rankWildcard {
			return success, number(4)
		}
		return answer()
	}
}

// A client learns who it is, waits for a value, and leaves the library.
func TestClient(t *testing.T) {
	f := &fake{}
	tries := 0
	f.answers(func() (int32, *value) {
		tries++
		switch tries {
		case 1:
			return errNotFound, nil
		case 2:
			return errTimeout, nil
		case 3:
			return errEntryNotFound, nil
		}
		return success, f.content("host:7471")
	})
	c, err := open(t.Context(), f.library(t))
	if err != nil {
		t.Fatal(err)
	}
	if c.Namespace() != "job@1" || c.Rank() != 1 || c.Size() != 4 {
		t.Errorf("%s, %d of %d", c.Namespace(), c.Rank(), c.Size())
	}
	if got, err := c.Get(t.Context(), "key"); err != nil || string(got) != "host:7471" {
		t.Errorf("got %q, %v", got, err)
	}
	if err := c.Put(t.Context(), "key", []byte("value")); err != nil || f.puts["key"] != "value" {
		t.Errorf("put %q, %v", f.puts["key"], err)
	}
	if last := f.calls[len(f.calls)-1]; last != "commit" {
		t.Errorf("after put: %s", last)
	}
	for range 2 {
		if err := c.Close(); err != nil || f.ended() != 1 {
			t.Errorf("closed: %v; the library was left %d times", err, f.ended())
		}
	}
	if err := c.Put(t.Context(), "key", nil); !errors.Is(err, errClosed) {
		t.Errorf("put after close: %v", err)
	}
}

// What the library says that makes no sense is an error.
func TestNonsense(t *testing.T) {
	namely := func(rank uint32, name string) proc {
		p := proc{rank: rank}
		copy(p.nspace[:], name)
		return p
	}
	for name, test := range map[string]struct {
		self   proc
		answer *value // to everything
		is     string
	}{
		"no name":       {namely(1, "\x00x"), number(4), "gives the job no name"},
		"no end":        {namely(1, strings.Repeat("x", 256)), number(4), "gives the job no name"},
		"rank":          {namely(4, "x"), number(4), "rank 4 of 4"},
		"size 0":        {namely(0, "x"), number(0), "rank 0 of 0"},
		"size 1":        {namely(1<<32-1, "x"), number(1), "rank 4294967295 of 1"},
		"type of size":  {namely(1, "x"), &value{kind: kindInt, data: [3]uint64{4}}, "type 6"},
		"no value":      {namely(1, "x"), nil, "no value"},
		"unknown type":  {namely(1, "x"), &value{kind: 0xffff, data: [3]uint64{1, 2, 3}}, "type 65535"},
		"empty string":  {namely(1, "x"), &value{kind: kindString}, "type 3"},
		"empty content": {namely(1, "x"), &value{kind: kindByteObject}, "type 27"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{self: test.self}
			f.get = func(*proc, string) (int32, *value) { return success, test.answer }
			c, err := open(t.Context(), f.library(t))
			if err == nil || !strings.Contains(err.Error(), test.is) {
				t.Errorf("%+v, %v: does not say %q", c, err, test.is)
			}
			if f.ended() != 1 {
				t.Errorf("the library was left %d times", f.ended())
			}
		})
	}
}

// So is a value that makes none.
func TestBadValue(t *testing.T) {
	for name, test := range map[string]struct {
		status int32
		answer *value
		is     string
	}{
		"none":      {success, nil, "no value"},
		"type":      {success, number(7), "type 14"},
		"nowhere":   {success, &value{kind: kindByteObject, data: [3]uint64{0, 5}}, "5 bytes at 0x0"},
		"unlimited": {success, &value{kind: kindByteObject, data: [3]uint64{0, 1 << 63}}, "at most"},
		"refused":   {-25, nil, "PMIx_Get: BAD  (status -25)"},
		"positive":  {25, nil, "status 25"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{}
			f.answers(func() (int32, *value) { return test.status, test.answer })
			c, err := open(t.Context(), f.library(t))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			got, err := c.Get(t.Context(), "key")
			if err == nil || !strings.Contains(err.Error(), test.is) || len(err.Error()) > 2*maxText {
				t.Errorf("%q, %v: does not say %q", got, err, test.is)
			}
		})
	}
	f := &fake{}
	f.answers(func() (int32, *value) { return success, &value{kind: kindByteObject} })
	c, err := open(t.Context(), f.library(t))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.Get(t.Context(), "key"); err != nil || len(got) != 0 {
		t.Errorf("an empty value: %q, %v", got, err)
	}
	for _, key := range []string{"", strings.Repeat("k", 512)} {
		if _, err := c.Get(t.Context(), key); err == nil {
			t.Errorf("a key of %d bytes is taken", len(key))
		}
		if err := c.Put(t.Context(), key, nil); err == nil {
			t.Errorf("a key of %d bytes is taken", len(key))
		}
	}
}

// A call from which the library does not return holds up nobody. The library is left when it does.
func TestHang(t *testing.T) {
	t.Parallel()
	f := &fake{}
	returns := make(chan struct{})
	entered := make(chan struct{})
	f.answers(func() (int32, *value) {
		close(entered)
		<-returns
		return success, f.content("late")
	})
	c, err := open(t.Context(), f.library(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	go func() {
		<-entered
		cancel(why)
	}()
	if _, err := c.Get(ctx, "key"); !errors.Is(err, why) || !strings.Contains(err.Error(), "libpmix") {
		t.Errorf("got %v", err)
	}
	began := time.Now()
	if err := c.Close(); err == nil || time.Since(began) > 5*time.Second || f.ended() != 0 {
		t.Errorf("closed: %v, after %v; the library was left %d times", err, time.Since(began), f.ended())
	}
	close(returns)
	<-c.ended
	if f.ended() != 1 {
		t.Errorf("the library was left %d times", f.ended())
	}
}

// Once the context has ended no call is begun, which would stay behind.
func TestEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.answers(func() (int32, *value) { return errNotFound, nil })
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		cancel(why)
		lib := f.library(t)
		_, err := open(ctx, lib)
		if synctest.Wait(); !errors.Is(err, why) || len(f.calls) != 0 {
			t.Errorf("Open: got %v, and %q were called", err, f.calls)
		}
		c, err := open(t.Context(), lib)
		if err != nil {
			t.Fatal(err)
		}
		before := len(f.calls)
		_, err = c.Get(ctx, "key")
		if synctest.Wait(); !errors.Is(err, why) || len(f.calls) != before {
			t.Errorf("Get: got %v, and %q were called", err, f.calls[before:])
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Connecting may hang as well.
func TestOpenHangs(t *testing.T) {
	f := &fake{}
	returns := make(chan struct{})
	left := make(chan struct{})
	f.answers(nil)
	lib := f.library(t)
	call := lib.call
	lib.call = func(fn uintptr, args ...uintptr) uintptr {
		if fn == fnInit {
			<-returns
		}
		if fn == fnFinalize {
			defer close(left)
		}
		return call(fn, args...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := open(ctx, lib); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	close(returns)
	<-left
}

// LocalAddr leads to the hosts of the others.
func TestLocalAddr(t *testing.T) {
	for name, test := range map[string]struct {
		local uint32
		hosts []string
		want  string
	}{
		"one host":  {4, nil, "127.0.0.1"},
		"two hosts": {2, []string{"here", "here", "127.9.9.9", "127.9.9.9"}, "127."},
		"no names":  {2, nil, ""},
		"one name":  {2, []string{"here", "here", "here", "here"}, ""},
		"unknown":   {2, []string{"here", "here", "there.invalid", "there.invalid"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{}
			f.get = func(of *proc, key string) (int32, *value) {
				switch {
				case key == jobSize:
					return success, number(4)
				case key == localSize:
					return success, number(test.local)
				case key == hostName && test.hosts != nil:
					b := new([64]byte)
					copy(b[:], test.hosts[of.rank])
					return success, &value{kind: kindString, data: [3]uint64{uint64(alloc(f, b))}}
				}
				return success, number(0) // of the wrong type
			}
			c, err := open(t.Context(), f.library(t))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			got := ""
			if addr := c.LocalAddr(); addr != nil {
				got = addr.String()
			}
			if !strings.HasPrefix(got, test.want) || test.want == "" && got != "" {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// Where libpmix is missing the error says what to install, or where it works.
func TestMissing(t *testing.T) {
	_, err := load("libpmix-is-not-here.so.2")
	if !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "install") &&
		!strings.Contains(err.Error(), "Linux") {
		t.Errorf("got %v", err)
	}
}
