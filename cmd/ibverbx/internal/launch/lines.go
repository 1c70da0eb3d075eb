package launch

import (
	"bytes"
	"io"
	"sync"
)

// maxLine is how much of a line is held until its end is there, in bytes. What is longer is written
// in parts.
const maxLine = 64 << 10

// lines writes lines with a mark, each at once: those of several processes do not mix.
type lines struct {
	w    io.Writer
	mu   *sync.Mutex // of w
	mark string
	held []byte // of a line without an end
}

// Write takes any part of the output. It is called by one goroutine.
func (l *lines) Write(b []byte) (int, error) {
	n := len(b)
	for {
		end := bytes.IndexByte(b, '\n') + 1
		if end == 0 {
			l.held = append(l.held, b...)
			if len(l.held) >= maxLine {
				return n, l.put()
			}
			return n, nil
		}
		l.held = append(l.held, b[:end]...)
		if err := l.put(); err != nil {
			return n, err
		}
		b = b[end:]
	}
}

// put writes what is held as a line.
func (l *lines) put() error {
	line := append([]byte(l.mark), l.held...)
	if line[len(line)-1] != '\n' {
		line = append(line, '\n')
	}
	l.held = l.held[:0]
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.w.Write(line)
	return err
}

// flush writes a last line that has no end.
func (l *lines) flush() {
	if len(l.held) > 0 {
		_ = l.put() // the exit code says how the job went
	}
}
