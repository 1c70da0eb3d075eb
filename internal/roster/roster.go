// Package roster names the late ones of many ranks or PEs, for errors.
package roster

import (
	"fmt"
	"strings"
)

// most is how many of them are named.
const most = 20

// Late returns a text about the late ones of size numbers: "rank 2 of 4 is missing", "ranks 2, 3 of
// 4 are missing". one is the predicate for a single number, many for several. It returns "" if none
// is late.
func Late(noun string, size int, late func(i int) bool, one, many string) string {
	var names []string
	for i := range size {
		if late(i) {
			names = append(names, fmt.Sprint(i))
		}
	}
	switch len(names) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("%s %s of %d %s", noun, names[0], size, one)
	}
	return fmt.Sprintf("%ss %s of %d %s", noun, list(names), size, many)
}

// Named is Late for ones that have names.
func Named(names []string, one, many string) string {
	switch len(names) {
	case 0:
		return ""
	case 1:
		return names[0] + " " + one
	}
	return list(names) + " " + many
}

// list joins names, and cuts a long list.
func list(names []string) string {
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
