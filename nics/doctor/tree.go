package doctor

import (
	"io"
	"io/fs"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"ibverbx/internal/peertext"
)

// tree reads the files of a host. Every path is relative to the root.
type tree struct{ root fs.FS }

const (
	maxNames = 1024     // names read from a directory
	maxBytes = 64 << 10 // bytes read from a file
	maxSeen  = 300      // characters of a finding
)

// line makes text from files fit to be shown.
func line(text string) string { return peertext.Line(text, maxSeen) }

// names lists a directory, sorted. It is empty if there is none.
func (t tree) names(dir string) []string {
	entries, err := fs.ReadDir(t.root, dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries[:min(len(entries), maxNames)] {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names
}

// read returns the beginning of a file, without white space around it.
func (t tree) read(name string) (text string, ok bool) {
	text, ok = t.readUpTo(name, maxBytes)
	return strings.TrimSpace(text), ok
}

// readUpTo returns the first most bytes of a file.
func (t tree) readUpTo(name string, most int64) (text string, ok bool) {
	info, err := fs.Stat(t.root, name)
	if err != nil || info.Mode()&fs.ModeNamedPipe != 0 { // which would wait for a writer
		return "", false
	}
	f, err := t.root.Open(name)
	if err != nil {
		return "", false
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return "", false
	}
	return string(data), true
}

// number reads a file that begins with a number.
func (t tree) number(name string) (n uint64, ok bool) {
	text, ok := t.read(name)
	if !ok {
		return 0, false
	}
	first, _, _ := strings.Cut(text, " ")
	n, err := strconv.ParseUint(first, 0, 64)
	return n, err == nil
}

// exists reports whether there is such a file or directory.
func (t tree) exists(name string) bool {
	_, err := fs.Stat(t.root, name)
	return err == nil
}

// ownerOf returns the user and the group of a file, as numbers, where the system says so. Every
// unix has a structure of its own for that, with fields of these names.
func ownerOf(info fs.FileInfo) (user, group string, ok bool) {
	v := reflect.Indirect(reflect.ValueOf(info.Sys()))
	if v.Kind() != reflect.Struct {
		return "", "", false
	}
	uid, gid := v.FieldByName("Uid"), v.FieldByName("Gid")
	if !uid.IsValid() || !uid.CanUint() || !gid.IsValid() || !gid.CanUint() {
		return "", "", false
	}
	return strconv.FormatUint(uid.Uint(), 10), strconv.FormatUint(gid.Uint(), 10), true
}

// link returns the last element of what a symbolic link points to; empty if there is none. In a
// recorded tree a file with the target takes the place of the link.
func (t tree) link(name string) string {
	if target, err := fs.ReadLink(t.root, name); err == nil {
		return path.Base(target)
	}
	if text, ok := t.read(name); ok && text != "" {
		return path.Base(text)
	}
	return ""
}

// fields returns the words behind a key in a file of lines such as "CapEff: 00a0".
func (t tree) fields(name, key string) []string {
	text, _ := t.read(name)
	for l := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(l, key); ok {
			return strings.Fields(rest)
		}
	}
	return nil
}
