package pmix

import (
	"errors"
	"fmt"
	"runtime"

	"ibverbx/internal/peertext"
)

// ErrNoLibrary means that libpmix cannot be opened.
var ErrNoLibrary = errors.New("no libpmix")

// statusError is a call of the library that has failed.
type statusError struct {
	call   string
	status int32
	text   string // the status in the library's words
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s: %s (status %d)", e.call, e.text, e.status)
}

// library is an open libpmix: the addresses of its functions, and how they are called.
type library struct {
	call func(fn uintptr, args ...uintptr) uintptr

	init, finalize, put, commit, get, errorString, free uintptr
}

// maxText bounds the library's texts, in bytes.
const maxText = 200

// check returns the error of a call's return value.
func (l *library) check(call string, returned uintptr) error {
	status := int32(returned) // the upper half of the register is undefined
	if status == success {
		return nil
	}
	said := text(l.call(l.errorString, uintptr(status)), maxText)
	return &statusError{call, status, peertext.Line(said, maxText)}
}

// begin connects this process to the launcher, and returns its namespace and rank.
func (l *library) begin() (proc, error) {
	var pins runtime.Pinner
	defer pins.Unpin()
	self := new(proc)
	err := l.check("PMIx_Init", l.call(l.init, at(&pins, self), 0, 0))
	return *self, err
}

// end undoes begin.
func (l *library) end() error {
	return l.check("PMIx_Finalize", l.call(l.finalize, 0, 0))
}

// publish lets the other processes get a value.
func (l *library) publish(key string, content []byte) error {
	var pins runtime.Pinner
	defer pins.Unpin()
	name, err := cKey(key)
	if err != nil {
		return err
	}
	v := &value{kind: kindByteObject, data: [3]uint64{0, uint64(len(content))}}
	if len(content) > 0 {
		v.data[0] = uint64(at(&pins, &content[0]))
	}
	if err := l.check("PMIx_Put", l.call(l.put, scopeGlobal, at(&pins, &name[0]), at(&pins, v))); err != nil {
		return err
	}
	return l.check("PMIx_Commit", l.call(l.commit))
}

// ask gets a value of a process, and waits a second for it, or longer if the launcher ignores the
// limit. With fresh it asks the launcher for the latest value, which may not be there yet;
// otherwise a cached one will do. The caller releases the answer.
func (l *library) ask(of *proc, key string, fresh bool) (*answer, error) {
	var pins runtime.Pinner
	defer pins.Unpin()
	name, err := cKey(key)
	if err != nil {
		return nil, err
	}
	how, found := new([2]info), new(uintptr)
	how[0].set(timeout, kindInt, 1)
	how[1].set(refresh, kindBool, 1)
	n := uintptr(1)
	if fresh {
		n = 2
	}
	err = l.check("PMIx_Get", l.call(l.get, at(&pins, of), at(&pins, &name[0]), at(&pins, &how[0]), n,
		at(&pins, found)))
	switch {
	case err != nil:
		return nil, err
	case *found == 0:
		return nil, fmt.Errorf("PMIx_Get: no value for %q, and no error", key)
	}
	return &answer{l, key, *found, object[value](*found)}, nil
}

// set stores a key and a number.
func (i *info) set(key string, kind uint16, n uint64) {
	copy(i.key[:], key)
	i.value.kind, i.value.data[0] = kind, n
}

// cKey is a key as pmix_key_t.
func cKey(key string) (*[512]byte, error) {
	k := new([512]byte)
	if key == "" || len(key) >= len(k) {
		return nil, fmt.Errorf("a key of %d bytes: must be 1 to %d", len(key), len(k)-1)
	}
	copy(k[:], key)
	return k, nil
}

// answer is a value that the library has allocated.
type answer struct {
	lib   *library
	key   string
	addr  uintptr
	value *value
}

// release returns its memory.
func (a *answer) release() {
	if k := a.value.kind; (k == kindString || k == kindByteObject) && a.value.data[0] != 0 {
		a.lib.call(a.lib.free, uintptr(a.value.data[0]))
	}
	a.lib.call(a.lib.free, a.addr)
}

// number is its number.
func (a *answer) number() (uint32, error) {
	if a.value.kind != kindUint32 {
		return 0, a.wrong(kindUint32)
	}
	return uint32(a.value.data[0]), nil // little-endian, like all systems that load supports
}

// maxValue bounds a value in bytes.
const maxValue = 1 << 20

// bytes copies its bytes.
func (a *answer) bytes() ([]byte, error) {
	addr, size := uintptr(a.value.data[0]), a.value.data[1]
	switch {
	case a.value.kind != kindByteObject:
		return nil, a.wrong(kindByteObject)
	case size > maxValue || addr == 0 && size > 0:
		return nil, fmt.Errorf("PMIx_Get: %q has %d bytes at %#x: at most %d", a.key, size, addr, maxValue)
	case size == 0:
		return nil, nil
	}
	return memory(addr, int(size)), nil
}

// text copies its text.
func (a *answer) text() (string, error) {
	if a.value.kind != kindString {
		return "", a.wrong(kindString)
	}
	return text(uintptr(a.value.data[0]), maxText), nil
}

func (a *answer) wrong(want uint16) error {
	return fmt.Errorf("PMIx_Get: %q is of type %d, want %d", a.key, a.value.kind, want)
}
