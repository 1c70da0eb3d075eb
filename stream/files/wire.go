package files

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"time"

	"ibverbx/internal/peertext"
)

// The kinds of frames, and the fields that each has.
const (
	kindGreeting byte = iota + 1 // data: a nonce, then a proof
	kindRequest                  // flag: whether the client gets; data: the session, names
	kindStart                    // of the receiver: all connections of the session are there
	kindError                    // text; nothing follows

	// Of the sender.
	kindBegin // flag: there is one source, a file; answered
	kindSmall // meta, flag: it has holes; data
	kindLink  // name, text: what it names
	kindDir   // meta
	kindNote  // name, text: why it was not copied
	kindPart  // id, part, meta, size, flag: of a file that has holes; answered
	kindPiece // of a part; at: the offset in the file; data
	kindEnd   // of a part or a batch; flag: the part is there; status: it cannot be sent; answered
	kindDone  // nothing follows; answered

	// status, text: why; flag: of the part there is data; data: its hash, or, of a batch, for each
	// failure the index, the reason and a zero.
	kindAnswer
)

// The status of an answer.
const (
	statusOK     byte = iota
	statusSame        // the target has the size and the time of the file
	statusFailed      // this file is given up
	statusFatal       // the transfer is
)

const (
	protocol   = "ibverbx files 1"
	nonceBytes = 32
	idBytes    = 16
	tagBytes   = 16

	partBytes  = 64 << 20  // of a large file
	pieceBytes = 128 << 10 // of a part, in a frame
	smallBytes = 64 << 10  // files up to it go whole into a frame
	batchFiles = 256       // as many as a byte counts
	batchBytes = 4 << 20

	maxSize     = 1 << 50 // of a file
	maxName     = 4096
	maxText     = 4096
	maxGreeting = 256 // of a frame before the peer has shown that it knows the token
)

// ErrProtocol is the error of a peer that has broken the protocol.
var ErrProtocol = errors.New("protocol violation by the peer")

// ErrToken is the error if the two ends do not have the same token.
var ErrToken = errors.New("the tokens of the two ends differ")

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// peerError is what the peer has said of a file or of the transfer.
type peerError struct{ by, text string }

const (
	byPeer   = "the other end"
	byTarget = "at the target" // of a file; the sender says it to the receiver too
)

func (e *peerError) Error() string { return e.by + ": " + peertext.Line(e.text, maxText) }

// head begins a frame, with big-endian numbers; name, text and data follow, whose lengths it has.
type head struct {
	Kind, Status byte
	Flag         bool
	ID, Part     uint32
	Mode         uint32 // permissions
	Sec          int64  // time of modification
	Nsec         uint32
	Size, At     int64
	Name, Text   uint16
	Data         uint32
}

// frame is one message.
type frame struct {
	head
	name, text string
	data       []byte
}

//nolint:gochecknoglobals // constant
var headBytes = binary.Size(head{})

// meta is what a file keeps beside its bytes.
type meta struct {
	name  string // at the target, with slashes
	mode  fs.FileMode
	mtime time.Time
}

func (m meta) frame(kind byte) frame {
	return frame{name: m.name, head: head{Kind: kind, Mode: uint32(m.mode.Perm()), Sec: m.mtime.Unix(),
		Nsec: uint32(m.mtime.Nanosecond())}}
}

func (f *frame) meta() meta {
	return meta{f.name, fs.FileMode(f.Mode).Perm(), time.Unix(f.Sec, int64(f.Nsec))}
}

// validName reports whether a file may have a name.
func validName(name string) bool {
	return fs.ValidPath(name) && name != "." && !strings.HasSuffix(name, partial) && len(name) <= maxName &&
		!strings.ContainsRune(name, 0)
}

// wire is a connection that carries frames. One goroutine uses it. Behind the greeting each frame
// has a tag, which only those who know the token can compute, and only for its place in the order.
type wire struct {
	net.Conn
	r       *bufio.Reader
	w       *bufio.Writer
	in, out []byte // the frame that was read last, and the one that was written last
	buf     []byte // for the content of files
	most    int    // length of a frame
	err     error  // the first; then nothing is written, and what is read is empty

	tags    cipher.AEAD // nil in the greeting
	end     int         // 0 listens, 1 has dialled
	numbers [2]uint64   // of the frames that each end has written since the greeting
}

func newWire(c net.Conn, end int) *wire {
	return &wire{Conn: c, end: end, r: bufio.NewReaderSize(c, 32<<10),
		w: bufio.NewWriterSize(c, 32<<10), most: maxGreeting, in: make([]byte, maxGreeting),
		out: make([]byte, maxGreeting)}
}

// grow makes room for large frames, behind the greeting.
func (w *wire) grow() {
	w.most = headBytes + maxName + maxText + pieceBytes
	w.in, w.out = make([]byte, w.most+tagBytes), make([]byte, w.most+tagBytes)
	w.buf = make([]byte, pieceBytes)
}

func (w *wire) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

// write writes a frame, whose parts fit. The next expect or flush sends it.
func (w *wire) write(f frame) {
	if w.err != nil {
		return
	}
	f.Name, f.Text, f.Data = uint16(len(f.name)), uint16(len(f.text)), uint32(len(f.data))
	out, _ := binary.Append(w.out[:0], binary.BigEndian, f.head) // never fails
	out = append(append(append(out, f.name...), f.text...), f.data...)
	if w.tags != nil {
		out = w.tags.Seal(out, w.nonce(w.end), nil, out)
	}
	_, err := w.w.Write(out)
	w.fail(err)
}

func (w *wire) flush() {
	if w.err == nil {
		w.fail(w.w.Flush())
	}
}

// nonce returns the nonce of the next frame of an end; there is no second one like it.
func (w *wire) nonce(end int) []byte {
	w.numbers[end]++
	return binary.BigEndian.AppendUint64([]byte{0, 0, 0, byte(end)}, w.numbers[end])
}

// read reads a frame. Its data is valid until the next read.
func (w *wire) read() frame {
	f, err := frame{}, w.err
	if err == nil {
		f, err = w.decode()
	}
	if errors.Is(err, io.EOF) { // each end says when it has done
		err = io.ErrUnexpectedEOF
	}
	if w.fail(err); err != nil {
		return frame{}
	}
	return f
}

func (w *wire) decode() (f frame, err error) {
	tag := 0
	if w.tags != nil {
		tag = tagBytes
	}
	if _, err := io.ReadFull(w.r, w.in[:headBytes]); err != nil {
		return f, err
	}
	if _, err := binary.Decode(w.in, binary.BigEndian, &f.head); err != nil {
		return f, err
	}
	n := headBytes + int(f.Name) + int(f.Text) + int(f.Data)
	if n > w.most || f.Name > maxName || f.Text > maxText {
		return f, violation("a frame of %d bytes, and %d are the most", n, w.most)
	}
	if _, err := io.ReadFull(w.r, w.in[headBytes:n+tag]); err != nil {
		return f, err
	}
	if tag != 0 {
		if _, err := w.tags.Open(nil, w.nonce(1-w.end), w.in[n:n+tag], w.in[:n]); err != nil {
			return f, violation("a frame that somebody else has written, or changed")
		}
	}
	text, data := headBytes+int(f.Name), headBytes+int(f.Name)+int(f.Text)
	f.name, f.text, f.data = string(w.in[headBytes:text]), string(w.in[text:data]), w.in[data:n]
	named := f.Kind == kindSmall || f.Kind == kindLink || f.Kind == kindDir || f.Kind == kindPart
	switch {
	case f.Kind == kindError && f.text == ErrToken.Error():
		return f, ErrToken
	case f.Kind == kindError:
		return f, &peerError{byPeer, f.text}
	case named && !validName(f.name) || f.Nsec >= 1e9 || f.Size < 0 || f.Size > maxSize || f.At < 0:
		return f, violation("a frame of kind %d that makes no sense", f.Kind)
	}
	return f, nil
}

// expect flushes, and reads a frame of a kind.
func (w *wire) expect(kind byte) frame {
	w.flush()
	f := w.read()
	if w.err == nil && f.Kind != kind {
		w.fail(violation("a frame of kind %d, and %d was due", f.Kind, kind))
		return frame{}
	}
	return f
}

// ask writes a frame, and returns the answer. The error may be of one file only; w.err is not.
func (w *wire) ask(f frame) (frame, error) {
	w.write(f)
	f = w.expect(kindAnswer)
	switch f.Status {
	case statusFatal:
		w.fail(&peerError{byPeer, f.text})
	case statusFailed:
		return f, &peerError{byTarget, f.text}
	}
	return f, w.err
}

// answer answers with f, or says why a file has failed.
func (w *wire) answer(f frame, failed error) {
	f.Kind = kindAnswer
	if failed != nil {
		f.Status, f.text = statusFailed, clip(bare(failed).Error(), maxText)
	}
	fatal := isFatal(failed)
	if fatal {
		f.Status = statusFatal
	}
	w.write(f)
	if w.flush(); fatal {
		w.fail(failed)
	}
}

// tell tells the peer why the connection ends, unless the peer has said so.
func (w *wire) tell(err error) {
	if !errors.As(err, new(*peerError)) {
		w.err = nil
		_ = w.SetWriteDeadline(time.Now().Add(time.Second))
		w.write(frame{head: head{Kind: kindError}, text: clip(err.Error(), maxGreeting/2)})
		w.flush()
	}
}

func clip(text string, most int) string { return text[:min(len(text), most)] }

// greet shows each end that the other one knows the token, which does not travel. The end that
// dials is the first to show it.
func (w *wire) greet(token []byte) error {
	var nonces [2][]byte // of both ends
	nonces[w.end] = make([]byte, nonceBytes)
	_, _ = rand.Read(nonces[w.end])     // never fails
	sign := func(label string) []byte { // both nonces, so that nothing can be replayed, and what for
		h := hmac.New(sha256.New, token)
		_, _ = fmt.Fprintf(h, "%s, %s, %x, %x", protocol, label, nonces[0], nonces[1])
		return h.Sum(nil)
	}
	for i, end := range []int{0, 1, 1, 0} { // two nonces, then two proofs
		label := fmt.Sprint("end ", end)
		if end == w.end {
			f := frame{head: head{Kind: kindGreeting}, text: protocol, data: nonces[end]}
			if i > 1 {
				f.data = sign(label)
			}
			w.write(f)
			w.flush()
			continue
		}
		f := w.expect(kindGreeting)
		switch {
		case w.err != nil:
			return w.err
		case f.text != protocol || len(f.data) != nonceBytes:
			return violation("it speaks %q, and this end %q", peertext.Line(f.text, 40), protocol)
		case i < 2:
			nonces[end] = bytes.Clone(f.data)
		case !hmac.Equal(f.data, sign(label)): // in constant time
			return ErrToken
		}
	}
	w.grow()
	block, err := aes.NewCipher(sign("frames"))
	if err == nil {
		w.tags, err = cipher.NewGCM(block)
	}
	return cmp.Or(w.err, err)
}
