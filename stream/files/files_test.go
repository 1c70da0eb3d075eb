//go:build linux

package files

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"ibverbx/nics"
	"ibverbx/stream"
)

var token = []byte("a token of 16 bytes, and more")

type dialer func(ctx context.Context, host string) (net.Conn, error)

// serve serves dir over pipes without buffers, so that ends that write at the same time hang. stop
// returns when nothing happens in dir any more.
func serve(t testing.TB, dir string) (dial dialer, stop func()) {
	t.Helper()
	l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- Serve(ctx, l, dir, Config{Token: token}) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error("serve:", err)
		}
	})
	t.Cleanup(stop)
	return l.dial, stop
}

// pipes is a net.Listener of pipes in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipes) dial(ctx context.Context, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipes) Addr() net.Addr { return &net.IPAddr{} }

// tree is what is in a directory: by name what a file keeps.
type tree map[string]string

func read(t testing.TB, dir string) tree {
	t.Helper()
	found := tree{}
	must(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		info, err := d.Info()
		must(t, err)
		text := fmt.Sprint(info.Mode(), " ")
		switch {
		case info.Mode().IsRegular():
			text += fmt.Sprint(info.ModTime(), info.Size(), content(t, name, info.Size()))
		case info.IsDir():
			text += fmt.Sprint(info.ModTime())
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(name)
			must(t, err)
			text += to
		}
		rel, _ := filepath.Rel(dir, name)
		found[rel] = text
		return nil
	}))
	return found
}

// content returns where a file has data, and the data.
func content(t testing.TB, name string, size int64) string {
	f, err := os.Open(name)
	must(t, err)
	defer f.Close()
	var b strings.Builder
	for at := next(f, 0, size, false); at < size; at = next(f, at, size, false) {
		p := make([]byte, next(f, at, size, true)-at)
		_, err := f.ReadAt(p, at)
		must(t, err)
		fmt.Fprintf(&b, " %d+%d:%s", at, len(p), hex.EncodeToString(p))
		at += int64(len(p))
	}
	return b.String()
}

// same compares trees.
func same(t testing.TB, want, got tree) {
	t.Helper()
	for name := range maps.Keys(got) {
		if _, ok := want[name]; !ok {
			t.Errorf("%s is there: %.90q", name, got[name])
		}
	}
	for name, w := range want {
		if g := got[name]; g != w {
			t.Errorf("%s is %.90q, want %.90q", name, g, w)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// plant makes a tree of random files. Another seed makes the same names with other contents.
func plant(t testing.TB, shape, seed uint64, dir string) {
	t.Helper()
	s, r := rand.New(rand.NewPCG(shape, 1)), rand.New(rand.NewPCG(seed, 2))
	var in func(dir string, depth int)
	in = func(dir string, depth int) {
		must(t, os.MkdirAll(dir, 0o755))
		for i := range 3 + s.IntN(4) {
			name := filepath.Join(dir, fmt.Sprintf("f%d", i))
			switch kind := s.IntN(10); {
			case kind == 0:
				must(t, os.Symlink([]string{"f0", "nowhere", "./f1/../f2"}[r.IntN(3)], name))
				continue
			case kind < 4 && depth > 0:
				in(name, depth-1)
			default:
				// Of the last, which has several parts, only the ends are data.
				sizes := []int64{0, 1, 5000, smallBytes, smallBytes + 1, 3*pieceBytes - 5, partBytes + 9000}
				write(t, r, name, sizes[s.IntN(7)], kind < 8)
				must(t, os.Chmod(name, fs.FileMode(0o400|r.IntN(0o400))))
			}
			must(t, os.Chtimes(name, time.Time{}, time.Unix(r.Int64N(1<<31), r.Int64N(1e9))))
		}
	}
	in(dir, 2)
}

// write writes a file of random bytes, with holes unless dense.
func write(t testing.TB, r *rand.Rand, name string, size int64, dense bool) {
	t.Helper()
	f, err := os.Create(name)
	must(t, err)
	defer f.Close()
	must(t, f.Truncate(size))
	for at := int64(0); at < size; at += blockBytes {
		if at == 8*pieceBytes {
			at = size &^ (blockBytes - 1)
		}
		if data := make([]byte, min(blockBytes, size-at)); dense || r.IntN(3) == 0 {
			for j := range data {
				data[j] = byte(r.Uint32())
			}
			_, err := f.WriteAt(data, at)
			must(t, err)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A tree comes back as it went: the same bytes, modes, times, links and holes.
func TestRoundTrip(t *testing.T) {
	for streams, seed := range map[int]uint64{1: 6, 3: 8, 8: 4} {
		from, served, back := filepath.Join(t.TempDir(), "tree"), t.TempDir(), t.TempDir()
		plant(t, seed, seed, from)
		dial, _ := serve(t, served)
		cfg := Config{Token: token, Streams: streams}
		put, err := Copy(t.Context(), dial, []string{from}, "host:a/b", cfg)
		must(t, err)
		same(t, read(t, from), read(t, filepath.Join(served, "a/b/tree")))
		got, err := Copy(t.Context(), dial, []string{"host:a/b/tree/."}, back, cfg)
		must(t, err)
		same(t, read(t, from), read(t, back))
		if put.Files != got.Files || put.Bytes != got.Bytes || put.Files == 0 || put.Found < put.Bytes {
			t.Errorf("%+v went, %+v came back", put, got)
		}
	}
}

// Of a single file, the target is the name or the directory.
func TestNames(t *testing.T) {
	here, served := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(here+"/a", []byte("a"), 0o600))
	must(t, os.Mkdir(served+"/there", 0o700))
	dial, _ := serve(t, served)
	for target, want := range map[string]string{"": "a", "b": "b", "c/": "c/a", "d/e": "d/e",
		"there": "there/a", "./there/../f": "f"} {
		_, err := Copy(t.Context(), dial, []string{here + "/a"}, "host:"+target, Config{Token: token})
		if _, none := os.Stat(filepath.Join(served, want)); err != nil || none != nil {
			t.Errorf("to %q: %v, and %v", target, err, none)
		}
	}
	for _, names := range [][]string{{"a", "b"}, {"h:a", "h:b"}, {"a"}, {"h:a", "i:b", "c"},
		{"h:a", "b", "c"}} {
		_, err := Copy(t.Context(), dial, names[:len(names)-1], names[len(names)-1], Config{Token: token})
		if !errors.Is(err, ErrNames) {
			t.Errorf("%q: %v", names, err)
		}
	}
	for name, want := range map[string][2]string{"h:p": {"h", "p"}, "[::1]:p": {"::1", "p"},
		"./h:p": {"", "./h:p"}, "h:": {"h", ""}, ":p": {"", ":p"}} {
		if host, path := remote(name); host != want[0] || path != want[1] {
			t.Errorf("remote %q is %q, %q", name, host, path)
		}
	}
}

// cut is a connection that breaks when a number of bytes have passed over it and others.
type cut struct {
	net.Conn
	left *atomic.Int64
	then func() // not nil: called once, and the connection goes on
}

func (c *cut) pass(n int) error {
	if left := c.left.Add(-int64(n)); left > 0 || left <= -int64(n) && c.then != nil {
		return nil
	}
	if c.then != nil {
		c.then()
		return nil
	}
	_ = c.Close()
	return errors.New("cut")
}

func (c *cut) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return n, errors.Join(err, c.pass(n))
}

func (c *cut) Write(p []byte) (int, error) {
	if err := c.pass(len(p)); err != nil {
		n, _ := c.Conn.Write(p[:len(p)/2])
		return n, err
	}
	return c.Conn.Write(p)
}

// cutting returns a dialer of connections that break together.
func cutting(dial dialer, after int64, then func()) dialer {
	left := &atomic.Int64{}
	left.Store(after)
	return func(ctx context.Context, host string) (net.Conn, error) {
		c, err := dial(ctx, host)
		return &cut{c, left, then}, err
	}
}

// whole checks that each file of a directory is that of one of the trees, or unfinished.
func whole(t *testing.T, dir string, trees ...tree) {
	t.Helper()
	for name, got := range read(t, dir) {
		if strings.HasPrefix(got, "d") || strings.HasSuffix(name, partial) {
			continue
		}
		if !slices.ContainsFunc(trees, func(of tree) bool { return of[name] == got }) {
			t.Fatalf("%s is neither old nor new: %.200q", name, got)
		}
	}
}

// Connections that break at any byte leave old files, new ones and unfinished ones, and nothing
// else. Copying again brings the rest.
func TestCuts(t *testing.T) {
	from, target := t.TempDir(), t.TempDir()
	plant(t, 4, 30, from)
	plant(t, 4, 31, target)
	fresh, old := read(t, from), read(t, target)
	r := rand.New(rand.NewPCG(5, 5))
	total := int64(0)
	for _, text := range fresh {
		total += int64(len(text)) / 2
	}
	cuts := 0
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	for range rounds {
		served, here := from, target
		sources, to := []string{"host:."}, here
		if put := r.IntN(2) == 0; put {
			served, sources, to = target, []string{from + "/."}, "host:."
		}
		dial, stop := serve(t, served)
		_, err := Copy(t.Context(), cutting(dial, r.Int64N(total/10), nil), sources, to,
			Config{Token: token, Streams: 3})
		stop()
		if err != nil {
			cuts++
		}
		whole(t, target, old, fresh)
	}
	dial, _ := serve(t, target)
	_, err := Copy(t.Context(), dial, []string{from + "/."}, "host:.", Config{Token: token})
	must(t, err)
	if same(t, fresh, read(t, target)); cuts < 3 {
		t.Errorf("only %d transfers were cut", cuts)
	}
}

// What an unfinished file has is not sent again, and what is wrong in it is.
func TestResume(t *testing.T) {
	from, served := t.TempDir(), t.TempDir()
	f, err := os.Create(from + "/f")
	must(t, err)
	for at := range int64(3) { // a piece of each part is data
		_, err := f.WriteAt(bytes.Repeat([]byte{byte(at + 1)}, pieceBytes), at*partBytes)
		must(t, err)
	}
	must(t, f.Close())
	dial, _ := serve(t, served)
	cfg := Config{Token: token}
	first, err := Copy(t.Context(), dial, []string{from + "/f"}, "host:", cfg)
	must(t, err)
	for _, wrong := range []bool{false, true} {
		must(t, os.Rename(served+"/f", served+"/f"+partial))
		f, err := os.OpenFile(served+"/f"+partial, os.O_RDWR, 0)
		must(t, err)
		if _, err = f.WriteAt([]byte{9}, partBytes+20*blockBytes); wrong {
			must(t, err)
		} else {
			must(t, f.Truncate(partBytes))
		}
		must(t, f.Close())
		again, err := Copy(t.Context(), dial, []string{from + "/f"}, "host:", cfg)
		must(t, err)
		kept, sent := int64(partBytes), int64(2*pieceBytes)
		if wrong {
			kept, sent = partBytes+pieceBytes, pieceBytes
		}
		if again.Kept != kept || again.Bytes != sent || first.Bytes != 3*pieceBytes {
			t.Errorf("%+v, and at first %+v", again, first)
		}
	}
	if f, err = os.Open(served + "/f"); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for at := range int64(3) {
		got := make([]byte, 21*blockBytes)
		_, err := f.ReadAt(got, at*partBytes)
		if want := bytes.Repeat([]byte{byte(at + 1)}, len(got)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("part %d came with %.40x, %v", at, got, err)
		}
	}
	again, err := Copy(t.Context(), dial, []string{from + "/f"}, "host:", cfg)
	if err != nil || again.Bytes != 0 {
		t.Errorf("the same file again: %+v, %v", again, err)
	}
}

// Each thing that cannot be copied is one line, and everything else is copied.
func TestFailures(t *testing.T) {
	here, there := t.TempDir(), t.TempDir()
	from, served := here+"/from", there+"/served"
	for _, dir := range []string{from + "/d", from + "/in/deep", served + "/from/dirthere"} {
		must(t, os.MkdirAll(dir, 0o755))
	}
	big := bytes.Repeat([]byte("large"), smallBytes)
	for name, data := range map[string][]byte{"good": []byte("good"), "dirthere": []byte("a file"),
		"x.partial": nil, "in/deep/good": big, "bad\xff": nil, "taken": []byte("taken"), "filethere/x": big,
		"locked": big} {
		must(t, os.MkdirAll(filepath.Dir(from+"/"+name), 0o755))
		must(t, os.WriteFile(from+"/"+name, data, 0o644))
	}
	must(t, syscall.Mkfifo(from+"/pipe", 0o644))
	for name, to := range map[string]string{"abs": "/etc/passwd", "up": "../../x", "inner": "in/../good",
		"in/deep/up": "../../../../x", "in/ok": "../d"} {
		must(t, os.Symlink(to, from+"/"+name))
	}
	must(t, os.WriteFile(served+"/from/filethere", nil, 0o644))
	for _, name := range []string{"locked", "taken"} { // by another transfer
		f, err := os.Create(served + "/from/" + name + partial)
		must(t, err)
		defer f.Close()
		must(t, lock(f))
	}
	dial, _ := serve(t, served)
	r, err := Copy(t.Context(), dial, []string{from}, "host:", Config{Token: token})
	want := map[string]string{"from/dirthere": "directory", "from/x.partial": "unfinished",
		"from/bad": "UTF-8", "from/taken": "another transfer", "from/locked": "another transfer",
		"from/filethere": "not a directory", "from/filethere/x": "not a directory", "from/pipe": "neither",
		"from/abs": "lead out", "from/up": "lead out", "from/in/deep/up": "lead out"}
	if err == nil || int(r.Failed) != len(want) || r.Files != 4 {
		t.Fatalf("%+v, want %d failures: %v", r, len(want), err)
	}
	for name, why := range want {
		if !slices.ContainsFunc(strings.Split(err.Error(), "\n"), func(line string) bool {
			return strings.HasPrefix(line, name) && strings.Contains(line, why)
		}) {
			t.Errorf("no line %s: %s in\n%v", name, why, err)
		}
	}
	for _, name := range []string{"good", "in/deep/good", "inner", "in/ok"} {
		if a, b := read(t, from)[name], read(t, served+"/from")[name]; a != b {
			t.Errorf("%s came as %.99q, want %.99q", name, b, a)
		}
	}
	if list := read(t, there); len(list) != 1+len(read(t, served)) {
		t.Errorf("outside there is %v", slices.Collect(maps.Keys(list)))
	}
}

// A file that changes while it is read is not copied, also if it grows.
func TestChanged(t *testing.T) {
	from, served := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(from+"/f", bytes.Repeat([]byte("x"), 5*pieceBytes), 0o600))
	dial, _ := serve(t, served)
	grow := func() { must(t, os.WriteFile(from+"/f", bytes.Repeat([]byte("y"), 6*pieceBytes), 0o600)) }
	_, err := Copy(t.Context(), cutting(dial, 2*pieceBytes, grow), []string{from + "/f"}, "host:",
		Config{Token: token})
	if err == nil || !strings.Contains(err.Error(), "f: at the source: it changed") {
		t.Error(err)
	}
	if _, err := os.Stat(served + "/f"); !errors.Is(err, fs.ErrNotExist) {
		t.Error("it was copied:", err)
	}
}

// A full disk ends the transfer with one error, and leaves no small file half done.
func TestFull(t *testing.T) {
	from, served := t.TempDir(), t.TempDir()
	if err := syscall.Mount("tmpfs", served, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("a file system of its own: ", err)
	}
	defer func() { must(t, syscall.Unmount(served, syscall.MNT_DETACH)) }()
	must(t, os.Mkdir(from+"/small", 0o700))
	for i := range 40 {
		must(t, os.WriteFile(fmt.Sprint(from, "/small/", i), bytes.Repeat([]byte("s"), smallBytes), 0o600))
	}
	must(t, os.WriteFile(from+"/big", bytes.Repeat([]byte("b"), 4<<20), 0o600))
	want := read(t, from)
	dial, stop := serve(t, served)
	for _, name := range []string{"/small", "/big"} {
		_, err := Copy(t.Context(), dial, []string{from + name}, "host:", Config{Token: token})
		if err == nil || err.Error() != "the other end: no space left on device" {
			t.Errorf("%s: %v", name, err)
		}
	}
	stop()
	if whole(t, served, want); len(read(t, served)) < 5 {
		t.Errorf("%d files were copied", len(read(t, served)))
	}
}

// The token decides who may connect, and a context ends a copy.
func TestToken(t *testing.T) {
	from, served := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(from+"/f", bytes.Repeat([]byte("x"), 5*pieceBytes), 0o600))
	dial, _ := serve(t, served)
	for text, want := range map[string]string{"a token of 16 bytes, and others": ErrToken.Error(),
		"too short": "token of 9 bytes"} {
		_, err := Copy(t.Context(), dial, []string{from + "/f"}, "host:", Config{Token: []byte(text)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Copy(ctx, cutting(dial, 2*pieceBytes, cancel), []string{from + "/f"}, "host:",
		Config{Token: token})
	if !errors.Is(err, context.Canceled) || len(read(t, served)) > 1 {
		t.Errorf("a context that ends: %v, and there is %d", err, len(read(t, served)))
	}
}

// A frame that somebody else has written, changed, repeated or left out ends the connection.
func TestTags(t *testing.T) {
	here, there := net.Pipe()
	a, b := newWire(here, 1), newWire(there, 0)
	done := make(chan error)
	go func() { done <- a.greet(token) }()
	must(t, errors.Join(b.greet(token), <-done))
	var frames [][]byte
	for _, name := range []string{"one", "two"} {
		var sent bytes.Buffer
		a.w.Reset(&sent)
		a.write(frame{head: head{Kind: kindNote}, name: name, data: []byte("data")})
		a.flush()
		frames = append(frames, sent.Bytes())
	}
	for at := range 8 * len(frames[0]) {
		changed := bytes.Clone(frames[0])
		changed[at/8] ^= 1 << (at % 8)
		frames = append(frames, changed)
	}
	for i, bad := range append(frames[1:], append(bytes.Clone(frames[0]), frames[0]...)) {
		b.numbers, b.err = [2]uint64{}, nil
		b.r.Reset(bytes.NewReader(bad))
		for b.err == nil {
			b.read()
		}
		if !errors.Is(b.err, ErrProtocol) && !errors.Is(b.err, io.ErrUnexpectedEOF) {
			t.Fatalf("%d: %v", i, b.err)
		}
	}
}

// script is a peer that has written everything, and reads everything.
type script struct {
	net.Conn // nil
	*bytes.Reader
}

func (s script) Read(p []byte) (int, error)         { return s.Reader.Read(p) }
func (s script) Write(p []byte) (int, error)        { return len(p), nil }
func (s script) WriteTo(io.Writer) (int64, error)   { return 0, io.EOF }
func (s script) SetWriteDeadline(_ time.Time) error { return nil }

// scripted returns frames as they are on the wire, without tags.
func scripted(frames ...frame) []byte {
	var b bytes.Buffer
	w := newWire(nil, 0)
	w.grow()
	w.w.Reset(&b)
	for _, f := range frames {
		w.write(f)
	}
	w.flush()
	return b.Bytes()
}

// play lets an end meet a script, and checks that nothing outside of its directory has changed.
func play(t *testing.T, sends bool, data []byte) error {
	top := t.TempDir()
	must(t, os.MkdirAll(top+"/served/d", 0o755))
	must(t, os.WriteFile(top+"/served/f", bytes.Repeat([]byte("f"), smallBytes+1), 0o600))
	must(t, os.WriteFile(top+"/served/d/g", []byte("g"), 0o600))
	root, err := os.OpenRoot(top + "/served")
	must(t, err)
	defer root.Close()
	w := newWire(script{nil, bytes.NewReader(data)}, 0)
	w.grow()
	if sends {
		s := &sender{sources: []source{{root, ".", "."}}, tally: &tally{}, units: make(chan func(*wire))}
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { s.walk(ctx); close(over) }()
		s.work(w)
		cancel()
		<-over
	} else {
		r := newReceiver(root, "x", false, &tally{})
		r.work(w)
		r.stop()
	}
	if list, err := os.ReadDir(top); err != nil || len(list) != 1 {
		t.Errorf("outside there is %v, %v", list, err)
	}
	return w.err
}

func named(kind byte, name string) frame {
	return frame{head: head{Kind: kind, Mode: 0o600}, name: name}
}

// hostile is what no peer may do: the last frame of each.
func hostile() map[string][]frame {
	part := frame{head: head{Kind: kindPart, ID: 1, Size: partBytes + 9}, name: "p"}
	piece := frame{head: head{Kind: kindPiece}, data: []byte("piece")}
	far, back, early, many := piece, piece, part, part
	far.At, back.At, early.Part, many.Size = partBytes-2, 3, 2, -1
	list := map[string][]frame{
		"no beginning": {part}, "two": {{head: head{Kind: kindBegin}}, {head: head{Kind: kindBegin}}},
		"answer": {{head: head{Kind: kindAnswer}}}, "none": {{}},
		"time":      {{head: head{Kind: kindNote, Nsec: 1e9}}},
		"far piece": {part, far}, "same piece": {part, piece, back}, "no such part": {early}, "size": {many},
		"early end": {part, piece, {head: head{Kind: kindEnd}}, piece},
		"long name": {named(kindSmall, strings.Repeat("n", 5000))},
	}
	for _, name := range []string{"", ".", "..", "../x", "/x", "a/../../x", "a//b", "x.partial", "a\x00b",
		"\xff"} {
		list[fmt.Sprintf("name %q", name)] = []frame{named(kindSmall, name)}
	}
	for range batchFiles + 1 {
		list["batch"] = append(list["batch"], named(kindDir, "d"))
	}
	for id := range uint32(maxOpen + 1) {
		part.ID, part.name = id, fmt.Sprint(id)
		end := frame{head: head{Kind: kindEnd, Status: statusFailed}}
		list["open"] = append(list["open"], part, piece, end)
	}
	return list
}

// Whatever a peer sends, nothing happens outside of the directory, and nothing panics.
func TestHostile(t *testing.T) {
	for name, frames := range hostile() {
		begin := frame{head: head{Kind: kindBegin}}
		if name == "no beginning" {
			begin = frame{head: head{Kind: kindNote}}
		}
		err := play(t, false, scripted(append([]frame{begin}, frames...)...))
		if !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzFrames(f *testing.F) {
	begin, end := frame{head: head{Kind: kindBegin}}, frame{head: head{Kind: kindEnd}}
	done := frame{head: head{Kind: kindDone}}
	link := frame{head: head{Kind: kindLink}, name: "l", text: "../d/s"}
	data := frame{head: head{Kind: kindSmall, Mode: 0o644, Flag: true}, name: "d/s", data: make([]byte, 9000)}
	part := frame{head: head{Kind: kindPart, ID: 1, Size: 70000, Flag: true}, name: "p"}
	piece := frame{head: head{Kind: kindPiece, At: 9}, data: []byte("piece")}
	f.Add(false, scripted(begin, data, link, named(kindDir, "d"), end, part, piece, end, done))
	answer := frame{head: head{Kind: kindAnswer}}
	failed := frame{head: head{Kind: kindAnswer, Status: statusFailed}, text: "why"}
	failures := frame{head: answer.head, data: []byte("\x00why\x00\x01x\x00")}
	there := frame{head: answer.head, data: make([]byte, 32)}
	there.Flag = true
	f.Add(true, scripted(answer, answer, answer, failures, answer, answer))
	f.Add(true, scripted(answer, there, failed, failures, failures))
	for _, frames := range hostile() {
		f.Add(false, scripted(append([]frame{begin}, frames[:min(len(frames), 9)]...)...))
	}
	f.Fuzz(func(t *testing.T, sends bool, data []byte) { _ = play(t, sends, data) })
}

// carriers are what files are copied over, each with a listener and a dialer.
func carriers(b *testing.B, run func(b *testing.B, l net.Listener, dial dialer)) {
	b.Run("tcp", func(b *testing.B) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(b, err)
		run(b, l, func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		})
	})
	for _, provider := range []string{nics.Shm, nics.RoCE} {
		b.Run(provider, func(b *testing.B) {
			var hosts [2]*nics.Host
			for i := range hosts {
				var err error
				hosts[i], err = nics.Open(nics.Config{Provider: provider})
				must(b, err)
			}
			l, err := stream.Listen(b.Context(), "127.0.0.1:0", stream.Config{Host: hosts[0]})
			must(b, err)
			run(b, l, func(ctx context.Context, _ string) (net.Conn, error) {
				return stream.Dial(ctx, l.Addr().String(), stream.Config{Host: hosts[1]})
			})
			for _, h := range hosts {
				must(b, errors.Join(stream.CloseIdle(context.Background(), h), h.Close()))
			}
		})
	}
}

// BenchmarkCopy copies a file of 1 GiB, or 10,000 of 4 KiB, beside the same connections without
// files, and tar. Set TMPDIR to a file system in memory.
func BenchmarkCopy(b *testing.B) {
	const large, small = 1 << 30, 4096
	from := b.TempDir()
	r := rand.New(rand.NewPCG(1, 1))
	must(b, os.MkdirAll(from+"/many", 0o700))
	for i := range 10000 {
		write(b, r, fmt.Sprintf("%s/many/%05d", from, i), small, true)
	}
	random := make([]byte, 1<<20)
	for i := range random {
		random[i] = byte(r.Uint32())
	}
	f, err := os.Create(from + "/large")
	must(b, err)
	for range large / len(random) {
		_, err := f.Write(random)
		must(b, err)
	}
	must(b, f.Close())
	for name, size := range map[string]int64{"large": large, "many": 10000 * small} {
		carriers(b, func(b *testing.B, l net.Listener, dial dialer) {
			b.Run(name, func(b *testing.B) {
				target, over := b.TempDir(), make(chan error)
				ctx, stop := context.WithCancel(b.Context())
				go func() { over <- Serve(ctx, l, target, Config{Token: token}) }()
				b.SetBytes(size)
				for b.Loop() {
					b.StopTimer()
					must(b, os.RemoveAll(target+"/"+name))
					b.StartTimer()
					_, err := Copy(ctx, dial, []string{from + "/" + name}, "host:", Config{Token: token})
					must(b, err)
				}
				stop()
				must(b, <-over)
			})
		})
	}
	carriers(b, func(b *testing.B, l net.Listener, dial dialer) {
		b.Run("bytes", func(b *testing.B) { // the same without files
			defer l.Close()
			b.SetBytes(large)
			for b.Loop() {
				var all sync.WaitGroup
				for range defaultStreams {
					to, err := dial(b.Context(), "")
					must(b, err)
					from, err := l.Accept()
					must(b, err)
					all.Go(func() {
						for range large / defaultStreams / pieceBytes {
							if _, err := to.Write(random[:pieceBytes]); err != nil {
								b.Error(err)
							}
						}
						_ = to.Close()
					})
					all.Go(func() {
						for p := make([]byte, pieceBytes); ; {
							if _, err := io.ReadFull(from, p); err != nil {
								break
							}
						}
						_ = from.Close()
					})
				}
				all.Wait()
			}
		})
	})
	b.Run("tar/many", func(b *testing.B) {
		b.SetBytes(10000 * small)
		for b.Loop() {
			b.StopTimer()
			target := b.TempDir()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(b, err)
			b.StartTimer()
			to, err := net.Dial("tcp", l.Addr().String())
			must(b, err)
			at, err := l.Accept()
			must(b, err)
			pack, unpack := exec.Command("tar", "-cC", from, "many"), exec.Command("tar", "-xC", target)
			pack.Stdout, err = to.(*net.TCPConn).File()
			must(b, err)
			unpack.Stdin, err = at.(*net.TCPConn).File()
			must(b, errors.Join(err, pack.Start(), unpack.Start(), pack.Wait(), to.Close()))
			must(b, errors.Join(pack.Stdout.(*os.File).Close(), unpack.Wait(), at.Close(), l.Close()))
		}
	})
}

var kills = flag.Int("kills", 0, "how many processes TestKill kills at random moments")

// Processes that are killed leave old files, new ones and unfinished ones, and nothing else.
func TestKill(t *testing.T) {
	if role := os.Getenv("FILES_ROLE"); role != "" {
		beKilled(t, role)
		return
	}
	if *kills == 0 {
		t.Skip("go test ./stream/files -run Kill -kills 100")
	}
	sources, target := [2]string{t.TempDir(), t.TempDir()}, t.TempDir()
	var trees []tree
	for i, dir := range sources {
		plant(t, 4, uint64(30+i), dir)
		trees = append(trees, read(t, dir))
	}
	for i := range *kills {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		addr := l.Addr().String()
		must(t, l.Close())
		var both [2]*exec.Cmd
		for j, role := range []string{"serve", "copy"} {
			both[j] = exec.Command(os.Args[0], "-test.run", "^TestKill$")
			both[j].Env = append(os.Environ(), "FILES_ROLE="+role, "FILES_ADDR="+addr,
				"FILES_FROM="+sources[i%2], "FILES_TARGET="+target)
			must(t, both[j].Start())
		}
		time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond) // any moment will do
		first := rand.IntN(2)
		for _, j := range []int{first, 1 - first} {
			must(t, both[j].Process.Kill())
			_ = both[j].Wait()
		}
		whole(t, target, trees...)
	}
	names := map[bool]int{}
	for name := range read(t, target) {
		names[strings.HasSuffix(name, partial)]++
	}
	t.Logf("%d names, and %d of unfinished files", names[false], names[true])
}

// beKilled is a process of TestKill.
func beKilled(t *testing.T, role string) {
	addr, cfg := os.Getenv("FILES_ADDR"), Config{Token: token}
	if role == "serve" {
		l, err := net.Listen("tcp", addr)
		must(t, err)
		must(t, Serve(t.Context(), l, os.Getenv("FILES_TARGET"), cfg))
	}
	dial := func(ctx context.Context, _ string) (c net.Conn, err error) {
		for ctx.Err() == nil {
			if c, err = new(net.Dialer).DialContext(ctx, "tcp", addr); err == nil {
				break
			}
		}
		return c, err
	}
	for {
		_, _ = Copy(t.Context(), dial, []string{os.Getenv("FILES_FROM") + "/."}, "host:.", cfg)
	}
}
