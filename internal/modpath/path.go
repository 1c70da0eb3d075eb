package main

import (
	"fmt"
	"regexp"
	"strings"
)

// What the Go command refuses in an element of a path: names of devices on Windows, whatever their
// ending, and what looks like a short name of Windows.
var (
	windowsNames = regexp.MustCompile(`^(?i:con|prn|aux|nul|com[1-9]|lpt[1-9])(\..*)?$`)
	shortName    = regexp.MustCompile(`~[0-9]+(\..*)?$`)
)

// checkPath returns an error unless path can be the path of a module that others fetch: see "Module
// paths" in the Go Modules Reference.
func checkPath(path string) error {
	wrong := func(why string) error { return fmt.Errorf("%q is no module path: %s", path, why) }
	element := regexp.MustCompile(`^[-.~_A-Za-z0-9]+$`)
	domain := regexp.MustCompile(`^[a-z0-9][-a-z0-9]*(\.[-a-z0-9]+)+$`)
	elements := strings.Split(path, "/")
	if elements[0] == "gopkg.in" {
		return wrong("paths of gopkg.in end with a version, and the module has no releases yet")
	}
	for i, e := range elements {
		switch {
		case e == "":
			return wrong("it has an empty element")
		case !element.MatchString(e):
			return wrong(fmt.Sprintf("%q has other characters than letters, digits, and -._~", e))
		case strings.HasPrefix(e, "."), strings.HasSuffix(e, "."):
			return wrong(fmt.Sprintf("%q begins or ends with a dot", e))
		case e == "internal" || e == "vendor" || e == "testdata":
			return wrong(fmt.Sprintf("nobody else can import a path with the element %q", e))
		case windowsNames.MatchString(e), shortName.MatchString(e):
			return wrong(fmt.Sprintf("%q cannot be a file on Windows, and Go refuses it everywhere", e))
		case strings.HasPrefix(e, "~"):
			return wrong(fmt.Sprintf("%q begins with a tilde", e))
		case i == 0 && !domain.MatchString(e):
			return wrong(fmt.Sprintf("%q is no domain: want lower-case letters and a dot, as in example.org",
				e))
		}
	}
	if last := elements[len(elements)-1]; regexp.MustCompile(`^v[0-9]+$`).MatchString(last) {
		return wrong("it ends with a major version, and the module has no releases yet")
	}
	return nil
}
