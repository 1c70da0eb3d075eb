package lab

import (
	"strings"
	"testing"
)

var testLayout = Layout{Size: 4096, Words: 64, Noise: 512, Spare: 256}

func TestAuditFindsWhatHasChanged(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(m *Memory) // after a piece of it was settled in each way
		want   string          // beginning of what has changed; "" for nothing
	}{
		{"nothing", func(*Memory) {}, ""},
		{"a write to memory in use", func(m *Memory) { s, _ := m.Alloc(8, nil); m.Fill(s, 3) }, ""},
		{"noise", func(m *Memory) { m.Bytes(Span{512, 16})[15]++ }, "memory of noise"},
		{"as it was", func(m *Memory) { m.Bytes(Span{536, 16})[0]++ }, "memory of as it is"},
		{"a source that was returned", func(m *Memory) { m.Fill(Span{560, 16}, 9) }, "memory of source"},
		{"a word", func(m *Memory) { m.SetWord(8, 7) }, ""},
		{"noise that is only read", func(m *Memory) { m.arena[64]++ }, "memory that is only read"},
		{"behind all", func(m *Memory) { m.arena[2000]++ }, "memory that was not given out"},
		{"between two pieces", func(m *Memory) { m.Alloc(8, nil); m.arena[m.used]++ }, "memory that was not"},
		{"the end", func(m *Memory) { m.arena[4095]++ }, "memory that was not given out"},
		{"what was reserved", func(m *Memory) { m.Fill(m.Reserve(100), 1) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := NewMemory(testLayout)
			defer m.Free()
			for _, what := range []string{"noise", "as it is", "source"} {
				s, ok := m.Alloc(16, what)
				if !ok || !m.Untouched(s) {
					t.Fatalf("%s: memory %v, %v", what, s, ok)
				}
				m.Fill(s, 77)
				switch what {
				case "noise":
					m.Settle(s, 77)
				case "as it is":
					m.Settle(s, AsItIs)
				default:
					m.Reuse(s)
				}
			}
			c.change(m)
			what, at, ok := m.Audit()
			if ok != (c.want == "") || !strings.HasPrefix(what, c.want) {
				t.Errorf("audit: %q at %v, ok %v; want %q", what, at, ok, c.want)
			}
		})
	}
}

func TestSpareMemoryIsForTheEnd(t *testing.T) {
	m := NewMemory(testLayout)
	defer m.Free()
	take := func() (n int) {
		for {
			if _, ok := m.Alloc(56, nil); !ok {
				return n
			}
			n++
		}
	}
	if got, want := take(), (4096-256-512)/64; got != want {
		t.Errorf("%d pieces, want %d", got, want)
	}
	m.UseSpare()
	if got := take(); got != 4 {
		t.Errorf("%d pieces of the spare bytes, want 4", got)
	}
	if m.Used() != 4096 {
		t.Errorf("%d bytes are used", m.Used())
	}
}

func TestPartlyTellsWhatMayBeThere(t *testing.T) {
	m := NewMemory(testLayout)
	defer m.Free()
	s, _ := m.Alloc(32, nil)
	head, _ := s.Split(10)
	m.Fill(head, 5)
	if !m.Partly(s, 5) || m.Holds(s, 5) || !m.Holds(head, 5) || m.Untouched(s) {
		t.Error("the first ten bytes have landed")
	}
	m.Fill(s.Part(10, 3), 5) // what belongs elsewhere
	if m.Partly(s, 5) {
		t.Error("bytes of another place are taken for what was sent")
	}
}
