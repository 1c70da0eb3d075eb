package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

type versionCmd struct{}

// Run prints the version.
func (versionCmd) Run(c *console) error {
	_, err := fmt.Fprintln(c.out, versionLine())
	return err
}

// versionLine says which version this is, and what it was built with and for.
func versionLine() string {
	return fmt.Sprintf("ibverbx %s %s %s/%s", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// version is the module's version, and the commit if the binary knows it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	if v == "" || v == "(devel)" {
		v = "devel"
	}
	setting := map[string]string{}
	for _, s := range info.Settings {
		setting[s.Key] = s.Value
	}
	if rev := setting["vcs.revision"]; len(rev) >= 12 {
		v += " " + rev[:12]
		if setting["vcs.modified"] == "true" {
			v += "+changes"
		}
	}
	return v
}
