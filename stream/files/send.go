package files

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
)

var (
	errSpecial = errors.New("it is neither a file, nor a directory, nor a link")
	errChanged = errors.New("it changed while it was read: copy it again")
)

// source is a file or directory that was named to be copied.
type source struct {
	root *os.Root
	path string // within root
	name string // at the target; "." for what is in a directory
}

// item is a file, directory or link to be sent.
type item struct {
	root *os.Root
	path string
	meta
	kind fs.FileMode // its type
	size int64
}

// upload is a file that is sent in parts.
type upload struct {
	item
	id     uint32
	mu     sync.Mutex // guards what follows
	opened bool       // then the next three are no longer changed
	f      *os.File   // nil if it cannot be opened
	info   fs.FileInfo
	sparse bool
	left   uint32 // parts that are not done
	err    error  // the first
}

// sender sends files over the connections of a session, whose goroutines call work.
type sender struct {
	sources []source
	tally   *tally
	units   chan func(*wire) // work for one connection
	under   sync.WaitGroup   // units that were taken, and are not done
	files   uint32           // that are sent in parts
}

// work does units over a connection until there are none, or it fails.
func (s *sender) work(w *wire) {
	info, err := s.sources[0].root.Stat(s.sources[0].path)
	single := len(s.sources) == 1 && err == nil && !info.IsDir()
	_, err = w.ask(frame{head: head{Kind: kindBegin, Flag: single}})
	w.fail(err)
	for do := range s.units {
		do(w)
		s.under.Done()
		if w.err != nil {
			return
		}
	}
	_, err = w.ask(frame{head: head{Kind: kindDone}})
	w.fail(err)
}

// walk finds what is to be sent, and gives it to those who work, until ctx ends.
func (s *sender) walk(ctx context.Context) {
	defer close(s.units)
	put := func(do func(*wire)) bool {
		s.under.Add(1)
		select {
		case s.units <- do:
			return true
		case <-ctx.Done():
			s.under.Done()
			return false
		}
	}
	var dirs, batch []item
	size := int64(0)
	flush := func() bool {
		full := batch
		batch, size = nil, 0
		return len(full) == 0 || put(func(w *wire) { s.sendBatch(w, full) })
	}
	for _, src := range s.sources {
		src.walk(func(i item, err error) bool {
			switch {
			case err != nil:
				return put(func(w *wire) { s.note(w, i.name, err) })
			case i.kind.IsDir():
				dirs = append(dirs, i)
				return true
			}
			if s.tally.add(Report{Found: i.size}); i.size > smallBytes {
				s.files++
				return s.putParts(&upload{item: i, id: s.files, left: parts(i.size)}, put)
			}
			batch, size = append(batch, i), size+i.size
			return len(batch) < batchFiles && size < batchBytes || flush()
		})
	}
	flush()
	s.under.Wait()       // directories get their modes and times after what is in them
	slices.Reverse(dirs) // which a walk has the other way round
	put(func(w *wire) { s.sendBatch(w, dirs) })
}

// putParts gives out the parts of a file.
func (s *sender) putParts(u *upload, put func(func(*wire)) bool) bool {
	for n := range parts(u.size) {
		if !put(func(w *wire) { s.sendPart(w, u, n) }) {
			_, _ = u.done(parts(u.size)-n, context.Canceled)
			return false
		}
	}
	return true
}

// note records that a file was not copied, and tells the receiver, also what that has found
// itself.
func (s *sender) note(w *wire, name string, err error) {
	if !errors.As(err, new(*peerError)) {
		err = fmt.Errorf("at the source: %w", bare(err))
	}
	s.tally.fail(name, err)
	name = clip(name, maxName)
	w.write(frame{head: head{Kind: kindNote}, name: name, text: clip(err.Error(), maxText)})
}

// sendBatch sends small files, links or directories.
func (s *sender) sendBatch(w *wire, all []item) {
	for batch := range slices.Chunk(all, batchFiles) {
		var sent []string
		for _, i := range batch {
			f, err := small(w, &i)
			if err != nil {
				s.note(w, i.name, err)
				continue
			}
			w.write(f)
			sent = append(sent, f.name)
			s.tally.add(Report{Bytes: int64(len(f.data))})
		}
		answer, err := w.ask(frame{head: head{Kind: kindEnd}})
		if w.fail(err); w.err != nil {
			return
		}
		failed := 0
		for rest := answer.data; len(rest) != 0; failed++ {
			at := int(rest[0])
			text, more, _ := bytes.Cut(rest[1:], []byte{0})
			if at >= len(sent) || failed == len(sent) {
				w.fail(violation("failure %d, of file %d of %d", failed, at, len(sent)))
				return
			}
			s.note(w, sent[at], &peerError{byTarget, string(text)})
			rest = more
		}
		if !batch[0].kind.IsDir() {
			s.tally.add(Report{Files: int64(len(sent) - failed)})
		}
	}
}

// small returns the frame of a file that fits into one, of a link or of a directory.
func small(w *wire, i *item) (frame, error) {
	switch i.kind {
	case fs.ModeDir:
		return i.frame(kindDir), nil
	case fs.ModeSymlink:
		to, err := i.root.Readlink(i.path)
		if len(to) > maxText {
			err = errLink
		}
		return frame{head: head{Kind: kindLink}, name: i.name, text: filepath.ToSlash(to)}, err
	}
	f, info, err := i.open()
	if err != nil {
		return frame{}, err
	}
	defer func() { _ = f.Close() }()
	if i.size > smallBytes {
		return frame{}, errChanged
	}
	msg := i.frame(kindSmall)
	msg.data, msg.Flag = w.buf[:i.size], next(f, 0, i.size, true) < i.size
	n, err := f.ReadAt(msg.data, 0)
	if err == nil || errors.Is(err, io.EOF) && n == len(msg.data) {
		err = unchanged(f, info)
	} else if errors.Is(err, io.EOF) {
		err = errChanged
	}
	return msg, err
}

// open opens a file, and takes over what it is now.
func (i *item) open() (*os.File, fs.FileInfo, error) {
	f, info, err := openRegular(i.root, i.path, os.O_RDONLY)
	if err == nil {
		i.size, i.mode, i.mtime = info.Size(), info.Mode().Perm(), info.ModTime()
	}
	return f, info, err
}

// unchanged reports an error if a file is no longer what it was when it was opened.
func unchanged(f *os.File, was fs.FileInfo) error {
	now, err := f.Stat()
	if err == nil && (now.Size() != was.Size() || !now.ModTime().Equal(was.ModTime())) {
		err = errChanged
	}
	return err
}

// sendPart sends a part. With the last one, the receiver ends the file.
func (s *sender) sendPart(w *wire, u *upload, n uint32) {
	u.mu.Lock()
	if !u.opened {
		u.opened = true
		size := u.size
		if u.f, u.info, u.err = u.open(); u.err == nil {
			if u.sparse = next(u.f, 0, size, true) < size; u.size != size {
				u.err = errChanged
			}
		}
	}
	f, err := u.f, u.err
	u.mu.Unlock()
	if f != nil {
		err = s.exchange(w, u, n, err)
	}
	switch last, failed := u.done(1, err); {
	case !last || w.err != nil:
	case failed != nil:
		s.note(w, u.name, failed)
	default:
		s.tally.add(Report{Files: 1})
	}
}

// done counts parts that are done, and closes the file behind the last one.
func (u *upload) done(parts uint32, err error) (last bool, failed error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.err = cmp.Or(u.err, err)
	if u.left -= parts; u.left == 0 && u.f != nil {
		_ = u.f.Close()
	}
	return u.left == 0, u.err
}

// exchange sends a part, unless the receiver has it, or failed says that the file cannot be sent,
// and returns why not.
func (s *sender) exchange(w *wire, u *upload, n uint32, failed error) error {
	part := u.frame(kindPart)
	part.ID, part.Part, part.Size, part.Flag = u.id, n, u.size, u.sparse
	start, stop := bounds(n, u.size)
	answer, err := w.ask(part)
	err = cmp.Or(failed, err)
	end := frame{head: head{Kind: kindEnd, Flag: answer.Status == statusSame}}
	if err == nil && answer.Flag {
		var own []byte
		own, err = sum(u.f, start, stop, w.buf)
		end.Flag = bytes.Equal(own, answer.data)
	}
	switch {
	case err != nil:
	case end.Flag:
		s.tally.add(Report{Kept: stop - start})
	default:
		err = eachPiece(u.f, start, stop, u.sparse, w.buf, func(at int64, p []byte) {
			w.write(frame{head: head{Kind: kindPiece, At: at}, data: p})
			s.tally.add(Report{Bytes: int64(len(p))})
		})
	}
	if err = cmp.Or(err, unchanged(u.f, u.info)); err != nil {
		end.Status = statusFailed
	}
	_, answered := w.ask(end)
	return cmp.Or(err, answered)
}

func parts(size int64) uint32 { return uint32((size + partBytes - 1) / partBytes) }

// bounds returns where a part of a file begins and ends.
func bounds(index uint32, size int64) (start, end int64) {
	start = int64(index) * partBytes
	return start, min(start+partBytes, size)
}

// next returns where data or, with hole, a hole begins at an offset or behind it, at most end.
// Where the system does not know, everything is data.
func next(f *os.File, at, end int64, hole bool) int64 {
	seek, unknown := 3, at // SEEK_DATA
	if hole {
		seek, unknown = 4, end // SEEK_HOLE
	}
	if runtime.GOOS != "linux" && runtime.GOOS != "freebsd" {
		return unknown
	}
	found, err := f.Seek(at, seek)
	switch {
	case errors.Is(err, syscall.ENXIO): // there is none
		return end
	case err != nil:
		return unknown
	}
	return min(found, end)
}

// eachPiece calls do with the pieces of a range of f, if sparse without those in holes.
func eachPiece(f *os.File, at, end int64, sparse bool, buf []byte, do func(at int64, p []byte)) error {
	for at < end {
		if sparse {
			data := next(f, at, end, false)
			if data == end {
				return nil
			}
			at = max(at, data&^(pieceBytes-1))
		}
		p := buf[:min(pieceBytes, end-at)]
		if _, err := f.ReadAt(p, at); errors.Is(err, io.EOF) {
			return errChanged
		} else if err != nil {
			return err
		}
		do(at, p)
		at += int64(len(p))
	}
	return nil
}

// sum returns the hash of a range of f: of its pieces and their offsets, without those that are
// zeros, so that a hole costs nothing and equals zeros.
func sum(f *os.File, start, end int64, buf []byte) ([]byte, error) {
	h := sha256.New()
	err := eachPiece(f, start, end, true, buf, func(at int64, p []byte) {
		if !isZero(p) {
			_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(at)))
			_, _ = h.Write(p)
		}
	})
	return h.Sum(nil), err
}

// openRegular opens a file, if it is a regular one, without waiting as for a pipe.
func openRegular(root *os.Root, name string, flag int) (*os.File, fs.FileInfo, error) {
	f, err := root.OpenFile(name, flag|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errSpecial
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// walk calls found with what is to be sent, or why something is not, until it reports false.
func (src source) walk(found func(item, error) bool) {
	_ = fs.WalkDir(src.root.FS(), src.path, func(at string, d fs.DirEntry, err error) error {
		name := at
		if src.path != "." {
			name = strings.TrimPrefix(at, src.path)
		}
		i := item{root: src.root, path: at, meta: meta{name: path.Join(src.name, name)}}
		var info fs.FileInfo
		if err == nil {
			info, err = d.Info() // of a link that was named, WalkDir has what it links to
		}
		if err == nil {
			i.kind, i.mode, i.mtime = info.Mode().Type(), info.Mode().Perm(), info.ModTime()
			if i.kind.IsRegular() {
				i.size = info.Size()
			}
			err = sendable(i)
		}
		switch {
		case i.kind.IsDir() && i.name == ".": // its contents only
		case !found(i, err):
			return fs.SkipAll
		case err != nil && d != nil && d.IsDir():
			return fs.SkipDir
		}
		return nil
	})
}

// sendable returns why a file is not sent.
func sendable(i item) error {
	switch {
	case strings.HasSuffix(i.name, partial):
		return errors.New("names that end in " + partial + " are those of unfinished files")
	case !validName(i.name) || i.size > maxSize:
		return errors.New("its name is not valid UTF-8, or has too many bytes, or it has more than 1 PiB")
	case !i.kind.IsRegular() && !i.kind.IsDir() && i.kind != fs.ModeSymlink:
		return errSpecial
	}
	return nil
}

// localSources returns the sources that a program has named. Each has a root of its own.
func localSources(names []string) (list []source, err error) {
	for _, name := range names {
		full, err := filepath.EvalSymlinks(name)
		if err == nil {
			full, err = filepath.Abs(full)
		}
		src := source{path: filepath.Base(full), name: path.Base(filepath.ToSlash(name))}
		if err == nil && filepath.Dir(full) == full {
			src.path = "."
		}
		if err == nil {
			src.root, err = os.OpenRoot(filepath.Dir(full))
		}
		if err != nil {
			closeRoots(list)
			return nil, err
		}
		list = append(list, src)
	}
	return list, distinct(list)
}

func closeRoots(list []source) {
	for _, s := range list {
		_ = s.root.Close()
	}
}

// servedSources returns the sources that a peer has named.
func servedSources(root *os.Root, names []string) (list []source, err error) {
	for _, name := range names {
		clean, err := within(name)
		if err != nil {
			return nil, err
		}
		if _, err := root.Stat(clean); err != nil {
			return nil, fmt.Errorf("%s: %w", name, bare(err))
		}
		list = append(list, source{root, clean, path.Base(name)})
	}
	return list, distinct(list)
}

// within returns the clean form of a name in the directory that is served.
func within(name string) (string, error) {
	clean := path.Clean("./" + name)
	if path.IsAbs(name) || !filepath.IsLocal(filepath.FromSlash(clean)) {
		return "", fmt.Errorf("%s: names are relative to the served directory, and inside of it", name)
	}
	return clean, nil
}

// distinct reports an error if two sources would become one file. "a/.", ".." and "/" stand for
// what is in them.
func distinct(list []source) error {
	seen := map[string]bool{"": true}
	for i, s := range list {
		if s.name == ".." || s.name == "/" {
			list[i].name = "."
		} else if seen[s.name] {
			return fmt.Errorf("two sources have the name %s: one would take the other's place", s.name)
		}
		seen[s.name] = s.name != "."
	}
	return nil
}
