//go:build linux && (amd64 || arm64)

package pmix

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"ibverbx/internal/tool"
)

// constants are ours, by their names in C.
var constants = map[string]int64{
	"PMIX_BOOL": kindBool, "PMIX_STRING": kindString, "PMIX_INT": kindInt, "PMIX_UINT32": kindUint32,
	"PMIX_BYTE_OBJECT": kindByteObject,
	"PMIX_SUCCESS":     success, "PMIX_ERR_PROC_ENTRY_NOT_FOUND": errEntryNotFound,
	"PMIX_ERR_TIMEOUT": errTimeout, "PMIX_ERR_NOT_FOUND": errNotFound,
	"PMIX_GLOBAL": scopeGlobal, "PMIX_RANK_WILDCARD": rankWildcard,
}

// keys are ours, by their names in C.
var keys = map[string]string{"PMIX_JOB_SIZE": jobSize, "PMIX_LOCAL_SIZE": localSize,
	"PMIX_HOSTNAME": hostName, "PMIX_TIMEOUT": timeout, "PMIX_GET_REFRESH_CACHE": refresh}

// functions are how the library is called.
const functions = `
pmix_status_t (*init)(pmix_proc_t *, pmix_info_t *, size_t) = PMIx_Init;
pmix_status_t (*finalize)(const pmix_info_t *, size_t) = PMIx_Finalize;
pmix_status_t (*put)(pmix_scope_t, const char *, pmix_value_t *) = PMIx_Put;
pmix_status_t (*commit)(void) = PMIx_Commit;
pmix_status_t (*get)(const pmix_proc_t *, const char *, const pmix_info_t *, size_t, pmix_value_t **) =
	PMIx_Get;
const char *(*error_string)(pmix_status_t) = PMIx_Error_string;
`

// TestLayout compiles assertions about our structures and constants with the header of the system.
func TestLayout(t *testing.T) {
	cc, include := compiler(t)
	if out, err := compile(t, cc, include, assertions(0)); err != nil {
		t.Errorf("abi.go and <pmix.h> disagree (%v):\n%s", err, out)
	}
	t.Run("bites", func(t *testing.T) {
		out, err := compile(t, cc, include, assertions(8))
		if err == nil || !strings.Contains(out, "info.value") {
			t.Errorf("info.value was said to lie 8 bytes further, and the compiler said: %v\n%s", err, out)
		}
	})
}

// assertions writes the C file. wrong is added to one offset, to prove that the compiler sees it.
func assertions(wrong uintptr) string {
	var b strings.Builder
	b.WriteString("#include <stddef.h>\n#include <pmix.h>\n" + functions)
	claim := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "_Static_assert(%s, \"%s\");\n", fmt.Sprintf(format, args...), what)
	}
	var p proc
	var v value
	var i info
	claim("proc", "sizeof(pmix_proc_t) == %d", unsafe.Sizeof(p))
	claim("value", "sizeof(pmix_value_t) == %d", unsafe.Sizeof(v))
	claim("info", "sizeof(pmix_info_t) == %d", unsafe.Sizeof(i))
	for _, f := range []struct {
		ours, typ, field string
		offset, size     uintptr
	}{
		{"proc.nspace", "pmix_proc_t", "nspace", unsafe.Offsetof(p.nspace), unsafe.Sizeof(p.nspace)},
		{"proc.rank", "pmix_proc_t", "rank", unsafe.Offsetof(p.rank), unsafe.Sizeof(p.rank)},
		{"value.kind", "pmix_value_t", "type", unsafe.Offsetof(v.kind), unsafe.Sizeof(v.kind)},
		{"value.data", "pmix_value_t", "data", unsafe.Offsetof(v.data), unsafe.Sizeof(v.data)},
		{"value.data", "pmix_value_t", "data.bo.bytes", unsafe.Offsetof(v.data), 8},
		{"value.data", "pmix_value_t", "data.bo.size", unsafe.Offsetof(v.data) + 8, 8},
		{"value.data", "pmix_value_t", "data.string", unsafe.Offsetof(v.data), 8},
		{"value.data", "pmix_value_t", "data.uint32", unsafe.Offsetof(v.data), 4},
		{"value.data", "pmix_value_t", "data.integer", unsafe.Offsetof(v.data), 4},
		{"value.data", "pmix_value_t", "data.flag", unsafe.Offsetof(v.data), 1},
		{"info.key", "pmix_info_t", "key", unsafe.Offsetof(i.key), unsafe.Sizeof(i.key)},
		{"info.flags", "pmix_info_t", "flags", unsafe.Offsetof(i.flags), unsafe.Sizeof(i.flags)},
		{"info.value", "pmix_info_t", "value", unsafe.Offsetof(i.value) + wrong, unsafe.Sizeof(i.value)},
	} {
		claim(f.ours, "offsetof(%s, %s) == %d", f.typ, f.field, f.offset)
		claim(f.ours, "sizeof(((%s *)0)->%s) == %d", f.typ, f.field, f.size)
	}
	for name, ours := range constants {
		claim(name, "%s == %d", name, ours)
	}
	for name, ours := range keys {
		claim(name, "__builtin_strcmp(%s, \"%s\") == 0", name, ours)
	}
	return b.String()
}

// compiler is a C compiler and the directory of <pmix.h>, which Debian keeps apart.
func compiler(t *testing.T) (cc, include string) {
	t.Helper()
	const hint = "no C compiler that finds <pmix.h>; install them (Debian: libpmix-dev gcc)"
	cc = tool.Find(t, "headers", hint, "cc", "gcc", "clang")
	places, _ := filepath.Glob("/usr/lib/*/pmix2/include") // the pattern is one
	for _, include := range append(places, "/usr/include", "/usr/local/include", "/usr/include/pmix") {
		if _, err := os.Stat(filepath.Join(include, "pmix.h")); err == nil {
			return cc, include
		}
	}
	tool.Missing(t, "headers", hint)
	return "", ""
}

func compile(t *testing.T, cc, include, source string) (output string, err error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "layout.c")
	if err := os.WriteFile(path, []byte(source), 0o666); err != nil {
		t.Fatal(err)
	}
	check := exec.Command(cc, "-std=gnu11", "-Werror", "-fsyntax-only", "-I", include, path)
	out, err := check.CombinedOutput()
	return string(out), err
}
