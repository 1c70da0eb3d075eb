package launch

import (
	"bytes"
	"io"
	"sync"
)

// maxLine is how much of a line is held until its end arrives, in bytes. Longer lines are written
// in parts, each marked as a line.
const maxLine = 64 << 10

// lines writes lines with a mark, each at once, so that those of several processes do not mix.
type lines struct {
	w    *sink
	mark string // empty: nothing is added
	held []byte // of a line without an end
}

// sink takes the lines of several processes. Output that can no longer be written is accepted and
// dropped, because that is no fault of the processes.
type sink struct {
	mu   sync.Mutex
	w    io.Writer
	err  error
	lost func(error) // receives the first error
}

// Write takes any part of the output. It is called by one goroutine, and never fails.
func (l *lines) Write(b []byte) (int, error) {
	n := len(b)
	for {
		end := bytes.IndexByte(b, '\n') + 1
		if end == 0 {
			l.held = append(l.held, b...)
			if len(l.held) >= maxLine {
				l.put()
			}
			return n, nil
		}
		l.held = append(l.held, b[:end]...)
		l.put()
		b = b[end:]
	}
}

// put writes the held bytes as a line.
func (l *lines) put() {
	line := append([]byte(l.mark), l.held...)
	if l.mark != "" && line[len(line)-1] != '\n' {
		line = append(line, '\n')
	}
	l.held = l.held[:0]
	l.w.write(line)
}

// flush writes an unfinished last line.
func (l *lines) flush() {
	if len(l.held) > 0 {
		l.put()
	}
}

func (s *sink) write(line []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	if _, s.err = s.w.Write(line); s.err != nil {
		s.lost(s.err)
	}
}
