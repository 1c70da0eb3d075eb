package files

import (
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"ibverbx/internal/peertext"
)

const (
	partial   = ".partial" // what the name of an unfinished file ends in
	maxOpen   = 256        // files of a session that are received in parts at a time
	maxReason = 200        // bytes of why a file of a batch has failed
	// blockBytes of zeros make a hole.
	blockBytes = 4096
	// syncBytes is from which size on a new file is on the disk before it gets its name. For a
	// smaller one, that would take longer than to copy it once more.
	syncBytes = 1 << 20
)

var (
	errBusy   = errors.New("another transfer is writing it")
	errIsDir  = errors.New("a directory has this name, and a file cannot take its place")
	errLink   = errors.New("this link may lead out of the directory that is copied to")
	errUnsent = errors.New("it could not be sent")
)

// receiver receives files over the connections of a session, whose goroutines call work.
type receiver struct {
	root   *os.Root
	target string // within root
	into   bool   // it is a directory, whatever is there
	tally  *tally

	resolve sync.Once
	rename  bool  // the only file gets the name target
	failed  error // target cannot be made

	mu    sync.Mutex
	files map[uint32]*incoming
}

// incoming is a file that is received in parts.
type incoming struct {
	meta
	size   int64
	sparse bool
	mu     sync.Mutex // guards what follows
	opened bool       // then the next two are no longer changed
	f      *unfinished
	same   bool   // the target has the size and the time of the file, so it is kept
	left   uint32 // parts that are not done
	err    error  // the first
}

func newReceiver(root *os.Root, target string, into bool, t *tally) *receiver {
	return &receiver{root: root, target: target, into: into, tally: t, files: map[uint32]*incoming{}}
}

// begin decides what the names of the session are relative to.
func (r *receiver) begin(single bool) error {
	r.resolve.Do(func() {
		dir := r.target
		if info, err := r.root.Stat(dir); single && !r.into && (err != nil || !info.IsDir()) {
			r.rename = true
			dir = path.Dir(dir)
		}
		if dir != "." {
			r.failed = r.root.MkdirAll(dir, 0o777)
		}
	})
	return r.failed
}

// at returns where a file goes.
func (r *receiver) at(name string) string {
	if r.rename {
		return r.target
	}
	return path.Join(r.target, name)
}

// stop closes the files that were not finished.
func (r *receiver) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, in := range r.files {
		if in.f != nil {
			_ = in.f.Close()
		}
	}
	clear(r.files)
}

// work receives over a connection until the peer has sent everything. What fails of single files
// goes to the peer, which sends it back as kindNote.
func (r *receiver) work(w *wire) {
	begin := w.expect(kindBegin)
	if w.err == nil {
		err := r.begin(begin.Flag)
		w.answer(frame{}, err)
		w.fail(err)
	}
	batch, failures, fatal := 0, []byte(nil), error(nil)
	var at place
	defer at.close()
	for w.err == nil {
		switch f := w.read(); f.Kind {
		case kindNote:
			name, text := peertext.Line(f.name, maxName), peertext.Line(f.text, maxText)
			r.tally.fail(name, errors.New(text))
		case kindSmall, kindLink, kindDir:
			if batch++; batch > batchFiles {
				w.fail(violation("a batch of more than %d files", batchFiles))
			} else if fatal == nil {
				if err := r.small(&f, &at); isFatal(err) {
					fatal = err
				} else if err != nil {
					why := clip(bare(err).Error(), maxReason)
					failures = append(append(append(failures, byte(batch-1)), why...), 0)
				}
			}
		case kindEnd:
			w.answer(frame{data: failures}, fatal)
			batch, failures = 0, failures[:0]
		case kindPart:
			r.part(w, &f)
		case kindDone:
			w.answer(frame{}, nil)
			return
		default:
			w.fail(violation("a frame of kind %d in place of a file", f.Kind))
		}
	}
}

// small handles a file in one frame, a link or a directory.
func (r *receiver) small(msg *frame, at *place) error {
	name, m := r.at(msg.name), msg.meta()
	if msg.Kind == kindDir {
		err := r.root.MkdirAll(name, 0o700)
		if err == nil {
			err = r.root.Chmod(name, m.mode)
		}
		if err == nil {
			err = r.root.Chtimes(name, m.mtime, m.mtime)
		}
		return err
	}
	dir, base, err := at.open(r.root, name)
	if err != nil {
		return err
	}
	f, err := create(dir, base)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if msg.Kind == kindLink {
		err = r.link(f, name, msg.text)
	} else {
		err = f.Truncate(0)
		if err == nil && msg.Flag {
			err = f.Truncate(int64(len(msg.data)))
		}
		if err == nil {
			err = writePiece(f.File, 0, msg.data, msg.Flag)
		}
		if err == nil {
			err = f.finish(m, int64(len(msg.data)))
		}
	}
	if err != nil {
		_ = dir.Remove(base + partial) // which this end has locked
		return err
	}
	r.tally.add(Report{Files: 1, Bytes: int64(len(msg.data))})
	return nil
}

// link makes a symbolic link in place of an unfinished file, if it stays within root.
func (r *receiver) link(f *unfinished, name, to string) error {
	parent := path.Dir(name)
	local := filepath.IsLocal(filepath.FromSlash(path.Join(parent, to)))
	if to == "" || path.IsAbs(to) || strings.ContainsRune(to, 0) || !local {
		return errLink
	}
	for ; parent != "."; parent = path.Dir(parent) {
		// Above a directory that is reached through a link, ".." would be elsewhere.
		if info, err := r.root.Lstat(parent); err != nil || !info.IsDir() {
			return errLink
		}
	}
	err := f.root.Remove(f.name + partial)
	if err == nil {
		err = f.root.Symlink(filepath.FromSlash(to), f.name+partial)
	}
	if err == nil {
		err = f.root.Rename(f.name+partial, f.name)
	}
	return err
}

// place is a directory that stays open from one file to the next: to walk there is most of the cost
// of a small file.
type place struct {
	name string
	dir  *os.Root // nil if none is open
}

// open returns the directory of a name, which it makes, and the last element of the name.
func (p *place) open(root *os.Root, name string) (dir *os.Root, base string, err error) {
	parent := path.Dir(name)
	if parent == "." {
		return root, name, nil
	}
	if p.dir == nil || p.name != parent {
		p.close()
		err := root.MkdirAll(parent, 0o700) // until its own mode comes
		if err != nil {
			return nil, "", err
		}
		if p.dir, err = root.OpenRoot(parent); err != nil {
			return nil, "", err
		}
		p.name = parent
	}
	return p.dir, path.Base(name), nil
}

func (p *place) close() {
	if p.dir != nil {
		_ = p.dir.Close()
		p.dir = nil
	}
}

// part receives a part. It reads all of it, also if it cannot be written. The last part of a file
// ends it.
func (r *receiver) part(w *wire, msg *frame) {
	r.mu.Lock()
	in := r.files[msg.ID]
	if in == nil {
		in = &incoming{meta: msg.meta(), size: msg.Size, sparse: msg.Flag, left: parts(msg.Size)}
		r.files[msg.ID] = in
	}
	full := len(r.files) > maxOpen
	r.mu.Unlock()
	start, end := bounds(msg.Part, in.size)
	if full || start >= in.size {
		w.fail(violation("part %d of a file of %d bytes, one of %d at most", msg.Part, in.size, maxOpen))
		return
	}
	err := r.open(in)
	answer := frame{}
	switch {
	case err == nil && in.same:
		answer.Status = statusSame
	case err == nil && in.f.size != 0 && next(in.f.File, start, end, false) < end:
		answer.data, err = sum(in.f.File, start, end, w.buf)
		answer.Flag = err == nil
	}
	w.answer(answer, err)
	if w.err == nil {
		err = cmp.Or(r.pieces(w, in, start, end, err), w.err)
	}
	w.answer(frame{}, r.done(in, msg.ID, cmp.Or(err, w.err)))
}

// open opens a file that comes in parts, once.
func (r *receiver) open(in *incoming) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.opened {
		return in.err
	}
	in.opened = true
	name := r.at(in.name)
	old, err := r.root.Lstat(name)
	if err == nil && old.Mode().IsRegular() && old.Size() == in.size && old.ModTime().Equal(in.mtime) {
		in.same, in.err = true, r.root.Chmod(name, in.mode)
	} else if in.f, in.err = create(r.root, name); in.err == nil && in.f.size != in.size {
		in.err = in.f.Truncate(in.size)
	}
	return in.err
}

// pieces receives the pieces of a part, and returns why the file has failed.
func (r *receiver) pieces(w *wire, in *incoming, at, end int64, failed error) error {
	for first := true; ; first = false {
		f := w.read()
		n := int64(len(f.data))
		if first && !f.Flag && failed == nil && !in.same && in.sparse && in.f.size != 0 {
			failed = wipe(in.f.File, at, end)
		}
		switch {
		case w.err != nil:
			return w.err
		case f.Kind == kindEnd && f.Status != statusOK:
			return cmp.Or(failed, errUnsent)
		case f.Kind == kindEnd && !f.Flag && !in.sparse && at != end:
			return cmp.Or(failed, violation("%d bytes of a part are missing", end-at))
		case f.Kind == kindEnd:
			return failed
		case f.Kind != kindPiece || in.same || f.At < at || f.At > end || n > end-f.At:
			w.fail(violation("a frame of kind %d, of %d bytes at %d, in a part", f.Kind, n, f.At))
			return w.err
		case failed == nil:
			failed = writePiece(in.f.File, f.At, f.data, in.sparse)
		}
		at = f.At + n
		r.tally.add(Report{Bytes: n})
	}
}

// done counts a part that is done, and ends the file behind the last one.
func (r *receiver) done(in *incoming, id uint32, err error) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.err = cmp.Or(in.err, err)
	if in.left == 0 {
		return violation("file %d has more parts than its size", id)
	}
	if in.left--; in.left != 0 {
		return err
	}
	r.mu.Lock()
	delete(r.files, id)
	r.mu.Unlock()
	if in.same {
		r.tally.add(Report{Kept: in.size})
	} else if in.f != nil {
		if in.err == nil {
			in.err = in.f.finish(in.meta, in.size)
		}
		_ = in.f.Close()
	}
	if in.err == nil {
		r.tally.add(Report{Files: 1})
	}
	return in.err
}

// unfinished is a file that will get its name when it is whole. It is locked until it is closed.
type unfinished struct {
	*os.File
	root     *os.Root
	name     string // without partial
	size     int64  // when it was opened
	replaces bool   // another file
}

// create opens the unfinished file of a name, and makes its directory.
func create(root *os.Root, name string) (*unfinished, error) {
	old, none := root.Lstat(name)
	if none == nil && old.IsDir() {
		return nil, errIsDir
	}
	const flag = os.O_RDWR | os.O_CREATE
	f, info, err := openRegular(root, name+partial, flag)
	if errors.Is(err, fs.ErrNotExist) {
		if err = root.MkdirAll(path.Dir(name), 0o700); err == nil { // until its own mode comes
			f, info, err = openRegular(root, name+partial, flag)
		}
	}
	if err != nil {
		return nil, err
	}
	err = lock(f)
	named, gone := root.Lstat(name + partial)
	if err == nil && (gone != nil || !os.SameFile(info, named)) {
		err = errBusy // whoever had locked it before has renamed it, or it is a link
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &unfinished{f, root, name, info.Size(), none == nil}, nil
}

// finish gives the file its mode, its time and its name. If it takes another's place, or is large,
// it is on the disk before: after a power failure too there is the old file, the new one, or the
// unfinished one.
func (f *unfinished) finish(m meta, size int64) error {
	err := f.Chmod(m.mode)
	if err == nil {
		err = f.root.Chtimes(f.name+partial, m.mtime, m.mtime)
	}
	if err == nil && (f.replaces || size >= syncBytes) {
		err = f.Sync()
	}
	if err == nil {
		err = f.root.Rename(f.name+partial, f.name)
	}
	return err
}

//nolint:gochecknoglobals // constant
var zeros = make([]byte, pieceBytes)

func isZero(p []byte) bool { return bytes.Equal(p, zeros[:len(p)]) }

// writePiece writes a piece of a file; of a sparse one, only the blocks that are not zeros.
func writePiece(f *os.File, at int64, p []byte, sparse bool) error {
	block := len(p)
	if sparse {
		block = blockBytes
	}
	for len(p) != 0 {
		n := min(block, len(p))
		if !sparse || !isZero(p[:n]) {
			if _, err := f.WriteAt(p[:n], at); err != nil {
				return err
			}
		}
		p, at = p[n:], at+int64(n)
	}
	return nil
}

// wipe writes zeros over the data of a range, which may be that of another file.
func wipe(f *os.File, at, end int64) error {
	for at = next(f, at, end, false); at < end; at = next(f, at, end, false) {
		n, err := f.WriteAt(zeros[:min(pieceBytes, next(f, at, end, true)-at)], at)
		if err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}

// isFatal reports whether an error of a file means that no other can be written.
func isFatal(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) ||
		errors.Is(err, syscall.EROFS)
}

// bare returns an error without the name of the file and the call.
func bare(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	return err
}
